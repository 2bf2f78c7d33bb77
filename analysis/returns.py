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

from walle.analysis.comparing.matching import WORKERS
from walle.analysis.drawing import labels, published, style
from walle.analysis.drawing.labels import Label
from walle.analysis.loading.directories import BadInputError, listed
from walle.analysis.measuring.cells import repeats_text, require
from walle.analysis.measuring.curves import Curve, common_grid, curve, on_grid
from walle.analysis.measuring.design import axis_of, resolve_key
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, words

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
    "--evaluations": "draw evaluations, which have no exploration noise",
}
IQM_RUNS = 4
PANELS = 3
BASELINE = "baseline"


class Line(NamedTuple):
    """One line of one panel; its curve is over `runs` runs with `seeds` different seeds.

    `reach` holds the lowest and the highest value of a single run.
    """

    task: str
    label: Label
    runs: int
    seeds: int
    curve: Curve
    reach: tuple[float, float]


def study(
    sweep: Sweep,
    *,
    by: str | None = None,
    x: str = "steps",
    y: str = "return_mean",
    iqm: bool = False,
    baseline: Sweep | None = None,
    paper: bool = False,
    evaluations: bool = False,
) -> cli.Study:
    """Learning curves with bands.

    Args:
        sweep: the runs.
        by: the configuration key that tells the lines apart; by default what varies.
        x: `steps`, `iterations` or `wall`.
        y: a column of iterations.csv.
        iqm: interquartile mean in place of the mean.
        baseline: further runs, drawn in grey with one line a task.
        paper: mark the published returns of each task (only with `steps`).
        evaluations: draw a column of eval.csv (only with `steps`).
    """
    by = resolve_key(sweep, by) if by else axis_of(sweep)
    column, label = X_AXES[x]
    found = _lines(sweep, by, column, y, iqm=iqm, evaluations=evaluations)
    if baseline is not None:
        found += _lines(baseline, None, column, y, iqm=iqm, evaluations=evaluations)
    tasks = list(dict.fromkeys(line.task for line in found))
    figure, axes = style.small_multiples(len(tasks), height=2.5, columns=PANELS)
    looks = _looks(found)
    for area, task in zip(axes, tasks, strict=True):
        _draw(area, [line for line in found if line.task == task], looks)
        if paper and x == "steps":
            _draw_published(area, sweep, task)
        area.set_title(task if len(tasks) > 1 else "")
        style.compact_axis(area)
        area.set_xlabel(label)
        _limit(area, [line.reach for line in found if line.task == task])
    for area in axes[::PANELS]:
        area.set_ylabel(labels.of_column("eval" if evaluations else "iterations", y))
    style.legend(figure)
    points = [_points(line, column, y) for line in found]
    columns = ["task", "line", "runs", column, y, f"{y}_low", f"{y}_high"]
    table = words.without_lone_line(pd.concat(map(_last, points), ignore_index=True)[columns])
    said = _sentences(found, label, iqm=iqm)
    return cli.Study(figure, table, said, pd.concat(points, ignore_index=True))


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser(__doc__, FLAGS, by=None)
    args = parser.parse_args(argv)
    if args.paper and args.x != "steps":
        parser.error(f"--paper: published returns are by environment steps, not -x {args.x}")
    if args.evaluations and args.x != "steps":
        parser.error(f"--evaluations: evaluations are drawn by environment steps, not -x {args.x}")
    options = ("by", "x", "y", "iqm", "baseline", "paper", "evaluations")
    return cli.run(args, "returns", study, options)


def _lines(
    sweep: Sweep, by: str | None, x: str, y: str, *, iqm: bool, evaluations: bool
) -> list[Line]:
    """The lines of a figure over `by`; without `by` a single line for each task."""
    frame = sweep.evaluations if evaluations else sweep.iterations
    require(frame, x, y, file="eval" if evaluations else "iterations")
    lines = []
    for (task, label), runs in _groups(sweep, by).items():
        rows = frame[frame["run"].isin(runs) & frame[y].notna()]
        if empty := [run for run in runs if run not in set(rows["run"])]:
            sweep.note(f"Not drawn, as {y} is empty in every row: {listed(empty)}")
        if len(rows):
            grid = common_grid(rows, x, y)
            values = on_grid(rows, x, y, grid)
            seeds = rows["seed"].nunique()
            reach = float(np.nanmin(values)), float(np.nanmax(values))
            mean = curve(grid, values, iqm=iqm)
            lines.append(Line(task, label, len(values), seeds, mean, reach))
    if not lines:
        what = "evaluation" if evaluations else "episode"
        raise BadInputError(f"{y} is empty in every run: no {what} has ended yet")
    return lines if by is None else _identical_as_one(lines, by, sweep)


def _groups(sweep: Sweep, by: str | None) -> dict[tuple[str, Label], list[str]]:
    """The names of the runs of each line, by task and label."""
    tasks = {run.name: labels.task_of(run) for run in sweep.runs}
    label_of = dict.fromkeys(tasks, Label(BASELINE)) if by is None else labels.of_runs(sweep, by)
    groups: dict[tuple[str, Label], list[str]] = {}
    for run, label in label_of.items():
        groups.setdefault((tasks[run], label), []).append(run)
    return groups


def _identical_as_one(lines: list[Line], by: str, sweep: Sweep) -> list[Line]:
    """One line for all values of `by` where they give identical curves, as all `sampler.n` do."""
    alike: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        alike.setdefault((line.task, line.label.others), []).append(line)
    several = [group for group in alike.values() if len(group) > 1]
    if not several or not all(_identical(group) for group in several):
        return lines
    values = labels.of_values(by, sweep.values(by))
    if by not in WORKERS:
        sweep.note(f"The lines are identical, so one hides the others: {values}")
        return lines
    sweep.note(f"Identical for all values, so drawn as one line: {values}")
    return [group[0]._replace(label=Label("", group[0].label.others)) for group in alike.values()]


def _identical(lines: list[Line]) -> bool:
    first, *others = lines
    return all(
        np.array_equal(mine, yours, equal_nan=True)
        for line in others
        for mine, yours in zip(line.curve[:4], first.curve[:4], strict=True)
    )


def _looks(lines: list[Line]) -> dict[str, style.Look]:
    """A look for every label, which is the same in all panels."""
    found = dict.fromkeys(line.label.text for line in lines if line.label.text != BASELINE)
    looks = {label: style.look(i) for i, label in enumerate(found)}
    looks[BASELINE] = style.look(0)._replace(color=style.PAPER_GREY)
    return looks


def _draw(axes: style.Axes, lines: list[Line], looks: dict[str, style.Look]) -> None:
    for line in lines:
        look, found = looks[line.label.text], line.curve
        label = f"{line.label.text or 'mean'} ({repeats_text(line.runs, line.seeds)})"
        whole = np.where(found.complete, found.y, np.nan)
        axes.plot(found.x, whole, color=look.color, linestyle=look.dash, label=label)
        partial = np.where(found.complete, np.nan, found.y)
        axes.plot(found.x, partial, color=look.color, linestyle=look.dash, linewidth=0.5)
        axes.fill_between(found.x, found.low, found.high, color=look.color, alpha=0.2, linewidth=0)


def _limit(axes: style.Axes, reaches: list[tuple[float, float]]) -> None:
    """Ends the axis a little beyond what single runs reached and the points: bands do not set it.

    The band of two or three runs may be many times as wide as all their returns.
    """
    drawn = [np.asarray(line.get_ydata(), float) for line in axes.get_lines()]
    values = np.concatenate([np.ravel(reaches), *drawn])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = 0.08 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _draw_published(axes: style.Axes, sweep: Sweep, task: str) -> None:
    algorithms = {
        str(run.config.get("algo.name", "")).split("_")[0].upper()
        for run in sweep.runs
        if labels.task_of(run) == task
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
        text = line.label.text
        parts = (line.task, text) if several or not text else (text,)
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
    return texts


def _short_end(line: Line) -> str:
    found = line.curve
    whole = found.x[found.complete]
    where = f"after {whole.max():,.5g}" if whole.size else "everywhere"
    return f"{where} ({found.runs[-1]} of {line.runs} runs at the end)"


def _points(line: Line, x: str, y: str) -> pd.DataFrame:
    """A row for each point of a line."""
    found = line.curve
    columns = {x: found.x, y: found.y, f"{y}_low": found.low, f"{y}_high": found.high}
    return pd.DataFrame({"task": line.task, "line": line.label.text, **columns, "runs": found.runs})


def _last(points: pd.DataFrame) -> pd.DataFrame:
    """The last of the points at which most runs have a value."""
    return points.iloc[np.flatnonzero(points["runs"] == points["runs"].max())[-1:]]


if __name__ == "__main__":
    sys.exit(main())
