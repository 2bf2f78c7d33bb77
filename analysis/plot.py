"""Draws any columns of a file against any other, for one run or many.

    python analysis/plot.py -y kl entropy                 every run of the newest sweep
    python analysis/plot.py RUN -x wall_s -y return --file episodes --points
    python analysis/plot.py SWEEP -y update_s --file timing --where process=agent
    python analysis/plot.py SWEEP -y round_steps          environment steps of each iteration

Each run is a line of its own, and each task has a panel. Runs share a colour that differ in their
seed alone, or that agree in --by.
"""

from __future__ import annotations

import argparse
from itertools import chain
from typing import Any

import pandas as pd

from walle.analysis.drawing import labels, style
from walle.analysis.measuring import groups
from walle.analysis.runs import BadInputError, Sweep
from walle.analysis.writing import cli
from walle.analysis.writing.format import listed

BASELINE_LOOK = style.Look(style.IDEAL_GREY, ".", "-", "")
FILES = ("iterations", "episodes", "timing", "eval", "trace")
Looks = dict[str, tuple[str, style.Look]]  # the label and look of each run; no label if all agree


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} has to be COLUMN=TEXT")
    return column, value


FLAGS = {
    "-x COLUMN": {"default": "env_steps", "help": "(default: env_steps)"},
    "-y COLUMN": {
        "nargs": "+",
        "default": ["return_mean"],
        "help": "one or several (default: return_mean)",
    },
    "--file": {"choices": FILES, "default": "iterations", "help": "(default: iterations)"},
    "--where COLUMN=TEXT": {"type": _condition, "help": "draw only rows with this text"},
    "--points": "draw markers, not lines",
    "--baseline": cli.BASELINE,
}


def study(
    sweep: Sweep,
    *,
    x: str,
    y: list[str],
    file: str = "iterations",
    by: str | None = None,
    where: tuple[str, str] | None = None,
    points: bool = False,
    baseline: Sweep | None = None,
) -> cli.Study:
    """A panel for each column of `y` and task that has values, a line for each run."""
    rows = _select(sweep, file, [x, *y], where)
    looks = _looks(sweep, by)
    tasks = {run.name: labels.task_of(run) for run in sweep.runs}
    shown = sorted({tasks[str(run)] for run in rows["run"].unique()})
    behind = _select(baseline, file, [x, *y], where) if baseline else rows[:0]
    grey = dict.fromkeys(behind["run"].astype(str), ("baseline", BASELINE_LOOK))
    tasks_behind = {run.name: labels.task_of(run) for run in baseline.runs} if baseline else {}
    figure, areas = labels.axes_of(shown, len(y), height=2.6)
    panels = [(column, task) for column in y for task in shown]
    for area, (column, task) in zip(chain.from_iterable(areas), panels, strict=True):
        mine = behind[behind["run"].astype(str).map(tasks_behind) == task]
        _draw(area, mine, (x, column), grey, points=points)
        mine = rows[rows["run"].astype(str).map(tasks) == task]
        _draw(area, mine, (x, column), _as_one(sweep, mine, [x, column], looks), points=points)
        area.set_xlabel(labels.of_column(file, x))
        area.set_ylabel(labels.of_column(file, column))
        style.compact_axis(area)
    style.legend(figure)
    of_run = rows.groupby("run", observed=True)
    table = {"rows": of_run.size(), f"last {x}": of_run[x].last()}
    for column in y:
        table |= {f"mean {column}": of_run[column].mean(), f"last {column}": of_run[column].last()}
    return cli.Study(figure, pd.DataFrame(table).reset_index(), [], rows[["run", x, *y]])


main = cli.command("plot", study, __doc__, FLAGS)


def _looks(sweep: Sweep, by: str | None) -> Looks:
    if by is None:
        by_run = labels.of_runs(sweep, groups.axis_of(sweep))
        texts = {run: label.text for run, label in by_run.items()}
    else:
        key = groups.resolve_key(sweep, by)
        values = {run.name: value for run, value in zip(sweep.runs, sweep.values(key), strict=True)}
        ordered = sorted(values, key=lambda run: groups.sort_key(values[run]))
        texts = {run: labels.of_value(key, values[run]) for run in ordered}
    look_of = labels.looks(texts.values())
    return {run: (text, look_of[text]) for run, text in texts.items()}


def _as_one(sweep: Sweep, rows: pd.DataFrame, columns: list[str], looks: Looks) -> Looks:
    """The looks, with one label and look for lines of a panel that hide each other."""
    if not all(pd.api.types.is_numeric_dtype(rows[column]) for column in columns):
        return looks
    runs_of: dict[str, list[str]] = {}
    for run in rows["run"].astype(str).unique():
        runs_of.setdefault(looks[run][0], []).append(run)
    first = dict(looks.values())
    together = {
        text: (labels.one_text(texts, list(runs_of)), first[texts[0]])
        for texts in labels.learnt_alike(sweep, rows, columns, runs_of)
        if len(texts) > 1
        for text in texts
    }
    return {run: together.get(text, (text, look)) for run, (text, look) in looks.items()}


def _select(
    sweep: Sweep, file: str, columns: list[str], where: tuple[str, str] | None
) -> pd.DataFrame:
    """The rows of FILE.csv with a value in all of `columns`; notes the runs without such a row."""
    frame = sweep.table(file)
    if not len(frame):
        raise BadInputError(f"no run has a row in {file}.csv")
    if file == "iterations":
        steps = frame["env_steps"].astype(float)
        since = steps.groupby(frame["run"], observed=True).diff().fillna(steps)
        frame = frame.assign(round_steps=since)
    groups.require(frame, *columns, *(where[:1] if where else ()), file=file)
    if where:
        frame = frame[frame[where[0]].astype(str) == where[1]]
    rows = frame.dropna(subset=columns)
    if not len(rows):
        condition = f" where {where[0]} is {where[1]!r}" if where else ""
        raise BadInputError(f"no row of {file}.csv has all of {', '.join(columns)}{condition}")
    without = [run.name for run in sweep.runs if run.name not in set(rows["run"])]
    if without:
        sweep.note(f"Runs without a value in {', '.join(columns)}: {listed(without)}")
    return rows


def _draw(
    axes: style.Axes, rows: pd.DataFrame, columns: tuple[str, str], looks: Looks, *, points: bool
) -> None:
    """Draws a line for each run, with its label and look; each label is in the legend once."""
    order, drawn = list(looks), set()
    of_run = [(str(run), mine) for run, mine in rows.groupby("run", observed=True)]
    for run, mine in sorted(of_run, key=lambda pair: order.index(pair[0])):
        label, look = looks[run]
        shape: Any = {"marker": look.marker, "ls": "none"} if points else {"ls": look.dash}
        once = "_nolegend_" if label in drawn else label or "_nolegend_"
        x, y = mine[columns[0]], mine[columns[1]]
        axes.plot(x, y, color=look.color, markersize=2, linewidth=0.9, label=once, **shape)
        drawn.add(label)


if __name__ == "__main__":
    raise SystemExit(main())
