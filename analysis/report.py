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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from walle.analysis import iteration_time, lag, returns, speedup, time_percentage, timeline
from walle.analysis.drawing import style
from walle.analysis.loading.directories import BadInputError, Scalar, counted
from walle.analysis.measuring.cells import warmup_sentence
from walle.analysis.measuring.design import is_positive, line_keys, resolve_key, sort_key
from walle.analysis.runs import Sweep, load
from walle.analysis.writing import cli, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Section(NamedTuple):
    """One figure of the page.

    Attributes:
        title: the heading above the figure.
        study: draws the figure; raises BadInputError where the sweep has nothing to draw.
    """

    title: str
    study: Callable[[Sweep], cli.Study]


def sections(sweep: Sweep, by: str, *, warmup: int, paper: bool) -> list[Section]:
    """The figures that suit the sweep, in the order of the page."""
    times: dict[str, Any] = {"by": by, "warmup": warmup}
    seconds = partial(iteration_time.study, **times, paper=paper)
    found = [
        Section("Collection time", seconds),
        Section("Learning time", partial(seconds, of="learn")),
        Section("Where the time goes", partial(time_percentage.study, **times)),
        Section("Return by experience", partial(returns.study, by=by, paper=paper)),
        Section("Return by wall clock", partial(returns.study, by=by, x="wall")),
    ]
    if by in sweep.varying and all(map(is_positive, sweep.values(by))):
        study = partial(speedup.study, **times, end_to_end=True, paper=paper)
        found.insert(0, Section("Speedup", study))
    if any(run.overlapped for run in sweep.runs):
        lag_by = "sampler.max_lag" if "sampler.max_lag" in sweep.varying else by
        found.append(Section("Policy lag", partial(lag.study, by=lag_by, warmup=warmup)))
    traced = _traced(sweep).items()
    return found + [Section(title, partial(timeline.study, run=run)) for title, run in traced]


def _traced(sweep: Sweep) -> dict[str, str]:
    """The name of the first run with a trace for each `sampler.max_lag`, by its section's title."""
    found: dict[str, str] = {}
    for run in timeline.traced(sweep):
        found.setdefault(f"Timeline, max_lag {run.config.get('sampler.max_lag')}", run.name)
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
    """The page as text.

    Args:
        sweep: the runs.
        by: the configuration key to compare by; by default the key of `axis_of`.
        warmup: the number of iterations of each run that are left out of mean times.
        paper: draw the papers' points too.
        title: the title of the page; by default the sweep's name.
        question: the question of the sweep; by default the sentence of `ask`.
        home: the directory of the page, for the links to the runs; None for no links.
    """
    by = resolve_key(sweep, by) if by else axis_of(sweep)
    figures = [
        _figure(section, sweep, warmup)
        for section in sections(sweep, by, warmup=warmup, paper=paper)
    ]
    account = [*cli.account(sweep), warmup_sentence(warmup)]
    parts = [
        page.paragraph(question or ask(sweep, by)),
        page.section("Runs", page.sentences(account) + _failures(sweep)),
        *figures,
        page.section("Configuration", _configuration(sweep)),
        page.section("Provenance", page.table(_provenance(sweep))),
        page.section("Every run", page.table(sweep.summary(), links=_links(sweep, home))),
    ]
    return page.document(title or sweep.name, parts)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser(__doc__, by=None, formats=(".html",))
    parser.add_argument("--paper", action="store_true", help="draw the papers' own points too")
    parser.add_argument("--question", metavar="TEXT", help="the question of the sweep, a sentence")
    args = parser.parse_args(argv)
    return cli.guard("report", lambda: _write(args))


def axis_of(sweep: Sweep) -> str:
    """`sampler.n` where it varies or nothing does, else the first key that varies."""
    if "sampler.n" in sweep.varying:
        return "sampler.n"
    return next(iter(line_keys(sweep, "")), "sampler.n")


def ask(sweep: Sweep, by: str) -> str:
    """The question in words: the varying keys, the algorithm and task, the number of seeds."""
    others = [key for key in line_keys(sweep, by) if key in sweep.varying]
    what = " and ".join(_range_of(sweep, key) for key in (by, *others))
    fixed = [
        str(sweep.values(key)[0])
        for key in ("algo.name", "env.id")
        if key not in (by, *others) and key in sweep.runs[0].config
    ]
    of = f" of {' on '.join(fixed)}" if fixed else ""
    seeds = counted(len(set(sweep.values("seed"))), "seed")
    return f"How do the results{of} depend on {what}? {seeds}."


def _write(args: argparse.Namespace) -> None:
    sweep = load(*args.sweep)
    path = args.output or sweep.paths[0] / "report.html"
    text = build(
        sweep,
        by=args.by,
        warmup=args.warmup,
        paper=args.paper,
        title=args.title,
        question=args.question,
        home=path.parent,
    )
    numbers = args.csv or path.with_suffix(".csv")
    cli.write_text(path, text)
    cli.write_text(numbers, sweep.summary().to_csv(index=False))
    print(f"report: {path}\nruns:   {numbers}")
    cli.open_viewer("report", path.resolve().as_uri(), wanted=args.show)


def _figure(section: Section, sweep: Sweep, warmup: int) -> str:
    try:
        with style.paper():
            study = section.study(sweep)
            style.finish(study.figure, None)
            wide, inches = svg(study.figure), study.figure.get_figwidth()
            style.stack(study.figure)
            narrow = svg(study.figure)
    except BadInputError as error:
        return page.section(section.title, page.paragraph(f"Not drawn: {cli.ended(error)}"))
    said = [text for text in study.sentences if text != warmup_sentence(warmup)]
    alternative = f"{section.title}: {' '.join(said)}"
    return page.section(
        section.title,
        page.picture(wide, narrow, inches, alternative)
        + page.sentences(said)
        + page.folded("The numbers", page.table(cli.readable(study.table))),
    )


def svg(figure: Figure) -> str:
    """The figure as base64 of its SVG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return base64.b64encode(buffer.getvalue()).decode()


def _failures(sweep: Sweep) -> str:
    if not sweep.left_out:
        return ""
    return page.table(pd.DataFrame(sweep.left_out, columns=["left out", "reason"]))


def _configuration(sweep: Sweep) -> str:
    keys = list(dict.fromkeys(key for run in sweep.runs for key in run.config))
    differs = [{"key": k, "values": _values_of(sweep, k)} for k in (*sweep.varying, "seed")]
    same = [
        {"key": k, "value": str(sweep.values(k)[0])}
        for k in keys
        if k not in sweep.varying and k != "seed"
    ]
    return page.table(pd.DataFrame(differs)) + page.folded(
        "The same in every run", page.table(pd.DataFrame(same))
    )


def _provenance(sweep: Sweep) -> pd.DataFrame:
    """What the runs recorded of machine and code; all values where runs differ."""
    found: dict[str, list[str]] = {}
    for run in sweep.runs:
        for key, value in _facts(run.provenance):
            if value not in found.setdefault(key, []):
                found[key].append(value)
    return pd.DataFrame([{"": key, "value": "; ".join(v)} for key, v in found.items()])


def _facts(provenance: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    git = provenance.get("git")
    if isinstance(git, dict):
        yield "code", f"{git.get('commit')}{', with local changes' if git.get('dirty') else ''}"
    for key in ("host", "platform", "cpu_model", "physical_cores", "usable_cores"):
        if provenance.get(key) is not None:
            yield key.replace("_", " "), str(provenance[key])
    for key in ("versions", "threads"):
        facts = provenance.get(key)
        if isinstance(facts, dict):
            yield key, ", ".join(f"{name} {value}" for name, value in facts.items())


def _links(sweep: Sweep, home: Path | None) -> dict[str, str]:
    """The path of each run, relative to the directory of the page."""
    if home is None:
        return {}
    return {run.name: Path(os.path.relpath(run.path, home)).as_posix() for run in sweep.runs}


def _range_of(sweep: Sweep, key: str) -> str:
    return f"{key} ({_values_of(sweep, key)})"


def _values_of(sweep: Sweep, key: str) -> str:
    values: list[Scalar] = sorted(set(sweep.values(key)), key=sort_key)
    return ", ".join(str(value) for value in values)


if __name__ == "__main__":
    sys.exit(main())
