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
from typing import Any
from urllib.parse import quote

import pandas as pd

from walle.analysis import (
    compare,
    iteration_time,
    lag,
    returns,
    speedup,
    time_percentage,
    timeline,
)
from walle.analysis.comparing import final_scores
from walle.analysis.comparing.matching import WORKERS, question
from walle.analysis.drawing import style
from walle.analysis.loading.directories import (
    BadInputError,
    Scalar,
    counted,
    fingerprint,
    newest,
)
from walle.analysis.measuring.design import axis_of, is_positive, line_keys, resolve_key, sort_key
from walle.analysis.runs import Sweep, load
from walle.analysis.tuning.figures import build as build_search
from walle.analysis.tuning.search import account, best_settings, journal_of
from walle.analysis.tuning.search import load as load_search
from walle.analysis.writing import cli, page, words

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
    if asked := _compared(sweep, by):
        found["Comparison"] = partial(compare.study, by=asked, warmup=warmup)
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
    studies = sections(sweep, by, warmup=warmup, paper=paper)
    machine = words.machine(sweep)
    told = {words.warmup_sentence(warmup), *machine}
    figures = [_figure(title, partial(draw, sweep), told) for title, draw in studies.items()]
    links = {run.name: _link(run.path, home) for run in sweep.runs if home}
    # Drawing adds notes to the sweep, so the account comes after the figures.
    account = [*words.account(sweep), words.warmup_sentence(warmup), *machine]
    left_out = pd.DataFrame(sweep.left_out, columns=["left out", "reason"])
    failures = page.table(left_out) if sweep.left_out else ""
    parts = [
        page.paragraph(question or ask(sweep, by)),
        page.section("Runs", page.sentences(account) + failures),
        *_replacements(sweep, links),
        *figures,
        *_scores(sweep, by),
        page.section("Configuration", _configuration(sweep)),
        page.section("Provenance", page.table(_provenance(sweep))),
        page.section("Every run", page.table(sweep.summary(), links)),
    ]
    return page.document(title or sweep.name, parts)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, FLAGS, by=None, formats=(".html",)).parse_args(argv)
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


def _write_search(args: argparse.Namespace, path: Path) -> None:
    search = load_search(path)
    title = args.title or search.home.resolve().name
    text = build_search(search, _figure, title=title, question=args.question)
    file = args.output or search.home / "report.html"
    cli.write_text(file, text)
    print(*account(search), *best_settings(search)[1], f"report: {file}", sep="\n")
    cli.open_viewer(args, "report", file.resolve().as_uri())


def _write(args: argparse.Namespace) -> None:
    path = args.sweep[0] if len(args.sweep) == 1 else None if args.sweep else newest()
    if path is not None and journal_of(path):
        _write_search(args, path)
        return
    sweep = load(*args.sweep)
    path = cli.output_path(args, sweep, "report.html")
    options = cli.given(args, "by", "warmup", "paper", "title", "question")
    text = build(sweep, **options, home=path.parent)
    cli.write_page(args, sweep, path, text, name="report")
    cli.open_viewer(args, "report", path.resolve().as_uri())


def _compared(sweep: Sweep, by: str) -> str | None:
    """The key whose first and last value are compared; speedups compare numbers of workers."""
    try:
        asked = question(sweep, by if by in sweep.varying and by not in WORKERS else None)
    except BadInputError:
        return None
    is_task = asked.key.startswith("env.")
    return None if asked.key in WORKERS or is_task else f"{asked.key}={asked.a},{asked.b}"


def _scores(sweep: Sweep, by: str) -> list[str]:
    """A section with the final scores of every task and setting; none without an episode."""
    found, said = final_scores.table(sweep, by)
    if not len(found):
        return []
    content = page.table(words.readable(found)) + page.sentences(said)
    return [page.section("Final scores", content)]


def _figure(title: str, draw: Callable[[], cli.Study], told: set[str]) -> str:
    """A section with a figure, its numbers, and the sentences that are not `told` yet."""
    try:
        with style.paper():
            study = draw()
            style.finish(study.figure, None)
            wide, inches = svg(study.figure), study.figure.get_figwidth()
            style.stack(study.figure)
            narrow = svg(study.figure)
    except BadInputError as error:
        return page.section(title, page.paragraph(f"Not drawn: {words.ended(error)}"))
    said = [text for text in study.sentences if text not in told]
    told.update(said)
    return page.section(
        title,
        page.picture(wide, narrow, inches, f"{title}: {' '.join(said)}")
        + page.sentences(said)
        + page.folded("The numbers", page.table(words.readable(study.table))),
    )


def svg(figure: style.Figure) -> str:
    """The figure as base64 of its SVG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return base64.b64encode(buffer.getvalue()).decode()


def _link(path: Path, home: Path) -> str:
    """The address of `path` from a page in `home`; quoted, a name is no scheme and no fragment."""
    return quote(os.fsencode(os.path.relpath(path, home)))


def _replacements(sweep: Sweep, links: Mapping[str, str]) -> list[str]:
    """A section about the processes that were replaced; none where all lived."""
    found = sweep.replacements()
    return [page.section("Replaced processes", page.table(found, links))] if len(found) else []


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
    found["SHA-256 of all run.json"] = [fingerprint(sweep.runs)]
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


def _values_of(sweep: Sweep, key: str) -> str:
    values: list[Scalar] = sorted(set(sweep.values(key)), key=sort_key)
    return ", ".join(str(value) for value in values)


if __name__ == "__main__":
    sys.exit(main())
