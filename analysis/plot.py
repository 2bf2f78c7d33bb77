"""Draws any columns of a file against any other, for one run or many.

    python analysis/plot.py -y kl entropy                 every run of the newest sweep
    python analysis/plot.py RUN -x wall_s -y return --file episodes --points
    python analysis/plot.py SWEEP -y update_s --file timing --where process=agent

Each run is a line of its own; runs that agree in --by share a colour.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.loading.directories import BadInputError, listed
from walle.analysis.measuring.cells import require
from walle.analysis.measuring.design import resolve_key, sort_key
from walle.analysis.runs import Sweep, load
from walle.analysis.writing import cli

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILES = ("iterations", "episodes", "timing", "eval", "trace")


def study(
    sweep: Sweep,
    *,
    x: str,
    y: list[str],
    file: str = "iterations",
    by: str = "sampler.n",
    where: tuple[str, str] | None = None,
    points: bool = False,
    baseline: Sweep | None = None,
) -> cli.Study:
    """One panel for each column of `y`, one line for each run.

    Args:
        sweep: the runs.
        x: the column of the x axis.
        y: the columns of the y axes.
        file: the name of the file, without `.csv`.
        by: the configuration key; runs that agree in it look alike.
        where: a column and a text; only rows with this text in the column are drawn.
        points: markers in place of lines.
        baseline: further runs, drawn in grey behind the others.
    """
    by = resolve_key(sweep, by)
    rows = _select(sweep, file, [x, *y], where)
    figure, axes = style.small_multiples(len(y), height=2.6)
    behind = _select(baseline, file, [x, *y], where) if baseline is not None else None
    for area, column in zip(axes, y, strict=True):
        if behind is not None:
            _draw_baseline(area, behind, x, column, points=points)
        _draw(area, sweep, rows, (x, column), by, points=points)
        area.set_xlabel(_label(x))
        area.set_ylabel(_label(column))
        style.compact_axis(area)
    style.legend(figure)
    return cli.Study(figure, _table(rows, x, y), [], rows[["run", x, *y]])


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser(__doc__)
    parser.add_argument("-x", default="env_steps", metavar="COLUMN", help="(default: env_steps)")
    parser.add_argument(
        "-y",
        nargs="+",
        default=["return_mean"],
        metavar="COLUMN",
        help="one or several (default: return_mean)",
    )
    parser.add_argument("--file", choices=FILES, default="iterations", help="(default: iterations)")
    parser.add_argument(
        "--where", type=_condition, metavar="COLUMN=TEXT", help="draw only rows with this text"
    )
    parser.add_argument("--points", action="store_true", help="draw markers, not lines")
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="draw these runs in grey too")
    args = parser.parse_intermixed_args(argv)
    return cli.run(
        args,
        "plot",
        lambda sweep: study(
            sweep,
            x=args.x,
            y=args.y,
            file=args.file,
            by=args.by,
            where=args.where,
            points=args.points,
            baseline=load(args.baseline) if args.baseline else None,
        ),
    )


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} has to be COLUMN=TEXT")
    return column, value


def _select(
    sweep: Sweep, file: str, columns: list[str], where: tuple[str, str] | None
) -> pd.DataFrame:
    """The rows of FILE.csv with a value in all of `columns`; notes the runs without such a row.

    Raises:
        BadInputError: no run has the file or a column, or no such row.
    """
    frame = sweep.table(file)
    if not len(frame):
        raise BadInputError(f"no run has a row in {file}.csv")
    require(frame, *columns, *(where[:1] if where else ()), file=file)
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
    axes: Axes, sweep: Sweep, rows: pd.DataFrame, columns: tuple[str, str], by: str, *, points: bool
) -> None:
    values = dict(zip((run.name for run in sweep.runs), sweep.values(by), strict=True))
    looks = {v: style.look(i) for i, v in enumerate(sorted(set(values.values()), key=sort_key))}
    named = set()
    for run, mine in rows.groupby("run", observed=True):
        value = values[str(run)]
        label = f"{by} = {value}" if value not in named else "_nolegend_"
        named.add(value)
        look = looks[value]
        axes.plot(
            mine[columns[0]],
            mine[columns[1]],
            color=look.color,
            linestyle="none" if points else look.dash,
            marker=look.marker if points else None,
            markersize=2,
            linewidth=0.9,
            label=label,
        )


def _draw_baseline(axes: Axes, rows: pd.DataFrame, x: str, y: str, *, points: bool) -> None:
    for i, (_, mine) in enumerate(rows.groupby("run", observed=True)):
        axes.plot(
            mine[x],
            mine[y],
            "." if points else "-",
            color=style.IDEAL_GREY,
            markersize=2,
            linewidth=0.9,
            label="_nolegend_" if i else "baseline",
        )


def _label(column: str) -> str:
    """The column's name with its unit in brackets."""
    if column.endswith("_per_s"):
        return f"{column.removesuffix('_per_s').replace('_', ' ')} (1/s)"
    if column.endswith("_s"):
        return f"{column.removesuffix('_s').replace('_', ' ')} (s)"
    return column.replace("_", " ")


def _table(rows: pd.DataFrame, x: str, y: list[str]) -> pd.DataFrame:
    """A row a run: the number of rows, the last x, the mean and last value of each column."""
    found = []
    for run, mine in rows.groupby("run", observed=True):
        row: dict[str, object] = {"run": run, "rows": len(mine), f"last {x}": mine[x].iloc[-1]}
        for column in y:
            row |= {f"mean {column}": mine[column].mean(), f"last {column}": mine[column].iloc[-1]}
        found.append(row)
    return pd.DataFrame(found)


if __name__ == "__main__":
    sys.exit(main())
