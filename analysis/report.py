"""Writes one HTML page of a sweep with all its figures, failures and provenance.

The page needs no network and no other file. On a phone the panels of a figure stand below one
another.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from walle.analysis import (
    compare,
    iteration_time,
    lag,
    returns,
    search,
    speedup,
    time_percentage,
    timeline,
)
from walle.analysis.drawing import labels, style
from walle.analysis.loading.directories import BadInputError, Scalar, fingerprint, newest
from walle.analysis.measuring import stats
from walle.analysis.measuring.comparisons import WORKERS, question
from walle.analysis.measuring.groups import axis_of, is_positive, line_keys, resolve_key, sort_key
from walle.analysis.measuring.scores import evaluated, final_scores, possible_returns
from walle.analysis.runs import Sweep, load
from walle.analysis.writing import cli, page, sentences
from walle.analysis.writing.format import counted

Draw = Callable[[Sweep], cli.Study]
FLAGS = {
    "--paper": cli.PAPER,
    "--question": {"metavar": "TEXT", "help": "the question of the sweep, a sentence"},
}


def sections(sweep: Sweep, by: str, *, warmup: int, paper: bool) -> dict[str, Draw]:
    """The functions that draw the figures of the page, by title and in order.

    They raise BadInputError where the sweep has nothing to draw.
    """
    times: dict[str, Any] = {"by": by, "warmup": warmup}
    seconds = partial(iteration_time.study, **times, paper=paper)
    found: dict[str, Draw] = {}
    if by in sweep.varying and all(map(is_positive, sweep.values(by))):
        found["Speedup"] = partial(speedup.study, **times, end_to_end=True, paper=paper)
    found |= {
        "Collection time": seconds,
        "Learning time": partial(seconds, of="learn"),
        "Where the time goes": partial(time_percentage.study, **times),
    }
    if len(sweep.evaluations):
        found["Evaluations"] = partial(returns.study, by=by, y="eval")
    training = partial(returns.study, by=by, y="return_mean")
    found |= {
        "Return by experience": partial(training, paper=paper),
        "Return by wall clock": partial(training, x="wall"),
    }
    with suppress(BadInputError):  # speedups compare numbers of workers
        asked = question(sweep, by if by in sweep.varying and by not in WORKERS else None)
        if asked.key not in WORKERS and not asked.key.startswith("env."):
            sides = f"{asked.key}={asked.a},{asked.b}"
            found["Comparison"] = partial(compare.study, by=sides, warmup=warmup)
    if any(run.overlapped for run in sweep.runs):
        lag_by = "sampler.max_lag" if "sampler.max_lag" in sweep.varying else by
        found["Policy lag"] = partial(lag.study, by=lag_by, warmup=warmup)
    for run in timeline.traced(sweep):
        title = f"Timeline, max_lag {run.config.get('sampler.max_lag')}"
        found.setdefault(title, partial(timeline.study, run=run.name))
    return found


def build(
    sweep: Sweep,
    *,
    by: str | None = None,
    warmup: int = 1,
    paper: bool = False,
    title: str | None = None,
    question: str | None = None,
    home: Path | None = None,
) -> str:
    """The page as text."""
    by = resolve_key(sweep, by) if by else axis_of(sweep)
    studies = sections(sweep, by, warmup=warmup, paper=paper)
    machine = sentences.machine(sweep)
    written = {sentences.warmup_sentence(warmup), *machine}
    figures = [_figure(title, partial(draw, sweep), written) for title, draw in studies.items()]
    # Quoted, a name is no scheme and no fragment of an address.
    links = {r.name: quote(os.fsencode(os.path.relpath(r.path, home))) for r in sweep.runs if home}
    # Drawing adds notes to the sweep, so the account comes after the figures.
    account = [*sentences.account(sweep), sentences.warmup_sentence(warmup), *machine]
    table, texts = final_score_table(sweep, by)
    content = page.table(sentences.readable(table)) + page.sentences(texts)
    scores = [page.section("Final scores", content)]
    replaced = sweep.replacements()
    differs = [{"key": k, "values": _values_of(sweep, k)} for k in (*sweep.varying, "seed")]
    fixed = dict.fromkeys(key for run in sweep.runs for key in run.config if key != "seed")
    values = {k: str(sweep.values(k)[0]) for k in fixed if k not in sweep.varying}
    rows = [{"key": key, "value": value} for key, value in values.items()]
    same = page.folded("The same in every run", page.table(pd.DataFrame(rows)))
    left_out = pd.DataFrame(sweep.left_out, columns=["left out", "reason"])
    failures = page.table(left_out) if sweep.left_out else ""
    parts = [
        page.paragraph(question or ask(sweep, by)),
        page.section("Runs", page.sentences(account) + failures),
        *([page.section("Replaced processes", page.table(replaced, links))] * bool(len(replaced))),
        *figures,
        *(scores if len(table) else []),
        page.section("Configuration", page.table(pd.DataFrame(differs)) + same),
        page.section("Provenance", page.table(_provenance(sweep))),
        page.section("Every run", page.table(sweep.summary(), links)),
    ]
    return page.document(title or sweep.name, parts)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, FLAGS, formats=(".html",)).parse_args(argv)
    return cli.guard("report", lambda: _write(args))


def ask(sweep: Sweep, by: str) -> str:
    """The question in words: the varying keys, the algorithm and task, the number of seeds."""
    others = [key for key in line_keys(sweep, by) if key in sweep.varying]
    what = " and ".join(f"{key} ({_values_of(sweep, key)})" for key in (by, *others))
    fixed = [
        str(sweep.values(key)[0])
        for key in ("algo.name", "env.id")
        if key not in (by, *others) and key in sweep.runs[0].config
    ]
    of = f" of {' on '.join(fixed)}" if fixed else ""
    seeds = counted(len(set(sweep.values("seed"))), "seed")
    return f"How do the results{of} depend on {what}? {seeds}."


def _write(args: argparse.Namespace) -> None:
    path = args.sweep[0] if len(args.sweep) == 1 else None if args.sweep else newest()
    if path is not None and search.journal_of(path):
        stored = search.load_search(path)
        title = args.title or stored.home.resolve().name
        file = args.output or stored.home / "report.html"
        cli.write_text(file, search.build(stored, _figure, title=title, question=args.question))
        texts = [*search.account(stored), *search.best_settings(stored)[1], f"report: {file}"]
        print(*texts, sep="\n")
        cli.open_viewer(args, "report", file.resolve().as_uri())
        return
    sweep = load(*args.sweep)
    path = cli.output_path(args, sweep, "report.html")
    options = cli.given(args, "by", "warmup", "paper", "title", "question")
    text = build(sweep, **options, home=path.parent)
    cli.write_page(args, sweep, path, text, name="report")
    cli.open_viewer(args, "report", path.resolve().as_uri())


def final_score_table(sweep: Sweep, by: str) -> tuple[pd.DataFrame, list[str]]:
    """A row for each task and label: the seeds, and mean scores with 95% intervals.

    Runs that learnt the same count once. Beside the table stand sentences about what the scores
    are; both are empty where no episode has ended.
    """
    groups = labels.groups(sweep, by)
    groups = labels.merged(sweep, groups, sweep.iterations, "return_mean")
    rows = []
    texts: list[str] = []
    for task in dict.fromkeys(task for task, _ in groups):
        mine = {label: names for (of, label), names in groups.items() if of == task}
        names = {name for runs in mine.values() for name in runs}
        bounds = possible_returns(r for r in sweep.runs if labels.task_of(r) == task)
        sources = {"training": final_scores(sweep, names, evaluations=False)}
        if evaluated(sweep, names):
            sources["evaluation"] = final_scores(sweep, names, evaluations=True)
        for label, runs in mine.items():
            row: dict[str, object] = {"task": task, "line": label.text, "seeds": len(runs)}
            found = {k: v for k, v in sources.items() if set(runs) & set(v.of)}
            for column, scores in found.items():
                values = np.array([scores.of[name] for name in runs if name in scores.of])
                row |= stats.mean_interval(values).within(*bounds).columns(column)
                texts.append(f"Column {column}: {scores.source}.")
                if scores.cut is not None:
                    texts.append(f"For {task}: read at {scores.cut:,} steps, where a run ends.")
            rows += [row] if found else []
    if not rows:
        return pd.DataFrame(), []
    return sentences.without_lone_line(pd.DataFrame(rows)), list(dict.fromkeys(texts))


def _figure(title: str, draw: Callable[[], cli.Study], written: set[str]) -> str:
    """A section with a figure, its numbers, and the sentences that are not `written` yet."""
    try:
        with style.paper():
            study = draw()
            style.finish(study.figure, None)
            wide, inches = svg(study.figure), study.figure.get_figwidth()
            style.stack(study.figure)
            narrow = svg(study.figure)
    except BadInputError as error:
        return page.section(title, page.paragraph(f"Not drawn: {sentences.ended(error)}"))
    texts = [text for text in study.sentences if text not in written]
    written.update(texts)
    return page.section(
        title,
        page.picture(wide, narrow, inches, f"{title}: {' '.join(texts)}")
        + page.sentences(texts)
        + page.folded("The numbers", page.table(sentences.readable(study.table))),
    )


def svg(figure: style.Figure) -> str:
    """The figure as base64 of its SVG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return base64.b64encode(buffer.getvalue()).decode()


def _provenance(sweep: Sweep) -> pd.DataFrame:
    """What the runs recorded of machine and code; all values where runs differ."""
    found: dict[str, list[str]] = {}

    def add(key: str, value: str) -> None:
        if value not in found.setdefault(key, []):
            found[key].append(value)

    for run in sweep.runs:
        git = run.provenance.get("git")
        if isinstance(git, dict):
            changes = ", with local changes" if git.get("dirty") else ""
            add("code", f"{git.get('commit')}{changes}")
        for key in ("host", "platform", "cpu_model", "physical_cores", "usable_cores"):
            if run.provenance.get(key) is not None:
                add(key.replace("_", " "), str(run.provenance[key]))
        for key in ("versions", "threads"):
            facts = run.provenance.get(key)
            if isinstance(facts, dict):
                add(key, ", ".join(f"{name} {value}" for name, value in facts.items()))
    found["SHA-256 of all run.json"] = [fingerprint(sweep.runs)]
    return pd.DataFrame([{"": key, "value": "; ".join(v)} for key, v in found.items()])


def _values_of(sweep: Sweep, key: str) -> str:
    values: list[Scalar] = sorted(set(sweep.values(key)), key=sort_key)
    return ", ".join(str(value) for value in values)


if __name__ == "__main__":
    sys.exit(main())
