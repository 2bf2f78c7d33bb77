"""Draws the interquartile mean and performance profiles over several environments.

Final returns (evaluations at the end, if all runs have one, else returns in training over the last
tenth of the steps) are scaled to scores for each environment: 0 is the mean return of the first
training episodes of its runs, 1 the best mean final return of any value of --by. The left panel
shows the interquartile mean of the scores of each value, the right panel shows the share of runs
with at least each score. Both have 95% bootstrap intervals, stratified by environment, with the
degrees of freedom of all environments together. Runs that differ in more than --by, environment and
seed, such as two algorithms, are separate entries. An environment in which no value of --by ends
above the start has no scores and is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, style
from walle.analysis.drawing.labels import task_of
from walle.analysis.measuring import groups, scores, stats
from walle.analysis.runs import BadInputError, Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import counted, joined, listed

FLAGS = {
    "-y": {
        "choices": ("eval", "training"),
        "help": "what a run reaches: its evaluation at the end or its return in training (default: "
        "eval, where all runs have one)",
    },
}


def study(sweep: Sweep, *, by: str | None = None, y: str | None = None) -> cli.Study:
    """Interquartile means and performance profiles over all environments of the sweep."""
    keys = [key for key in groups.line_keys(sweep, "") if not key.startswith("env.")]
    default = "sampler.n" if "sampler.n" in sweep.varying else next(iter(keys), "sampler.n")
    by = groups.resolve_key(sweep, by) if by else default
    tasks, matrices, source = score_matrices(sweep, by, y)
    named = set(matrices) - set(_design(sweep, by)["line"])  # entries that name a value of by
    figure, (left, right) = style.panels(2, height=2.6)
    thresholds = np.linspace(min(0, *map(np.min, matrices.values())), 1.2, 121)
    shares = partial(profile, thresholds=thresholds)
    rows = []
    for i, (name, matrix) in enumerate(matrices.items()):
        runs, spread = len(matrix), matrix.var(axis=0, ddof=min(1, len(matrix) - 1))
        dof = stats.satterthwaite(spread, np.full(len(tasks), runs - 1.0))
        draws = stats.stratified_draws(matrix, stats.iqm, stats.generator())
        bounds = stats.interval_bounds(draws, runs, dof=dof)
        interval = stats.Interval(float(stats.iqm(matrix)), *map(float, bounds))
        look, dots = style.look(i), stats.iqm(matrix, axis=1) if runs > 1 else ()
        style.point(left, i, interval, look, dots=dots)
        profiles = stats.stratified_draws(matrix, shares, stats.generator())
        low, high = np.clip(stats.interval_bounds(profiles, runs, dof), 0, 100)
        label = f"{name} ({runs} seeds a task)"
        right.plot(thresholds, shares(matrix), color=look.color, linestyle=look.dash, label=label)
        right.fill_between(thresholds, low, high, color=look.color, alpha=0.2, linewidth=0)
        row = {by if named else "entry": name, "runs_per_task": runs, **interval.columns("iqm")}
        rows.append(row | {"mean": float(matrix.mean())})
    left.set_xticks(range(len(matrices)), list(matrices))
    left.set_xlim(-0.5, len(matrices) - 0.5)
    left.set(xlabel=by if named else "", ylabel="interquartile mean score")
    style.from_zero(left)
    right.set(xlabel="score", ylabel="runs with at least this score (%)")
    style.legend(figure)
    same = [name for name in matrices if name.endswith("identical")]
    texts = [
        f"{counted(len(tasks), 'environment')}: {', '.join(tasks)}. Score 0 is the mean return "
        "with which an environment's runs begin, score 1 the best mean final return of any entry.",
        f"Final returns: {source}.",
        *([f"Identical, so drawn as one: {'. '.join(same)}."] if same else []),
        *sentences.also_differ(sweep, by),
    ]
    return cli.Study(figure, pd.DataFrame(rows), texts)


main = cli.command("across_tasks", study, __doc__, FLAGS)


def score_matrices(
    sweep: Sweep, by: str, y: str | None = None
) -> tuple[list[str], dict[str, stats.FloatArray], str]:
    """Tasks with scores; scores [runs, tasks] of entries with returns in every task; the source.

    An entry is a value of `by`, together with whatever else runs differ in besides the task and the
    seed. Entries that learnt the same are merged. If a task has more runs than another, its further
    runs are left out and noted.

    Raises BadInputError if the sweep has one task only, or no scores.
    """
    tasks = sorted({task_of(run) for run in sweep.runs})
    if len(tasks) < 2:
        raise BadInputError(f"one environment only ({tasks[0]}): draw it with the script `returns`")
    chosen = None if y is None else y == "eval"
    names = {t: {run.name for run in sweep.scored if task_of(run) == t} for t in tasks}
    found = scores.final_scores(sweep, names, evaluations=chosen)
    starts = scores.starts(sweep)
    finals = {run: x for each in found.values() for run, x in each.of.items() if run in starts}
    every, entries = _entries(sweep, by, finals), {}
    for name, of_task in every.items():
        if lacking := [task for task in tasks if not of_task.get(task)]:
            sweep.note(f"Not drawn, as it has no final return of {listed(lacking)}: {by}={name}")
        else:
            entries[name] = of_task
    if not entries:
        lacking = [task for task in tasks if not any(of.get(task) for of in every.values())]
        text = f"too few episodes have ended for returns of {listed(lacking or tasks)}"
        raise BadInputError(f"{text}: use more total_steps or fewer sampler.lanes")
    scales = {}  # the returns of each task at score 0 and at score 1
    for task in tasks:
        ended = [of_task[task] for of_task in entries.values()]
        low = float(np.mean([starts[run] for runs in ended for run in runs]))
        scales[task] = low, max(float(np.mean([finals[run] for run in runs])) for runs in ended)
    flat = [task for task, (low, high) in scales.items() if high <= low]
    if len(flat) == len(tasks):
        raise BadInputError("no score: in no task do the returns rise above those of the start")
    if flat:
        sweep.note(f"Left out, as no returns rise above those of the start: {listed(flat)}")
    tasks = [task for task in tasks if task not in flat]
    matrices = {}
    for name, of_task in entries.items():
        fewest, columns = min(len(of_task[task]) for task in tasks), []
        for task in tasks:
            low, high = scales[task]
            columns.append([(finals[run] - low) / (high - low) for run in of_task[task][:fewest]])
            if len(of_task[task]) > fewest:
                sweep.note(
                    f"For {by}={name}: {task} has more runs than another task; {fewest} of its "
                    "runs are used"
                )
        matrices[name] = np.array(columns, float).T
    return tasks, matrices, "; ".join(dict.fromkeys(each.source for each in found.values()))


def _design(sweep: Sweep, by: str) -> pd.DataFrame:
    task_key = next(key for key in ("env.id", "env.name", "") if key in sweep.runs[0].config)
    return groups.design(sweep, by, task_key)


def _entries(sweep: Sweep, by: str, usable: Container[str]) -> dict[str, dict[str, list[str]]]:
    """The usable runs of each task, for every entry of the figure; identical ones are merged."""
    tasks = {run.name: task_of(run) for run in sweep.runs}
    named: dict[str, dict[str, list[str]]] = {}
    lines: dict[str, str] = {}
    for run, value, line, _ in _design(sweep, by).itertuples(index=False):
        name = joined((str(value) if by in sweep.varying or not line else "", line))
        lines[name] = line
        of_task = named.setdefault(name, defaultdict(list))
        if run in usable:
            of_task[tasks[run]].append(run)
    runs_of = {name: chain.from_iterable(of_task.values()) for name, of_task in named.items()}
    entries = {}
    learnt = ["env_steps", "return_mean"]
    for names in labels.learnt_alike(sweep, sweep.iterations, learnt, runs_of, whole=True):
        line = lines[names[0]]
        whole = names == [name for name in lines if lines[name] == line]  # at every value of `by`
        entry = named[names[0]]
        if len(names) > 1:
            for task in {*tasks.values()}:
                every = chain(*(named[name][task] for name in names))
                entry[task] = labels.one_per_seed(sweep, sweep.iterations, every)
        entries[line if line and whole else labels.identical_label(names)] = entry
    return entries


def profile(matrix: stats.FloatArray, thresholds: stats.FloatArray) -> stats.FloatArray:
    """[thresholds]: the percentage of all scores that are at least the threshold."""
    return np.asarray(100 * (matrix.ravel()[:, None] >= thresholds).mean(axis=0))


if __name__ == "__main__":
    raise SystemExit(main())
