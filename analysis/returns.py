"""Draws learning curves, or any column, over environment steps, iterations or a clock.

Each value of --by is a line: the mean over seeds with a 95% band (Student's t), or the
interquartile mean with a bootstrap band. Each environment has a panel. A line is thin where some of
its runs have no value; a sentence says where. On a clock a line has only the times at which all of
its runs have a value; core-seconds are the seconds of the wall clock multiplied by the number of
cores that a run could use.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, published, style
from walle.analysis.measuring import groups, scores, stats, wall_clock
from walle.analysis.runs import BadInputError, Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import counted, joined, listed

X_AXES = {
    "steps": ("env_steps", "environment steps"),
    "iterations": ("iteration", "iterations"),
    "wall": ("wall_s", "wall clock (s)"),
    "cores": ("core_s", "core-seconds"),
}
FLAGS = {
    "-x": {"choices": list(X_AXES), "default": "steps", "help": "(default: steps)"},
    "-y COLUMN": "a column, or eval for evaluations (default: eval between algorithms that have "
    f"evaluations, else {scores.TRAINING}: in training, over a window of the same steps)",
    "--iqm": "draw the interquartile mean",
    "--baseline": cli.BASELINE,
    "--paper": "mark the published returns",
    "--evaluations": "draw -y from evaluations, which have no exploration noise",
    "--compiling": cli.COMPILING,
}
GRID = 200  # points of a curve
EVALUATE_MORE = " (runs with a smaller eval.every have a curve)"
IQM_RUNS = 4


class Line(NamedTuple):
    """One line of one panel."""

    task: str
    label: labels.Label
    runs: int
    seeds: int  # different ones
    curve: pd.DataFrame
    reach: tuple[float, float]  # the lowest and the highest value of a single run

    @property
    def complete(self) -> pd.Series[bool]:
        """[points] whether every run has a value."""
        return self.curve["runs"] == self.runs


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
    if x != "steps" and (paper or evaluations or y == "eval"):
        what = "--paper: published returns are" if paper else "evaluations are drawn"
        raise BadInputError(f"{what} by environment steps, not -x {x}")
    by = groups.resolve_key(sweep, by) if by else groups.axis_of(sweep)
    column, label = X_AXES[x]
    texts = []
    if y is None and not evaluations and x == "steps":
        texts = scores.evaluations_first([sweep] if baseline is None else [sweep, baseline])
    evaluations = evaluations or y == "eval" or bool(texts)
    file, ended = ("eval", "evaluation") if evaluations else ("iterations", "episode")
    y = ("return_mean" if evaluations else scores.TRAINING) if y in (None, "eval") else y
    lines: list[Line] = []
    for runs, key in ((sweep, by), (baseline, None)):
        if runs is not None:
            frame = runs.evaluations if evaluations else wall_clock.clock(runs, compiling=compiling)
            if y == scores.TRAINING:
                frame = scores.with_training(runs, frame)
            if evaluations and frame.empty:
                text = f"no run of {runs.name} has an evaluation: draw the returns in training"
                raise BadInputError(f"{text} (-y {scores.TRAINING})")
            groups.require(frame, column, y, file=file)
            if not pd.api.types.is_numeric_dtype(frame[y]):
                raise BadInputError(f"-y {y}: no numbers are in this column; name another")
            mine = _lines(runs, key, frame, column, y, iqm=iqm)
            if not mine:
                why = f": no run has ended an {ended} yet" if "return" in y or "length" in y else ""
                if y == scores.TRAINING:
                    why = ": too few episodes have ended; type -y eval or -y return_mean"
                raise BadInputError(f"{y} is empty in every run{why}")
            lines += mine
    tasks = list(dict.fromkeys(line.task for line in lines))
    figure, (axes,) = labels.axes_of(tasks)
    names = dict.fromkeys(line.label.text for line in lines)
    behind = [name for name in names if name.startswith(labels.BASELINE)]
    looks = labels.looks(name for name in names if name not in behind)
    for name, look in labels.looks(behind).items():
        looks[name] = look._replace(color=style.PAPER_GREY)
    for area, task in zip(axes, tasks, strict=True):
        mine = [line for line in lines if line.task == task]
        for line in mine:  # thin where some runs have no value; one value is a point
            xs, ys, low, high = (line.curve[key].to_numpy() for key in ("x", "y", "low", "high"))
            look, repeats = looks[line.label.text], groups.repeats_text(line.runs, line.seeds)
            name = f"{line.label.text or 'mean'} ({repeats})"
            if len(xs) == 1:
                area.plot(xs, ys, look.marker, color=look.color, label=name)
                area.vlines(xs, low, high, color=look.color)
                continue
            dash = {"color": look.color, "linestyle": look.dash}
            area.plot(xs, np.where(line.complete, ys, np.nan), label=name, **dash)
            area.plot(xs, np.where(line.complete, np.nan, ys), linewidth=0.5, **dash)
            area.fill_between(xs, low, high, color=look.color, alpha=0.2, linewidth=0)
        if paper and x == "steps":
            same_task = [run for run in sweep.runs if labels.task_of(run) == task]
            algorithms = {str(run.config.get("algo.name")) for run in same_task}
            rows, reach = published.returns(task, *algorithms), area.get_xlim()[1]
            if len(rows) and rows["env_steps"].min() > reach:
                sweep.note(f"Not drawn by --paper, as they lie beyond {reach:,.0f} steps: {task}")
            for i, (_, row) in enumerate(rows[rows["env_steps"] <= reach].iterrows()):
                name = f"{row['source']} {row['algorithm']} ({row['version']})"
                point, marker = row[["env_steps", "mean"]], style.MARKERS[i % len(style.MARKERS)]
                area.plot(*point, marker, color=style.PAPER_GREY, mfc="none", label=name)
        style.compact_axis(area)
        area.set_xlabel(label)
        # The axis ends a little beyond what single runs reached: bands do not set it, as the band
        # of two or three runs may be many times as wide as all their returns.
        drawn = [np.asarray(line.get_ydata(), float) for line in area.get_lines()]
        values = np.concatenate([np.ravel([line.reach for line in mine]), *drawn])
        bottom, top = float(np.nanmin(values)), float(np.nanmax(values))
        margin = 0.08 * (top - bottom) or 1.0
        area.set_ylim(bottom - margin, top + margin)
    for area in axes[:: labels.PANELS]:
        area.set_ylabel(labels.of_column(file, y))
    style.legend(figure)
    points = []
    for line in lines:
        frame = line.curve.set_axis([column, y, f"{y}_low", f"{y}_high", "runs"], axis=1)
        frame.insert(0, "task", line.task)
        frame.insert(1, "line", line.label.text)
        points.append(frame.loc[:, ~frame.columns.duplicated()])  # x and y may be one column
    # The last of the points at which most runs have a value; over steps, this point of the shortest
    # line.
    full = [p[p["runs"] == p["runs"].max()] for p in points]
    ends = pd.concat(full).groupby(["task", "line"])[column].max().groupby("task").min()
    at = [ends[p["task"].iloc[0]] if x == "steps" else p[column].max() for p in full]
    last = [p.iloc[[abs(p[column] - end).argmin()]] for p, end in zip(full, at, strict=True)]
    table = pd.concat(last, ignore_index=True)
    table.insert(2, "runs", table.pop("runs"))
    texts += _sentences(lines, label, iqm=iqm, evaluations=evaluations)
    texts += sentences.also_differ(sweep, by)
    table = sentences.without_lone_line(table)
    return cli.Study(figure, table, texts, pd.concat(points, ignore_index=True))


main = cli.command("returns", study, __doc__, FLAGS)


def _lines(
    sweep: Sweep, by: str | None, frame: pd.DataFrame, x: str, y: str, *, iqm: bool
) -> list[Line]:
    """The lines of a figure over `by`; if it is None, the lines of a baseline."""
    lines, endless = [], np.isinf(frame[y]) & frame["run"].isin([run.name for run in sweep.runs])
    if endless.any():
        sweep.note(f"{counted(int(endless.sum()), 'row')} not drawn, as {y} is infinite there")
        frame = frame[~endless]
    if x.endswith("_s"):
        named = labels.groups(sweep, by, sweep.learning)
    else:
        named = labels.merged(sweep, by, frame, y)
    for (task, label), runs in named.items():
        rows = frame[frame["run"].isin(runs) & frame[y].notna()]
        if empty := [run for run in runs if run not in set(rows["run"])]:
            sweep.note(f"Not drawn, as {y} is empty in every row: {listed(empty)}")
        if len(rows):
            grid = common_grid(rows, x, y)
            values = on_grid(rows, x, y, grid)
            full = ~np.isnan(values).any(axis=0)
            if x.endswith("_s") and full.any():  # a mean over only the slower runs would jump
                grid, values = grid[full], values[:, full]
            ends = scores.possible_values(y, [run for run in sweep.runs if run.name in runs])
            mean = curve(grid, values, iqm=iqm, within=ends)
            reach = float(np.nanmin(values)), float(np.nanmax(values))
            lines.append(Line(task, label, len(values), rows["seed"].nunique(), mean, reach))
    return lines


def _sentences(lines: list[Line], label: str, *, iqm: bool, evaluations: bool) -> list[str]:
    texts = []
    tasks = {line.task for line in lines}
    named = []
    for line in lines:
        several = len(tasks) > 1 or not line.label.text
        named.append((joined((line.task if several else "", line.label.text)), line))
    ends = []
    for name, line in named:
        if not line.complete.all():
            whole, runs = line.curve["x"][line.complete], line.curve["runs"].iloc[-1]
            where = f"after {whole.max():,.5g}" if len(whole) else "everywhere"
            ends.append(f"{name} {where} ({runs} of {line.runs} runs at the end)")
    if ends:
        text = f"Lines are thin where some of their runs have no value ({label})"
        texts.append(f"{text}: {'; '.join(ends)}.")
    if few := [name for name, line in named if line.runs < 3]:
        texts.append(f"Lines of one or two runs have no band: {listed(few, joint='; ')}.")
    if points := [name for name, line in named if len(line.curve) == 1]:
        more = EVALUATE_MORE if evaluations else ""
        texts.append(f"Points, as their runs have one value: {listed(points, joint='; ')}{more}.")
    if iqm and any(line.runs < IQM_RUNS for line in lines):
        texts.append(
            f"With fewer than {IQM_RUNS} runs no quarter can be left out: "
            "the interquartile mean is the mean."
        )
    as_one: dict[labels.Label, list[str]] = {}
    for line in lines:
        as_one.setdefault(line.label, []).append(line.task)
    same = [
        f"{of.text or listed(where)} ({'; '.join(of.same)})"
        + (f" on {listed(where)}" if of.text and set(where) != tasks else "")
        for of, where in as_one.items()
        if of.same
    ]
    if same:
        texts.append(f"Identical, so drawn as one line, with one run a seed: {', '.join(same)}.")
    return texts


def on_grid(rows: pd.DataFrame, x: str, y: str, grid: stats.FloatArray) -> stats.FloatArray:
    """[runs, points]: each run interpolated linearly, nan before its first row, after its last."""
    curves = []
    ordered = rows.dropna(subset=[x, y]).sort_values(x, kind="stable")
    for _, run in ordered.groupby("run", observed=True):
        curves.append(np.interp(grid, run[x], run[y], left=np.nan, right=np.nan))
    return np.array(curves).reshape(len(curves), grid.size)


def common_grid(rows: pd.DataFrame, x: str, y: str, points: int = GRID) -> stats.FloatArray:
    """[points]: evenly spaced from the latest start of a run to the latest end.

    If a run ends before another starts, as can happen on the wall clock, the grid begins at the
    earliest start. Runs with one value each, at the same x, have one point.
    """
    spans = rows.dropna(subset=[x, y]).groupby("run", observed=True)[x].agg(["min", "max"])
    start, end = float(spans["min"].max()), float(spans["max"].max())
    if start > spans["max"].min():
        start = float(spans["min"].min())
    return np.unique(np.linspace(start, end, points))


def curve(
    grid: stats.FloatArray,
    values: stats.FloatArray,
    *,
    iqm: bool = False,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> pd.DataFrame:
    """The curve of [runs, points] values; each point is over the runs that have a value there.

    `x` is the grid, `y` the mean or interquartile mean, `runs` the number of runs. The band from
    `low` to `high` is Student's t of the mean; for the interquartile mean it is a bootstrap over
    whole runs, with one resample for all points. The band is cut to the possible values, `within`.
    """
    there, (y, low, high) = ~np.isnan(values), np.full((3, grid.size), np.nan)
    change = np.flatnonzero((there[:, 1:] != there[:, :-1]).any(axis=0)) + 1
    for here in np.split(np.arange(grid.size), change):  # in each part the same runs have values
        some = values[there[:, here[0]]][:, here] if here.size else values[:0]
        if len(some) and iqm:
            picks = stats.generator().integers(0, len(some), (stats.DRAWS, len(some)))
            draws = np.stack([stats.iqm(some[pick], axis=0) for pick in picks])
            y[here] = stats.iqm(some, axis=0)
            low[here], high[here] = stats.interval_bounds(draws, len(some))
        elif len(some):
            y[here] = some.mean(axis=0)
            low[here], high[here] = stats.mean_bounds(some)
    low, high = np.minimum(np.clip(low, *within), y), np.maximum(np.clip(high, *within), y)
    runs = there.sum(axis=0)
    return pd.DataFrame({"x": grid, "y": y, "low": low, "high": high, "runs": runs})


if __name__ == "__main__":
    raise SystemExit(main())
