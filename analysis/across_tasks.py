"""Draws the interquartile mean and performance profiles over several environments.

Final returns (the mean of return_mean over the last tenth of a run; between algorithms the mean of
the evaluations there, if all runs have some) are scaled to scores for each environment: 0 is the
mean return of the first training episodes of its runs, 1 the best mean final return of any value of
--by. The left panel shows the interquartile mean of the scores of each value, the right
panel the share of runs with at least a score. Both have 95% bootstrap intervals, stratified by
environment, with the degrees of freedom of all environments together. Runs that differ in more than
--by, environment and seed, such as two algorithms, are entries of their own. An environment in
which no value ends above the start has no scores and is left out.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Container
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, style
from walle.analysis.drawing.labels import task_of
from walle.analysis.loading.directories import BadInputError, Scalar
from walle.analysis.measuring import stats
from walle.analysis.measuring.groups import column_per_run, design, learnt, line_keys, resolve_key
from walle.analysis.measuring.scores import evaluations_first, final_returns
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import counted, joined, listed

THRESHOLDS = np.linspace(0, 1.2, 121)
FLAGS = {
    "-y": {
        "choices": ("eval", "return_mean"),
        "help": "what a run reaches: evaluations or training returns (default: eval between "
        "algorithms that have evaluations, else return_mean)",
    },
}


def study(sweep: Sweep, *, by: str | None = None, y: str | None = None) -> cli.Study:
    """Interquartile means and performance profiles over all environments of the sweep."""
    first = [] if y else evaluations_first([sweep])
    y = y or ("eval" if first else "return_mean")
    keys = [key for key in line_keys(sweep, "") if not key.startswith("env.")]
    default = "sampler.n" if "sampler.n" in sweep.varying else next(iter(keys), "sampler.n")
    by = resolve_key(sweep, by) if by else default
    tasks = sorted({task_of(run) for run in sweep.runs})
    if len(tasks) < 2:
        raise BadInputError(f"one environment only ({tasks[0]}): draw it with the script `returns`")
    ends = _ends(sweep, y)
    tasks = _rising(sweep, by, tasks, ends)
    found = score_matrices(sweep, by, tasks, ends)
    if not found:
        raise BadInputError(f"no value of {by} has a finished episode in all of {len(tasks)} tasks")
    figure, (left, right) = style.panels(2, height=2.6)
    rows = []
    named = set(found) - {line for _, line in _parts(sweep, by)}  # entries that name a value of by
    heading = by if named else "entry"
    for i, (name, matrix) in enumerate(found.items()):
        draws = stats.stratified_draws(matrix, stats.iqm, stats.generator())
        bounds = stats.interval_bounds(draws, len(matrix), dof=_freedom(matrix))
        interval = stats.Interval(float(stats.iqm(matrix)), *map(float, bounds))
        dots = stats.iqm(matrix, axis=1) if len(matrix) > 1 else ()
        style.point(left, i, interval, style.look(i), dots=dots)
        profiles = stats.stratified_draws(matrix, profile, stats.generator())
        low, high = np.clip(stats.interval_bounds(profiles, len(matrix), _freedom(matrix)), 0, 100)
        look, label = style.look(i), f"{name} ({len(matrix)} seeds a task)"
        right.plot(THRESHOLDS, profile(matrix), color=look.color, linestyle=look.dash, label=label)
        right.fill_between(THRESHOLDS, low, high, color=look.color, alpha=0.2, linewidth=0)
        row = {heading: name, "runs_per_task": len(matrix), **interval.columns("iqm")}
        rows.append(row | {"mean": float(matrix.mean())})
    left.set_xticks(range(len(found)), list(found))
    left.set_xlim(-0.5, len(found) - 0.5)
    left.set_xlabel(by if named else "")
    left.set_ylabel("interquartile mean score")
    style.from_zero(left)
    right.set_xlabel("score")
    right.set_ylabel("runs with at least this score (%)")
    style.legend(figure)
    same = [name for name in found if name.endswith("identical")]
    texts = [
        f"{counted(len(tasks), 'environment')}: {', '.join(tasks)}. Score 0 is the mean return "
        "with which an environment's runs begin, score 1 the best mean final return of any entry.",
        *first,
        *([f"Identical, so drawn as one: {'. '.join(same)}."] if same else []),
        *sentences.also_differ(sweep, by),
    ]
    return cli.Study(figure, pd.DataFrame(rows), texts)


main = cli.command("across_tasks", study, __doc__, FLAGS)


class Ends(NamedTuple):
    """The first training return and the final return of each run that has both."""

    starts: dict[str, float]
    finals: dict[str, float]


def score_matrices(
    sweep: Sweep, by: str, tasks: list[str], ends: Ends | None = None
) -> dict[str, FloatArray]:
    """[runs, tasks] of scores for each entry of the figure with a finished episode in every task.

    An entry is a value of `by` and, where runs differ in more than that, the task and the seed,
    what else they differ in. Entries that learnt the same are one. Where a task has more runs than
    another, its further runs are left out and noted. Without `ends`, those of training count.
    """
    starts, finals = ends or _ends(sweep, "return_mean")
    groups = _entries(sweep, by, finals)
    found = {}
    for name, of_task in groups.items():
        fewest = min(len(of_task.get(task, ())) for task in tasks)
        if not fewest:
            sweep.note(f"Not drawn, as a task has no finished episode: {by}={name}")
            continue
        columns = []
        for task in tasks:
            low, high = _scale([runs.get(task, []) for runs in groups.values()], starts, finals)
            columns.append([(finals[run] - low) / (high - low) for run in of_task[task][:fewest]])
            if len(of_task[task]) > fewest:
                sweep.note(
                    f"For {by}={name}: {task} has more runs than another task; {fewest} of its "
                    "runs are used"
                )
        found[name] = np.array(columns, float).T
    return found


def _ends(sweep: Sweep, y: str) -> Ends:
    rows = sweep.evaluations if y == "eval" else sweep.iterations
    per_run = column_per_run(sweep.iterations, "return_mean")
    starts = {run: float(r[0]) for run, r in per_run.items()}
    finals = {run: float(r.mean()) for run, r in final_returns(rows).items() if run in starts}
    return Ends(starts, finals)


def _rising(sweep: Sweep, by: str, tasks: list[str], ends: Ends) -> list[str]:
    """The tasks with a score: some entry ends above the start; notes the others.

    Raises:
        BadInputError: there is no such task.
    """
    starts, finals = ends
    groups = _entries(sweep, by, finals)
    flat = []
    for task in tasks:
        runs = [of_task.get(task, []) for of_task in groups.values()]
        low, high = _scale(runs, starts, finals) if any(runs) else (0.0, 1.0)
        flat += [] if high > low else [task]
    if len(flat) == len(tasks):
        raise BadInputError("no score: in no task do the returns rise above those of the start")
    if flat:
        sweep.note(f"Left out, as no returns rise above those of the start: {listed(flat)}")
    return [task for task in tasks if task not in flat]


def _parts(sweep: Sweep, by: str) -> dict[tuple[str, str], list[str]]:
    """The runs of each value of `by`, '' where all share it, and of what else differs."""
    task_key = next(key for key in ("env.id", "env.name", "") if key in sweep.runs[0].config)
    found: dict[tuple[str, str], list[str]] = {}
    for run, value, line, _ in design(sweep, by, task_key).itertuples(index=False):
        own = str(value) if by in sweep.varying or not line else ""
        found.setdefault((own, line), []).append(run)
    return found


def _entries(sweep: Sweep, by: str, usable: Container[str]) -> dict[str, dict[str, list[str]]]:
    """The usable runs of each task, for every entry of the figure; identical entries are one."""
    tasks = {run.name: task_of(run) for run in sweep.runs}
    seeds = {run.name: run.config.get("seed", "") for run in sweep.runs}
    groups: dict[str, dict[str, list[str]]] = {}
    lines: dict[str, str] = {}
    for (value, line), runs in _parts(sweep, by).items():
        name = joined((value, line))
        of_task = groups.setdefault(name, defaultdict(list))
        lines[name] = line
        for run in runs:
            if run in usable:
                of_task[tasks[run]].append(run)
    rows = learnt(sweep.iterations, "return_mean")
    series: dict[str, dict[Scalar, FloatArray]] = {
        name: {f"{task} {seeds[run]}": rows[run] for task, runs in found.items() for run in runs}
        for name, found in groups.items()
    }
    entries = {}
    for names in labels.identical_groups(series):
        line = lines[names[0]]
        whole = names == [name for name in lines if lines[name] == line]  # at every value of `by`
        entries[line if line and whole else labels.identical_label(names)] = groups[names[0]]
    return entries


def _freedom(matrix: FloatArray) -> int:
    """Degrees of freedom of a spread that all tasks share: tasks x (runs - 1)."""
    runs, tasks = matrix.shape
    return int(tasks * (runs - 1))


def _scale(
    groups: list[list[str]], starts: dict[str, float], finals: dict[str, float]
) -> tuple[float, float]:
    """The returns of a task at score 0 and at score 1."""
    low = float(np.mean([starts[name] for names in groups for name in names]))
    high = max(float(np.mean([finals[name] for name in names])) for names in groups if names)
    return low, high


def profile(matrix: FloatArray) -> FloatArray:
    """[thresholds]: the percentage of all entries that are at least the threshold."""
    return np.asarray(100 * (matrix.ravel()[:, None] >= THRESHOLDS).mean(axis=0))


if __name__ == "__main__":
    sys.exit(main())
