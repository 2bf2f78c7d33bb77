"""Writes one HTML page of a sweep: the answer, an interactive panel, figures, caveats.

The page needs no network and no other file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from walle.analysis import compare, iteration_time, lag, speedup, time_percentage, timeline
from walle.analysis.drawing import labels
from walle.analysis.measuring import comparisons, groups, scores, stats, wall_clock
from walle.analysis.runs import LOCK_STEP, BadInputError, Sweep, fingerprint, load, newest
from walle.analysis.search import journal_of, write_page
from walle.analysis.writing import cli, page, panel, sentences
from walle.analysis.writing.format import counted, joined
from walle.system.locks import is_locked

Draw = Callable[[Sweep], cli.Study]
FLAGS = {
    "--paper": cli.PAPER,
    "--question TEXT": "the question of the sweep, a sentence",
    "--watch": "write the page again while the sweep runs; an open page follows",
}
LOCKS = ".*.lock"  # files that launchers, runs and searches hold locked while they work
RELOAD_S, SHARE = 20.0, 0.1  # of a watched page: the least pause, the most of a core's time


def sections(sweep: Sweep, by: str, *, warmup: int, paper: bool) -> dict[str, Draw]:
    """The functions that draw the figures: times come first in a sweep over workers, else returns.

    They raise BadInputError if the sweep has nothing to draw.
    """
    drawn: dict[str, Any] = {"by": by, "warmup": warmup}
    times, more = dict[str, Draw](), dict[str, Draw]()
    if by in sweep.varying:
        if by in comparisons.WORKERS:
            times["Speedup"] = partial(speedup.study, **drawn, end_to_end=True, paper=paper)
        times["Collection time"] = partial(iteration_time.study, **drawn, paper=paper)
        times["Learning time"] = partial(iteration_time.study, **drawn, paper=paper, of="learn")
    times["Where the time goes"] = partial(time_percentage.study, **drawn)
    with suppress(BadInputError):  # speedups compare numbers of workers
        key = by if by in sweep.varying and by not in comparisons.WORKERS else None
        sides = comparisons.question(sweep, key)
        if sides.key not in comparisons.WORKERS and not sides.key.startswith("env."):
            drawn = {"by": f"{sides.key}={sides.a},{sides.b}", "warmup": warmup}
            more["Comparison"] = partial(compare.study, **drawn)
    if any(run.mode != LOCK_STEP for run in sweep.runs):
        more["Policy lag"] = partial(lag.study, warmup=warmup)
    for run in timeline.traced(sweep):
        title = f"Timeline, max_lag {run.config.get('sampler.max_lag')}"
        times.setdefault(title, partial(timeline.study, run=run.name))
    return times | more if by in comparisons.WORKERS and by in sweep.varying else more | times


def build(
    sweep: Sweep,
    *,
    by: str | None = None,
    warmup: int = 1,
    paper: bool = False,
    title: str | None = None,
    question: str | None = None,
    home: Path | None = None,
    reload_s: float = 0,
) -> str:
    """The page as text."""
    by = groups.resolve_key(sweep, by) if by else groups.axis_of(sweep)
    about = [sentences.warmup_sentence(warmup), *sentences.machine(sweep)]
    written, draws = set(about), sections(sweep, by, warmup=warmup, paper=paper)
    figures = [page.figure(name, partial(draw, sweep), written) for name, draw in draws.items()]
    workers = by in comparisons.WORKERS and by in sweep.varying
    several = len(sweep.evaluations) > len(sweep.runs)  # else all evaluations are at the end
    y = f"{panel.EVALUATION}return_mean" if several else scores.TRAINING
    curves = panel.panel(sweep, by, "env_steps_per_s" if workers else y)
    figures.insert(workers, page.section("Curves", curves))
    # Quoted, a name is no scheme and no fragment of an address.
    links = {r.name: quote(os.fsencode(os.path.relpath(r.path, home))) for r in sweep.runs if home}
    # Drawing adds notes to the sweep, so the account comes after the figures.
    finals, texts = final_score_table(sweep, by)
    differs = [{"key": k, "values": _values_of(sweep, k)} for k in (*sweep.varying, "seed")]
    fixed = dict.fromkeys(key for run in sweep.runs for key in run.config if key != "seed")
    same = [{"key": k, "value": str(sweep.values(k)[0])} for k in fixed if k not in sweep.varying]
    tables = {
        "Configuration": pd.DataFrame(differs),
        "Every run": sweep.summary(),
        "Replaced processes": sweep.replacements(),
        "Provenance": _provenance(sweep),
        "Runs left out": pd.DataFrame(sweep.left_out, columns=["run", "reason"]),
    }
    parts = [
        page.paragraph(question or ask(sweep, by)),
        *(page.paragraph(text, "answer") for text in answers(sweep, by, warmup, finals)),
        *([page.table(finals, "Final scores") + page.sentences(texts)] * bool(len(finals))),
        *figures,
        *(page.section(t, page.table(x, t, links)) for t, x in tables.items() if len(x)),
        page.folded("The same in every run", page.table(pd.DataFrame(same), "same")),
        page.section("Caveats", page.sentences([*sentences.account(sweep), *about])),
    ]
    return page.document(title or sweep.name, parts, reload_s=reload_s)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, FLAGS, formats=(".html",)).parse_args(argv)
    return cli.guard("report", lambda: _watch(args) if args.watch else _write(args))


def _watch(args: argparse.Namespace) -> None:
    """Writes the page again and again while a process locks a directory of the runs."""
    os.nice(19)  # the runs come first
    args.sweep = args.sweep or [newest()]
    while any(is_locked(lock) for path in args.sweep for lock in path.rglob(LOCKS)):
        start = time.process_time()
        try:
            cli.guard("report", lambda: _write(args))  # at first no run may have an iteration
        except FileNotFoundError as error:  # a run was moved meanwhile
            print(f"report: {error}; retrying", file=sys.stderr)
        args.show = False  # the page reloads itself
        time.sleep(max(RELOAD_S, (time.process_time() - start) / SHARE))
    args.watch = False
    _write(args)


def _write(args: argparse.Namespace) -> None:
    path = args.sweep[0] if len(args.sweep) == 1 else None if args.sweep else newest()
    reload_s = RELOAD_S if args.watch else 0
    if path is not None and journal_of(path):
        path = write_page(path, args, reload_s)
    else:
        sweep = load(*args.sweep)
        path = args.output or sweep.paths[0] / "report.html"
        options = cli.given(args, "by", "warmup", "paper", "title", "question")
        text = build(sweep, **options, home=path.parent, reload_s=reload_s)
        cli.write_page(args, sweep, path, text, name="report")
    cli.open_viewer(args, "report", path.resolve().as_uri())


def ask(sweep: Sweep, by: str) -> str:
    """The question in words: the varying keys, the algorithm and task, the number of seeds."""
    keys = [key for key in (by, *groups.line_keys(sweep, by)) if key in sweep.varying]
    what = " and ".join(f"{key} ({_values_of(sweep, key)})" for key in keys)
    config = {key: str(v) for key, v in sweep.runs[0].config.items() if key not in keys}
    fixed = " on ".join(config[key] for key in ("algo.name", "env.id") if key in config)
    of = f" of {fixed}" if fixed else ""
    seeds = counted(len(set(sweep.values("seed"))), "seed")
    start, end = ("How do", f" depend on {what}") if keys else ("What are", "")
    return f"{start} the results{of}{end}? {seeds}."


def answers(sweep: Sweep, by: str, warmup: int, finals: pd.DataFrame) -> list[str]:
    """The answer: speedups of the most workers that the cores allow, or the best final scores."""
    texts: dict[str, list[str]] = {}
    if by in comparisons.WORKERS and by in sweep.varying:
        parts = {"iteration": "whole rounds", **iteration_time.PARTS}
        with suppress(BadInputError):  # no iteration counts
            iterations = wall_clock.iterations_after_warmup(sweep, warmup)
            for part in ("collect" if by == "sampler.n" else "learn", "iteration"):
                cells = wall_clock.measure_seconds(sweep, iterations, f"{part}_s", by)
                for line, mine in groups.lines(cells).items():
                    points = [point for point in speedup.speedups(mine) if point.n != point.base]
                    if not points:
                        continue
                    most = max(points, key=lambda point: (not point.cell.oversubscribed, point.n))
                    strained = "more busy processes than cores" * most.cell.oversubscribed
                    text = f"Speedup of {by}={most.n:g} over {by}={most.base:g}"
                    text = joined((text, line, strained))
                    texts.setdefault(text, []).append(f"{parts[part]} {most.speedup}")
    for task, rows in finals.groupby("task", sort=False) if not texts and len(finals) else ():
        column = "evaluation" if "evaluation" in rows.dropna(axis=1, how="all") else "training"
        ranked = [
            f"{stats.Interval(*row[[column, f'{column}_low', f'{column}_high']])}"
            f"{f' ({row.line})' if 'line' in row else ''}"
            for _, row in rows.sort_values(column, ascending=False).iterrows()
        ]
        text = "Final score" if len(ranked) == 1 else "Best final score"
        texts[f"{text} on {task}"] = [ranked[0], *(f"next {other}" for other in ranked[1:2])]
    return [f"{text}: {', '.join(of)}." for text, of in texts.items()]


def final_score_table(sweep: Sweep, by: str) -> tuple[pd.DataFrame, list[str]]:
    """A row for each task and label: the seeds, and mean scores with 95% intervals.

    Runs that learned identically count once. Also returns sentences about what the scores are. Both
    are empty if no episode has ended.
    """
    named = labels.merged(sweep, by, sweep.iterations, "return_mean", final=True)
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
                if len(values) < len(runs):
                    count = f"{len(values)} of {len(runs)} runs have a value"
                    texts[f"Column {column}, {task}: {sentences.of_line(label, count)}."] = None
            rows += [row] if len(row) > 3 else []
    table = pd.DataFrame(rows)
    several = len({label.text for _, label in named}) > 1
    return table if several or not rows else table.drop(columns="line"), list(texts)


def _provenance(sweep: Sweep) -> pd.DataFrame:
    """The machine and the code that the runs recorded; all values if runs differ."""
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
