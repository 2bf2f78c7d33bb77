"""Writes a W&B report of a sweep: panels grouped by --by, run sets, the fits in words.

The report's specification is always written to a file, without network or login. With --save the
report is published too; its panels show the runs that were logged with `logger=wandb`.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from walle.analysis import speedup
from walle.analysis.measuring import groups
from walle.analysis.report import ask
from walle.analysis.runs import BadInputError, Sweep, load
from walle.analysis.writing import cli, sentences

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import Report

CURVES = (
    ("Evaluation by experience", "env_steps", "eval/return_mean"),
    ("Evaluation by wall clock", "eval/wall_s", "eval/return_mean"),
    ("Return by experience", "env_steps", "return/return_mean"),
    ("Return by wall clock", "time/wall_s", "return/return_mean"),
    ("Policy lag", "env_steps", "lag/lag_mean"),
    ("Environment steps per second", "env_steps", "time/env_steps_per_s"),
)
BARS = (
    ("Evaluation at the end", "summary/eval_mean"),
    ("Environment steps per second", "summary/env_steps_per_s"),
    ("Collection per iteration (s)", "summary/collect_s"),
    ("Learning per iteration (s)", "summary/learn_s"),
    ("Share of collecting", "summary/collect_share"),
    ("Share of learning", "summary/learn_share"),
)
FLAGS = {
    "--entity": {"default": "", "help": "the W&B user or team (--save needs it)"},
    "--project": {"help": "the W&B project (default: the runs' project, or walle)"},
    "--save": "publish the report",
}


def build(
    sweep: Sweep,
    *,
    entity: str,
    project: str,
    by: str | None = None,
    warmup: int = 1,
    title: str | None = None,
) -> Report:
    """The report, not published."""
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError as error:
        text = f"a W&B report needs wandb-workspaces ({error}): pip install 'walle[wandb]'"
        raise BadInputError(text) from error
    by = groups.resolve_key(sweep, by) if by else groups.axis_of(sweep)
    keys = [f"config.{key}" for key in (by, *groups.line_keys(sweep, by))]
    grouped = {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}
    # Without entity and project a run set takes those of the report, and asks no server.
    runs = [
        {"name": name, "filters": f"Metric('Group') = '{name}'"} if name else {"name": "all runs"}
        for name in wandb_groups(sweep)
    ]
    grid = wr.PanelGrid(
        runsets=[wr.Runset(groupby=keys, **named) for named in runs],
        panels=[wr.LinePlot(title=title, x=x, y=[y], **grouped) for title, x, y in CURVES]
        + [wr.BarPlot(title=title, metrics=[y], orientation="v", **grouped) for title, y in BARS],
    )
    return wr.Report(
        project=project,
        entity=entity,
        title=title or sweep.name,
        description=ask(sweep, by),
        blocks=[
            wr.MarkdownBlock(text=findings(sweep, by, warmup)),
            wr.H2("Runs"),
            grid,
            wr.H2("Runs used and left out"),
            wr.MarkdownBlock(text=_bullets(sentences.account(sweep))),
        ],
    )


def specification(report: Report) -> dict[str, Any]:
    """The content of a report as W&B stores it, ready for JSON; asks no server."""
    model = report._to_model()
    spec = model.spec.model_dump(by_alias=True, exclude_none=True, mode="json")
    return {
        "entity": model.project.entity_name,
        "project": model.project.name,
        "title": model.display_name,
        "description": model.description,
        "spec": spec,
    }


def findings(sweep: Sweep, by: str, warmup: int) -> str:
    """The speedup table and the fits in Markdown, or the reason why there are none."""
    try:
        study = speedup.study(sweep, by=by, warmup=warmup, end_to_end=True)
    except BadInputError as error:
        return f"No speedup: {sentences.ended(error)}"
    table = sentences.readable(study.table)
    rows = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    texts = [*study.sentences, *sentences.machine(sweep), *study.notes]
    return "\n".join([*lines, "", _bullets(texts)])


def wandb_groups(sweep: Sweep) -> list[str]:
    """The W&B groups of the runs; an empty name stands for all runs of the project."""
    names = set()
    for run in sweep.runs:  # status.json names the group; without W&B, the settings do
        logged = run.status.get("wandb")
        known = logged.get("group") if isinstance(logged, dict) else run.config.get("logger.group")
        names.add("" if known in (None, "null") else str(known))
    return sorted(names)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser(__doc__, FLAGS, formats=(".json",))
    args = parser.parse_args(argv)
    if args.save and not args.entity:
        parser.error("--save needs --entity, the W&B user or team the report will belong to")
    return cli.guard("wandb_report", lambda: _write(args))


def _write(args: argparse.Namespace) -> None:
    sweep = load(*args.sweep)
    project = args.project or str(sweep.runs[0].config.get("logger.project", "walle"))
    options = cli.given(args, "entity", "by", "warmup", "title")
    report = build(sweep, project=project, **options)
    path = args.output or sweep.paths[0] / "figures/wandb_report.json"
    text = json.dumps(specification(report), indent=1) + "\n"
    cli.write_page(args, sweep, path, text, name="specification")
    if args.save:
        import wandb

        try:
            report.save()
        except (wandb.errors.Error, OSError, ValueError) as error:
            text = f"not published: {error}; the specification is in {path}"
            raise BadInputError(text) from error
    else:
        print("not published; --save --entity NAME publishes the report")
    address = report.url if args.save else path.resolve().as_uri()
    cli.open_viewer(args, "wandb_report", address)


def _bullets(texts: list[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


if __name__ == "__main__":
    raise SystemExit(main())
