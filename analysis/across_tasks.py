"""Draws the interquartile mean and performance profiles over several environments.

Final returns (the mean of return_mean over the last tenth of a run) are scaled to scores for each
environment: 0 is the mean return at the start of its runs, 1 the best mean final return of any
value of --by. The left panel shows the interquartile mean of the scores of each value, the right
panel the share of runs with at least a score. Both have 95% bootstrap intervals, stratified by
environment.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np
import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.drawing.labels import task_of
from walle.analysis.loading.directories import BadInputError, Scalar
from walle.analysis.measuring import stats
from walle.analysis.measuring.cells import column_per_run
from walle.analysis.measuring.design import resolve_key, sort_key
from walle.analysis.measuring.scores import final_returns
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli

THRESHOLDS = np.linspace(0, 1.2, 121)


def study(sweep: Sweep, *, by: str = "sampler.n") -> cli.Study:
    """Interquartile means and performance profiles over all environments of the sweep."""
    by = resolve_key(sweep, by)
    tasks = sorted({task_of(run) for run in sweep.runs})
    if len(tasks) < 2:
        raise BadInputError(f"one environment only ({tasks[0]}): draw it with the script `returns`")
    found = score_matrices(sweep, by, tasks)
    if not found:
        raise BadInputError(f"no value of {by} has a finished episode in all of {len(tasks)} tasks")
    figure, (left, right) = style.panels(2, height=2.6)
    rows = []
    for i, (value, matrix) in enumerate(found.items()):
        draws = stats.stratified_draws(matrix, stats.iqm, stats.generator())
        bounds = stats.interval_bounds(draws, len(matrix))
        interval = stats.Interval(float(stats.iqm(matrix)), *bounds)
        style.point(left, i, interval, style.look(i))
        _draw_profile(right, matrix, f"{by} = {value}", style.look(i))
        row = {by: value, "runs_per_task": len(matrix), **interval.columns("iqm")}
        rows.append(row | {"mean": float(matrix.mean())})
    left.set_xticks(range(len(found)), [str(value) for value in found])
    left.set_xlim(-0.5, len(found) - 0.5)
    left.set_xlabel(by)
    left.set_ylabel("interquartile mean score")
    style.from_zero(left)
    right.set_xlabel("score")
    right.set_ylabel("runs with at least this score (%)")
    style.legend(figure)
    said = f"{len(tasks)} environments: {', '.join(tasks)}. Score 0 is the mean return with which "
    said += f"an environment's runs begin, score 1 the best mean final return of any {by}."
    return cli.Study(figure, pd.DataFrame(rows), [said])


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__).parse_args(argv)
    return cli.run(args, "across_tasks", study, ("by",))


def score_matrices(sweep: Sweep, by: str, tasks: list[str]) -> dict[Scalar, FloatArray]:
    """[runs, tasks] of scores for each value of `by` with a finished episode in every task.

    Where a task has more runs than another, its further runs are left out and noted.
    """
    finals = {run: float(r.mean()) for run, r in final_returns(sweep.iterations).items()}
    per_run = column_per_run(sweep.iterations, "return_mean")
    starts = {run: float(r[0]) for run, r in per_run.items()}
    values = sorted(set(sweep.values(by)), key=sort_key)
    groups: dict[tuple[Scalar, str], list[str]] = defaultdict(list)
    for run, value in zip(sweep.runs, sweep.values(by), strict=True):
        if run.name in finals:
            groups[value, task_of(run)].append(run.name)
    found = {}
    for value in values:
        columns = []
        fewest = min(len(groups[value, task]) for task in tasks)
        if not fewest:
            sweep.note(f"Not drawn, as a task has no finished episode: {by}={value}")
            continue
        for task in tasks:
            low, high = _scale([groups[v, task] for v in values], starts, finals)
            names = groups[value, task][:fewest]
            columns.append([(finals[name] - low) / (high - low) for name in names])
            if len(groups[value, task]) > fewest:
                sweep.note(
                    f"{by}={value}: {task} has more runs than another task; {fewest} of its runs "
                    "are used"
                )
        found[value] = np.array(columns, float).T
    return found


def _scale(
    groups: list[list[str]], starts: dict[str, float], finals: dict[str, float]
) -> tuple[float, float]:
    """The returns of a task at score 0 and at score 1."""
    low = float(np.mean([starts[name] for names in groups for name in names]))
    high = max(float(np.mean([finals[name] for name in names])) for names in groups if names)
    return low, high if high > low else low + 1.0


def profile(matrix: FloatArray) -> FloatArray:
    """[thresholds]: the percentage of all entries that are at least the threshold."""
    return np.asarray(100 * (matrix.ravel()[:, None] >= THRESHOLDS).mean(axis=0))


def _draw_profile(axes: style.Axes, matrix: FloatArray, name: str, look: style.Look) -> None:
    draws = stats.stratified_draws(matrix, profile, stats.generator())
    low, high = np.clip(stats.band_bounds(draws, len(matrix)), 0, 100)
    label = f"{name} ({len(matrix)} seeds a task)"
    axes.plot(THRESHOLDS, profile(matrix), color=look.color, linestyle=look.dash, label=label)
    axes.fill_between(THRESHOLDS, low, high, color=look.color, alpha=0.2, linewidth=0)


if __name__ == "__main__":
    sys.exit(main())
