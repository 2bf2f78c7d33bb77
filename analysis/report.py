"""Writes one HTML page of a sweep with all its figures, failures and provenance.

The page needs no network and no other file. On a phone the panels of a figure stand below one
another.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from walle.analysis import compare, iteration_time, lag, returns, speedup, time_percentage, timeline
from walle.analysis.drawing import labels
from walle.analysis.measuring import comparisons, groups, scores, stats
from walle.analysis.runs import LOCK_STEP, BadInputError, Sweep, fingerprint, load, newest
from walle.analysis.search import journal_of, write_page
from walle.analysis.writing import cli, page, sentences
from walle.analysis.writing.format import counted

Draw = Callable[[Sweep], cli.Study]
FLAGS = {"--paper": cli.PAPER, "--question TEXT": "the question of the sweep, a sentence"}


def sections(sweep: Sweep, by: str, *, warmup: int, paper: bool) -> dict[str, Draw]:
    """The functions that draw the figures of the page, by title and in order.

    They raise BadInputError where the sweep has nothing to draw.
    """
    times: dict[str, Any] = {"by": by, "warmup": warmup}
    draws: dict[str, Draw] = {}
    if by in sweep.varying and all(map(groups.is_positive, sweep.values(by))):
        draws["Speedup"] = partial(speedup.study, **times, end_to_end=True, paper=paper)
    draws["Collection time"] = partial(iteration_time.study, **times, paper=paper)
    draws["Learning time"] = partial(iteration_time.study, **times, paper=paper, of="learn")
    draws["Where the time goes"] = partial(time_percentage.study, **times)
    if len(sweep.evaluations):
        draws["Evaluations"] = partial(returns.study, by=by, y="eval")
    for name in sweep.info:
        draw = partial(returns.study, by=by, evaluations=bool(len(sweep.evaluations)))
        draws[f"{name}, mean over episodes"] = partial(draw, y=f"{name}_mean")
    training = partial(returns.study, by=by, y=scores.TRAINING)
    draws["Return by experience"] = partial(training, paper=paper)
    draws["Return by wall clock"] = partial(training, x="wall")
    with suppress(BadInputError):  # speedups compare numbers of workers
        key = by if by in sweep.varying and by not in comparisons.WORKERS else None
        sides = comparisons.question(sweep, key)
        if sides.key not in comparisons.WORKERS and not sides.key.startswith("env."):
            values = f"{sides.key}={sides.a},{sides.b}"
            draws["Comparison"] = partial(compare.study, by=values, warmup=warmup)
    if any(run.mode != LOCK_STEP for run in sweep.runs):
        lag_by = "sampler.max_lag" if "sampler.max_lag" in sweep.varying else by
        draws["Policy lag"] = partial(lag.study, by=lag_by, warmup=warmup)
    for run in timeline.traced(sweep):
        title = f"Timeline, max_lag {run.config.get('sampler.max_lag')}"
        draws.setdefault(title, partial(timeline.study, run=run.name))
    return draws


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
    by = groups.resolve_key(sweep, by) if by else groups.axis_of(sweep)
    about = [sentences.warmup_sentence(warmup), *sentences.machine(sweep)]
    written, draws = set(about), sections(sweep, by, warmup=warmup, paper=paper)
    figures = [page.figure(name, partial(draw, sweep), written) for name, draw in draws.items()]
    # Quoted, a name is no scheme and no fragment of an address.
    links = {r.name: quote(os.fsencode(os.path.relpath(r.path, home))) for r in sweep.runs if home}
    # Drawing adds notes to the sweep, so the account comes after the figures.
    account = page.sentences([*sentences.account(sweep), *about])
    left_out = pd.DataFrame(sweep.left_out, columns=["left out", "reason"])
    replaced = sweep.replacements()
    finals, texts = final_score_table(sweep, by)
    content = page.table(sentences.readable(finals)) + page.sentences(texts)
    differs = [{"key": k, "values": _values_of(sweep, k)} for k in (*sweep.varying, "seed")]
    fixed = dict.fromkeys(key for run in sweep.runs for key in run.config if key != "seed")
    same = [{"key": k, "value": str(sweep.values(k)[0])} for k in fixed if k not in sweep.varying]
    folded = page.folded("The same in every run", page.table(pd.DataFrame(same)))
    parts = [
        page.paragraph(question or ask(sweep, by)),
        page.section("Runs", account + (page.table(left_out) if len(left_out) else "")),
        *([page.section("Replaced processes", page.table(replaced, links))] * bool(len(replaced))),
        *figures,
        *([page.section("Final scores", content)] * bool(len(finals))),
        page.section("Configuration", page.table(pd.DataFrame(differs)) + folded),
        page.section("Provenance", page.table(_provenance(sweep))),
        page.section("Every run", page.table(sweep.summary(), links)),
    ]
    return page.document(title or sweep.name, parts)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, FLAGS, formats=(".html",)).parse_args(argv)
    return cli.guard("report", lambda: _write(args))


def _write(args: argparse.Namespace) -> None:
    path = args.sweep[0] if len(args.sweep) == 1 else None if args.sweep else newest()
    if path is not None and journal_of(path):
        path = write_page(path, args)
    else:
        sweep = load(*args.sweep)
        path = args.output or sweep.paths[0] / "report.html"
        options = cli.given(args, "by", "warmup", "paper", "title", "question")
        text = build(sweep, **options, home=path.parent)
        cli.write_page(args, sweep, path, text, name="report")
    cli.open_viewer(args, "report", path.resolve().as_uri())


def ask(sweep: Sweep, by: str) -> str:
    """The question in words: the varying keys, the algorithm and task, the number of seeds."""
    keys = (by, *(key for key in groups.line_keys(sweep, by) if key in sweep.varying))
    what = " and ".join(f"{key} ({_values_of(sweep, key)})" for key in keys)
    fixed = [
        str(sweep.values(key)[0])
        for key in ("algo.name", "env.id")
        if key not in keys and key in sweep.runs[0].config
    ]
    of = f" of {' on '.join(fixed)}" if fixed else ""
    seeds = counted(len(set(sweep.values("seed"))), "seed")
    return f"How do the results{of} depend on {what}? {seeds}."


def final_score_table(sweep: Sweep, by: str) -> tuple[pd.DataFrame, list[str]]:
    """A row for each task and label: the seeds, and mean scores with 95% intervals.

    Runs that learnt the same count once. Beside the table stand sentences about what the scores
    are; both are empty where no episode has ended.
    """
    named = labels.merged(sweep, by, sweep.iterations, "return_mean")
    rows = []
    texts: dict[str, None] = {}
    for task in dict.fromkeys(task for task, _ in named):
        mine = {label.text: names for (of, label), names in named.items() if of == task}
        names = {name for runs in mine.values() for name in runs}
        bounds = scores.possible_returns(r for r in sweep.runs if labels.task_of(r) == task)
        sources = {"training": scores.training(sweep, names)}
        if (ends := scores.at_end(sweep, names)) is not None:
            sources = {"evaluation": ends, **sources}
        for label, runs in mine.items():
            row: dict[str, object] = {"task": task, "line": label, "seeds": len(runs)}
            for column, finals in sources.items():
                values = np.array([finals.of[name] for name in runs if name in finals.of])
                if len(values):
                    row |= stats.mean_interval(values).within(*bounds).columns(column)
                    texts[f"Column {column}, {task}: {finals.source}."] = None
            rows += [row] if len(row) > 3 else []
    if not rows:
        return pd.DataFrame(), []
    return sentences.without_lone_line(pd.DataFrame(rows)), list(texts)


def _provenance(sweep: Sweep) -> pd.DataFrame:
    """The machine and the code that the runs recorded; all values where runs differ."""
    values: dict[str, dict[str, None]] = {}
    for run in sweep.runs:
        facts, git = run.provenance, run.provenance.get("git")
        if isinstance(git, dict):
            changes = ", with local changes" if git.get("dirty") else ""
            values.setdefault("code", {})[f"{git.get('commit')}{changes}"] = None
        for key in ("host", "platform", "cpu_model", "physical_cores", "usable_cores"):
            if facts.get(key) is not None:
                values.setdefault(key.replace("_", " "), {})[str(facts[key])] = None
        for key in ("versions", "threads", "parent"):
            if isinstance(facts.get(key), dict):
                text = ", ".join(f"{name} {value}" for name, value in facts[key].items())
                values.setdefault(key, {})[text] = None
    values["SHA-256 of all run.json"] = {fingerprint(sweep.runs): None}
    return pd.DataFrame([{"": key, "value": "; ".join(texts)} for key, texts in values.items()])


def _values_of(sweep: Sweep, key: str) -> str:
    return ", ".join(str(value) for value in sorted(set(sweep.values(key)), key=groups.sort_key))


if __name__ == "__main__":
    raise SystemExit(main())
