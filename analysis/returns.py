"""Draws learning curves over environment steps, iterations or wall clock.

Each value of --by is a line: the mean over seeds with a 95% band (Student's t), or the
interquartile mean with a bootstrap band. Each environment has a panel. A line is thin where some of
its runs have no value; a sentence says where. On the wall clock a line has only the times at which
all of its runs have a value.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from walle.analysis.drawing import labels, published, style
from walle.analysis.drawing.labels import BASELINE, Label
from walle.analysis.loading.directories import BadInputError
from walle.analysis.measuring import scores, stats
from walle.analysis.measuring.groups import axis_of, repeats_text, require, resolve_key
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.measuring.wall_clock import clock
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import joined, listed

X_AXES = {
    "steps": ("env_steps", "environment steps"),
    "iterations": ("iteration", "iterations"),
    "wall": ("wall_s", "wall clock (s)"),
}
FLAGS = {
    "-x": {"choices": list(X_AXES), "default": "steps", "help": "(default: steps)"},
    "-y": {
        "metavar": "COLUMN",
        "help": "a column, or eval for evaluations (default: eval between algorithms that have "
        "evaluations, else return_mean)",
    },
    "--iqm": "draw the interquartile mean",
    "--baseline": cli.BASELINE,
    "--paper": "mark the published returns",
    "--evaluations": "draw -y from evaluations, which have no exploration noise",
    "--compiling": cli.COMPILING,
}
GRID = 200  # points of a curve
EVALUATE_MORE = " (runs with a smaller eval.every have a curve)"
IQM_RUNS = 4


class Curve(NamedTuple):
    """One line of a figure."""

    x: FloatArray  # [points] the common grid
    # [points] mean or interquartile mean over the runs that have a value at the point; nan where no
    # run has one
    y: FloatArray
    # [points] lower end of the 95% interval; nan where fewer than two runs have a value
    low: FloatArray
    high: FloatArray  # [points] upper end of the interval
    runs: npt.NDArray[np.int64]  # [points] the number of runs that have a value
    total: int  # the number of runs

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """[points] whether every run has a value."""
        return np.asarray(self.runs == self.total)


class Line(NamedTuple):
    """One line of one panel."""

    task: str
    label: Label
    runs: int
    seeds: int  # different ones
    curve: Curve
    reach: tuple[float, float]  # the lowest and the highest value of a single run


def study(
    sweep: Sweep,
    *,
    by: str | None = None,
    x: str = "steps",
    y: str | None = None,
    iqm: bool = False,
    baseline: Sweep | None = None,
    paper: bool = False,
    evaluations: bool = False,
    compiling: bool = False,
) -> cli.Study:
    """Learning curves with bands."""
    by = resolve_key(sweep, by) if by else axis_of(sweep)
    column, label = X_AXES[x]
    texts = []
    if y is None and not evaluations and x == "steps":
        texts = scores.evaluations_first([sweep] if baseline is None else [sweep, baseline])
    evaluations = evaluations or y == "eval" or bool(texts)
    y = "return_mean" if y is None or y == "eval" else y
    how = {"iqm": iqm, "evaluations": evaluations, "compiling": compiling}
    found = _lines(sweep, by, column, y, **how)
    if baseline is not None:
        found += _lines(baseline, None, column, y, **how)
    tasks = list(dict.fromkeys(line.task for line in found))
    figure, axes = style.panels(len(tasks), height=2.5)
    looks = _looks(found)
    for area, task in zip(axes, tasks, strict=True):
        _draw(area, [line for line in found if line.task == task], looks)
        if paper and x == "steps":
            _draw_published(area, sweep, task)
        area.set_title(task if len(tasks) > 1 else "")
        style.compact_axis(area)
        area.set_xlabel(label)
        _limit(area, [line.reach for line in found if line.task == task])
    for area in axes[:: labels.PANELS]:
        area.set_ylabel(labels.of_column("eval" if evaluations else "iterations", y))
    style.legend(figure)
    points = [
        pd.DataFrame(
            {"task": line.task, "line": line.label.text, column: line.curve.x, y: line.curve.y}
            | {f"{y}_low": line.curve.low, f"{y}_high": line.curve.high, "runs": line.curve.runs}
        )
        for line in found
    ]
    columns = ["task", "line", "runs", column, y, f"{y}_low", f"{y}_high"]
    # The last of the points at which most runs have a value.
    last = [p.iloc[np.flatnonzero(p["runs"] == p["runs"].max())[-1:]] for p in points]
    table = sentences.without_lone_line(pd.concat(last, ignore_index=True)[columns])
    texts += _sentences(found, label, iqm=iqm, evaluations=evaluations)
    texts += sentences.also_differ(sweep, by)
    return cli.Study(figure, table, texts, pd.concat(points, ignore_index=True))


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser(__doc__, FLAGS)
    args = parser.parse_args(argv)
    if args.paper and args.x != "steps":
        parser.error(f"--paper: published returns are by environment steps, not -x {args.x}")
    if (args.evaluations or args.y == "eval") and args.x != "steps":
        parser.error(f"evaluations are drawn by environment steps, not -x {args.x}")
    return cli.run(args, "returns", study)


def _lines(
    sweep: Sweep,
    by: str | None,
    x: str,
    y: str,
    *,
    iqm: bool,
    evaluations: bool,
    compiling: bool,
) -> list[Line]:
    """The lines of a figure over `by`; without `by` the lines of a baseline."""
    frame = sweep.evaluations if evaluations else clock(sweep, compiling=compiling)
    require(frame, x, y, file="eval" if evaluations else "iterations")
    lines = []
    groups = labels.groups(sweep, by)
    if x != "wall_s":
        groups = labels.merged(sweep, groups, frame, y)
    for (task, label), runs in groups.items():
        rows = frame[frame["run"].isin(runs) & frame[y].notna()]
        if empty := [run for run in runs if run not in set(rows["run"])]:
            sweep.note(f"Not drawn, as {y} is empty in every row: {listed(empty)}")
        if len(rows):
            grid = common_grid(rows, x, y)
            values = on_grid(rows, x, y, grid)
            full = ~np.isnan(values).any(axis=0)
            if x == "wall_s" and full.any():  # a mean over the slower runs alone would jump
                grid, values = grid[full], values[:, full]
            seeds = rows["seed"].nunique()
            reach = float(np.nanmin(values)), float(np.nanmax(values))
            ends = scores.possible_values(y, [run for run in sweep.runs if run.name in runs])
            mean = curve(grid, values, iqm=iqm, within=ends)
            lines.append(Line(task, label, len(values), seeds, mean, reach))
    if not lines:
        what = "evaluation" if evaluations else "episode"
        raise BadInputError(f"{y} is empty in every run: no {what} has ended yet")
    return lines


def _looks(lines: list[Line]) -> dict[str, style.Look]:
    """A look for every label, which is the same in all panels."""
    texts = list(dict.fromkeys(line.label.text for line in lines))
    behind = [text for text in texts if text.startswith(BASELINE)]
    looks = {text: style.look(i) for i, text in enumerate(t for t in texts if t not in behind)}
    grey = style.PAPER_GREY
    return looks | {b: style.look(i)._replace(color=grey) for i, b in enumerate(behind)}


def _draw(axes: style.Axes, lines: list[Line], looks: dict[str, style.Look]) -> None:
    """Each line with its band, thin where some runs have no value; one value is a point."""
    for line in lines:
        found, look = line.curve, looks[line.label.text]
        label = f"{line.label.text or 'mean'} ({repeats_text(line.runs, line.seeds)})"
        if len(found.x) == 1:
            axes.plot(found.x, found.y, look.marker, color=look.color, label=label)
            axes.vlines(found.x, found.low, found.high, color=look.color)
            continue
        dash = {"color": look.color, "linestyle": look.dash}
        axes.plot(found.x, np.where(found.complete, found.y, np.nan), label=label, **dash)
        axes.plot(found.x, np.where(found.complete, np.nan, found.y), linewidth=0.5, **dash)
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
        sweep.note(f"Not drawn by --paper, as they lie beyond {reach:,.0f} steps: {task}")
    rows = rows[rows["env_steps"] <= reach]
    for i, (_, row) in enumerate(rows.iterrows()):
        label = f"{row['source']} {row['algorithm']} ({row['version']})"
        marker = style.MARKERS[i % len(style.MARKERS)]
        place = row["env_steps"], row["mean"]
        axes.plot(*place, marker, color=style.PAPER_GREY, markerfacecolor="none", label=label)


def _sentences(lines: list[Line], label: str, *, iqm: bool, evaluations: bool) -> list[str]:
    texts = []
    several = len({line.task for line in lines}) > 1

    def name(line: Line) -> str:
        text = line.label.text
        return joined((line.task, text) if several or not text else (text,))

    if short := [line for line in lines if not line.curve.complete.all()]:
        ends = []
        for line in short:
            whole, runs = line.curve.x[line.curve.complete], line.curve.runs[-1]
            where = f"after {whole.max():,.5g}" if whole.size else "everywhere"
            ends.append(f"{name(line)} {where} ({runs} of {line.runs} runs at the end)")
        text = f"Lines are thin where some of their runs have no value ({label})"
        texts.append(f"{text}: {'; '.join(ends)}.")
    if alone := [name(line) for line in lines if line.runs == 1]:
        texts.append(f"Lines of one run have no band: {listed(alone, joint='; ')}.")
    if points := [name(line) for line in lines if len(line.curve.x) == 1]:
        more = EVALUATE_MORE if evaluations else ""
        texts.append(f"Points, as their runs have one value: {listed(points, joint='; ')}{more}.")
    if iqm and any(line.runs < IQM_RUNS for line in lines):
        texts.append(
            f"With fewer than {IQM_RUNS} runs no quarter can be left out: "
            "the interquartile mean is the mean."
        )
    one: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for line in lines:
        if line.label.same:
            one.setdefault((line.label.text, line.label.same), []).append(line.task)
    same = []
    for (text, of), tasks in one.items():
        everywhere = set(tasks) == {line.task for line in lines}
        where = "" if everywhere or not text else f" on {listed(tasks)}"
        same.append(f"{text or listed(tasks)} ({'; '.join(of)}){where}")
    if same:
        texts.append(f"Identical, so drawn as one line, with one run a seed: {', '.join(same)}.")
    return texts


def on_grid(rows: pd.DataFrame, x: str, y: str, grid: FloatArray) -> FloatArray:
    """[runs, points]: each run interpolated linearly, nan before its first row, after its last."""
    curves = []
    for _, run in rows.dropna(subset=[x, y]).groupby("run", observed=True):
        at, value = run[x].to_numpy(float), run[y].to_numpy(float)
        order = np.argsort(at, kind="stable")
        curves.append(np.interp(grid, at[order], value[order], left=np.nan, right=np.nan))
    return np.array(curves).reshape(len(curves), grid.size)


def common_grid(rows: pd.DataFrame, x: str, y: str, points: int = GRID) -> FloatArray:
    """[points]: equal steps from where the last run starts to where the longest run ends.

    Where a run ends before another starts, as on the wall clock, the steps start where the first
    run starts. Runs with one value each, at the same x, have one point.
    """
    spans = rows.dropna(subset=[x, y]).groupby("run", observed=True)[x].agg(["min", "max"])
    begin, end = float(spans["min"].max()), float(spans["max"].max())
    if begin > spans["max"].min():
        begin = float(spans["min"].min())
    return np.unique(np.linspace(begin, end, points))


def curve(
    grid: FloatArray,
    values: FloatArray,
    *,
    iqm: bool = False,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> Curve:
    """The curve of [runs, points] values; each point is over the runs that have a value there.

    The band is Student's t of the mean; of the interquartile mean it is a bootstrap over whole
    runs, with one resample for all points. It ends at the values that are possible, `within`.
    """
    runs = (~np.isnan(values)).sum(axis=0)
    y, low, high = np.full((3, grid.size), np.nan)
    there = ~np.isnan(values)
    change = np.flatnonzero((there[:, 1:] != there[:, :-1]).any(axis=0)) + 1
    for here in np.split(np.arange(grid.size), change):  # the same runs have values
        some = values[there[:, here[0]]][:, here] if here.size else values[:0]
        if len(some) and iqm:
            picks = stats.generator().integers(0, len(some), (stats.DRAWS, len(some)))
            draws = np.stack([stats.iqm(some[pick], axis=0) for pick in picks])
            y[here] = stats.iqm(some, axis=0)
            low[here], high[here] = stats.interval_bounds(draws, len(some))
        elif len(some):
            y[here] = some.mean(axis=0)
            low[here], high[here] = stats.mean_bounds(some)
    return Curve(grid, y, np.clip(low, *within), np.clip(high, *within), runs, len(values))


if __name__ == "__main__":
    sys.exit(main())
