"""Draws learning curves over environment steps, iterations or wall clock.

Each value of --by is a line: the mean (or interquartile mean) over seeds with a 95% bootstrap
band. Each environment has a panel. A line is thin where some of its runs have no value; a sentence
says where.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import published, style
from walle.analysis.loading.directories import BadInputError, Run, Scalar, listed
from walle.analysis.loading.repeats import identical_groups, identical_label
from walle.analysis.measuring.cells import learnt, repeats_text, require
from walle.analysis.measuring.clocks import clock
from walle.analysis.measuring.curves import Curve, common_grid, curve, on_grid
from walle.analysis.measuring.design import design, resolve_key
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli

X_AXES = {
    "steps": ("env_steps", "environment steps"),
    "iterations": ("iteration", "iterations"),
    "wall": ("wall_s", "wall clock (s)"),
}
FLAGS = {
    "-x": {"choices": list(X_AXES), "default": "steps", "help": "(default: steps)"},
    "-y": {"default": "return_mean", "metavar": "COLUMN", "help": "(default: return_mean)"},
    "--iqm": "draw the interquartile mean",
    "--baseline": cli.BASELINE,
    "--paper": "mark the published returns",
    "--compiling": cli.COMPILING,
}
IQM_RUNS = 4
BASELINE = "baseline"


class Line(NamedTuple):
    """One line of one panel; its curve is over `runs` runs with `seeds` different seeds."""

    task: str
    label: str
    runs: int
    seeds: int
    curve: Curve


def study(
    sweep: Sweep,
    *,
    by: str = "sampler.n",
    x: str = "steps",
    y: str = "return_mean",
    iqm: bool = False,
    baseline: Sweep | None = None,
    paper: bool = False,
    compiling: bool = False,
) -> cli.Study:
    """Learning curves with bands.

    Args:
        sweep: the runs.
        by: the configuration key that tells the lines apart.
        x: `steps`, `iterations` or `wall`.
        y: a column of iterations.csv.
        iqm: interquartile mean in place of the mean.
        baseline: further runs, drawn in grey with one line a task.
        paper: mark the published returns of each task (only with `steps`).
        compiling: count the compiler's time on the wall clock.
    """
    by = resolve_key(sweep, by)
    column, label = X_AXES[x]
    found = _lines(sweep, by, column, y, iqm=iqm, compiling=compiling)
    if baseline is not None:
        found += _lines(baseline, None, column, y, iqm=iqm, compiling=compiling)
    tasks = list(dict.fromkeys(line.task for line in found))
    figure, axes = style.small_multiples(len(tasks), height=2.5)
    looks = _looks(found)
    for area, task in zip(axes, tasks, strict=True):
        _draw(area, [line for line in found if line.task == task], looks)
        if paper and x == "steps":
            _draw_published(area, sweep, task)
        area.set_title(task if len(tasks) > 1 else "")
        style.compact_axis(area)
        area.set_xlabel(label)
        area.set_ylabel(y.replace("_", " "))
    style.legend(figure)
    points = [_points(line, column, y, by) for line in found]
    columns = ["task", by, "runs", column, y, f"{y}_low", f"{y}_high"]
    table = pd.concat(map(_last, points), ignore_index=True)[columns]
    said = _sentences(found, label, iqm=iqm)
    return cli.Study(figure, table, said, pd.concat(points, ignore_index=True))


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser(__doc__, FLAGS)
    args = parser.parse_args(argv)
    if args.paper and args.x != "steps":
        parser.error(f"--paper: published returns are by environment steps, not -x {args.x}")
    options = ("by", "x", "y", "iqm", "baseline", "paper", "compiling")
    return cli.run(args, "returns", study, options)


def task_of(run: Run) -> str:
    """The name of a run's environment."""
    return str(run.config.get("env.id", run.config.get("env.name", "")))


def _lines(
    sweep: Sweep, by: str | None, x: str, y: str, *, iqm: bool, compiling: bool
) -> list[Line]:
    """The lines of a figure over `by`; without `by` a single line for each task."""
    frame = clock(sweep, compiling=compiling)
    require(frame, x, y)
    lines = []
    groups = _groups(sweep, by)
    for (task, label), runs in (groups if x == "wall_s" else _merged(sweep, groups, y)).items():
        rows = frame[frame["run"].isin(runs) & frame[y].notna()]
        if empty := [run for run in runs if run not in set(rows["run"])]:
            sweep.note(f"Not drawn, as {y} is empty in every row: {listed(empty)}")
        if len(rows):
            grid = common_grid(rows, x, y)
            values = on_grid(rows, x, y, grid)
            seeds = rows["seed"].nunique()
            lines.append(Line(task, label, len(values), seeds, curve(grid, values, iqm=iqm)))
    if not lines:
        raise BadInputError(f"{y} is empty in every run: no episode has ended yet")
    return lines


def _groups(sweep: Sweep, by: str | None) -> dict[tuple[str, str], list[str]]:
    tasks = {run.name: task_of(run) for run in sweep.runs}
    rows = design(sweep, by or "seed").itertuples(index=False)
    if by is None:
        names = {run: _others(line, tasks[run]) for run, _, line, _ in rows}
        labels = {run: ", ".join([BASELINE, *others]) for run, others in names.items()}
    else:
        labels = {run: _label(by, value, line, tasks[run]) for run, value, line, _ in rows}
    groups: dict[tuple[str, str], list[str]] = {}
    for run, label in labels.items():
        groups.setdefault((tasks[run], label), []).append(run)
    return groups


def _label(by: str, value: Scalar, line: str, task: str) -> str:
    """The label of a line: the value of `by` and further differences, without the task."""
    others = _others(line, task)
    is_task = by.startswith("env.") and str(value) == task
    return ", ".join([*([] if is_task else [f"{by.split('.')[-1]} = {value}"]), *others])


def _others(line: str, task: str) -> list[str]:
    return [part for part in line.split(", ") if part and part != task]


def _merged(
    sweep: Sweep, groups: dict[tuple[str, str], list[str]], y: str
) -> dict[tuple[str, str], list[str]]:
    """The groups, with those of a task in one that learnt the same; of each seed one run counts."""
    rows = learnt(sweep.iterations, y)
    seeds = {run.name: run.config.get("seed", "") for run in sweep.runs}
    found = {}
    for task in dict.fromkeys(task for task, _ in groups):
        mine = {label: runs for (of, label), runs in groups.items() if of == task}
        series = {
            label: {seeds[run]: rows[run] for run in runs if run in rows}
            for label, runs in mine.items()
        }
        for labels in identical_groups(series):
            every = [run for label in labels for run in mine[label]]
            longest = sorted(every, key=lambda run: -len(rows.get(run, ())))
            one = {seeds[run]: run for run in reversed(longest)} if len(labels) > 1 else {}
            found[task, identical_label(labels)] = list(one.values()) or every
    return found


def _looks(lines: list[Line]) -> dict[str, style.Look]:
    """A look for every label, which is the same in all panels."""
    labels = list(dict.fromkeys(line.label for line in lines))
    labels.sort(key=lambda label: label.startswith(BASELINE))
    grey = style.PAPER_GREY
    behind = [label for label in labels if label.startswith(BASELINE)]
    looks = {label: style.look(i) for i, label in enumerate(labels) if label not in behind}
    return looks | {b: style.look(i)._replace(color=grey) for i, b in enumerate(behind)}


def _draw(axes: style.Axes, lines: list[Line], looks: dict[str, style.Look]) -> None:
    for line in lines:
        look, found = looks[line.label], line.curve
        label = f"{line.label or 'mean'} ({repeats_text(line.runs, line.seeds)})"
        whole = np.where(found.complete, found.y, np.nan)
        axes.plot(found.x, whole, color=look.color, linestyle=look.dash, label=label)
        partial = np.where(found.complete, np.nan, found.y)
        axes.plot(found.x, partial, color=look.color, linestyle=look.dash, linewidth=0.5)
        axes.fill_between(found.x, found.low, found.high, color=look.color, alpha=0.2, linewidth=0)


def _draw_published(axes: style.Axes, sweep: Sweep, task: str) -> None:
    algorithms = {
        str(run.config.get("algo.name", "")).split("_")[0].upper()
        for run in sweep.runs
        if task_of(run) == task
    }
    rows = published.returns(task.split("-")[0])
    rows = rows[rows["algorithm"].isin(algorithms)]
    reach = axes.get_xlim()[1]
    if len(rows) and rows["env_steps"].min() > reach:
        sweep.note(f"--paper: the published returns of {task} lie beyond {reach:,.0f} steps")
    rows = rows[rows["env_steps"] <= reach]
    for i, (_, row) in enumerate(rows.iterrows()):
        label = f"{row['source']} {row['algorithm']} ({row['version']})"
        marker = style.MARKERS[i % len(style.MARKERS)]
        place = row["env_steps"], row["mean"]
        axes.plot(*place, marker, color=style.PAPER_GREY, markerfacecolor="none", label=label)


def _sentences(lines: list[Line], label: str, *, iqm: bool) -> list[str]:
    texts = []
    several = len({line.task for line in lines}) > 1

    def name(line: Line) -> str:
        parts = (line.task, line.label) if several or not line.label else (line.label,)
        return ", ".join(part for part in parts if part)

    if short := [line for line in lines if not line.curve.complete.all()]:
        ends = "; ".join(f"{name(line)} {_short_end(line)}" for line in short)
        texts.append(f"Lines are thin where some of their runs have no value ({label}): {ends}.")
    if alone := [name(line) for line in lines if line.runs == 1]:
        texts.append(f"Lines of one run have no band: {'; '.join(alone)}.")
    if iqm and any(line.runs < IQM_RUNS for line in lines):
        texts.append(
            f"With fewer than {IQM_RUNS} runs no quarter can be left out: "
            "the interquartile mean is the mean."
        )
    if same := [name(line) for line in lines if line.label.endswith("identical")]:
        texts.append(f"Identical, so drawn as one line, with one run a seed: {'. '.join(same)}.")
    return texts


def _short_end(line: Line) -> str:
    found = line.curve
    whole = found.x[found.complete]
    where = f"after {whole.max():,.5g}" if whole.size else "everywhere"
    return f"{where} ({found.runs[-1]} of {line.runs} runs at the end)"


def _points(line: Line, x: str, y: str, by: str) -> pd.DataFrame:
    """A row for each point of a line."""
    found = line.curve
    columns = {x: found.x, y: found.y, f"{y}_low": found.low, f"{y}_high": found.high}
    return pd.DataFrame({"task": line.task, by: line.label, **columns, "runs": found.runs})


def _last(points: pd.DataFrame) -> pd.DataFrame:
    """The last of the points at which most runs have a value."""
    return points.iloc[np.flatnonzero(points["runs"] == points["runs"].max())[-1:]]


if __name__ == "__main__":
    sys.exit(main())
