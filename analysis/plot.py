"""Any column against any column of any file, of one run or many, beside a baseline.

    python analysis/plot.py -y kl entropy                 every run of the newest sweep
    python analysis/plot.py RUN -x wall_s -y return --file episodes --points
    python analysis/plot.py SWEEP -y update_s --file timing --where process=agent

Each run is a line of its own; runs that agree in --by share a colour.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import pandas as pd

from analysis import cli, style
from analysis.design import resolve_key, sort_key
from analysis.directories import BadInputError, listed
from analysis.runs import Sweep, load

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
    """One panel a column of `y`, one line a run.

    Args:
        sweep: the runs.
        x: a column.
        y: columns.
        file: the name of the file, without `.csv`.
        by: runs that agree in this configuration key look alike.
        where: only rows in which this column is this text.
        points: markers in place of lines.
        baseline: runs drawn in grey behind the others.
    """
    by = resolve_key(sweep, by)
    rows = _select(sweep, file, [x, *y], where)
    figure, axes = style.panels(min(len(y), 3), -(-len(y) // 3), height=2.6)
    for area in axes[len(y) :]:
        area.remove()
    behind = _select(baseline, file, [x, *y], where) if baseline is not None else None
    for area, column in zip(axes, y, strict=False):
        if behind is not None:
            _draw_baseline(area, behind, x, column, points=points)
        _draw(area, sweep, rows, (x, column), by, points=points)
        area.set_xlabel(_label(x))
        area.set_ylabel(_label(column))
        style.compact_axis(area)
    style.legend(figure)
    return cli.Study(figure, _table(rows, x, y), [], rows[["run", x, *y]])


def main(argv: list[str] | None = None) -> int:
    """The command line."""
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
        "--where", type=_condition, metavar="COLUMN=TEXT", help="only rows with this text"
    )
    parser.add_argument("--points", action="store_true", help="markers, not lines")
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="runs to draw in grey")
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
    """The rows that are asked for; runs without the columns are noted.

    Raises:
        BadInputError: no run has the file or a column, or no row is left.
    """
    frame = sweep.table(file)
    if not len(frame):
        raise BadInputError(f"no run has a row in {file}.csv")
    for column in [*columns, *([where[0]] if where else [])]:
        if column not in frame:
            near = difflib.get_close_matches(column, [str(c) for c in frame], n=3)
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"there are {', '.join(map(str, frame))}"
            )
            raise BadInputError(f"no column {column!r} in {file}.csv; {hint}")
    if where:
        frame = frame[frame[where[0]].astype(str) == where[1]]
    rows = frame.dropna(subset=columns)
    if not len(rows):
        raise BadInputError(f"no row of {file}.csv has all of {', '.join(columns)}" + _said(where))
    without = [run.name for run in sweep.runs if run.name not in set(rows["run"])]
    if without:
        sweep.note(f"{len(without)} runs have no value in {', '.join(columns)}: {listed(without)}")
    return rows


def _said(where: tuple[str, str] | None) -> str:
    return f" where {where[0]} is {where[1]!r}" if where else ""


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
    """The column's name, its unit in brackets."""
    if column.endswith("_per_s"):
        return f"{column.removesuffix('_per_s').replace('_', ' ')} (1/s)"
    if column.endswith("_s"):
        return f"{column.removesuffix('_s').replace('_', ' ')} (s)"
    return column.replace("_", " ")


def _table(rows: pd.DataFrame, x: str, y: list[str]) -> pd.DataFrame:
    """For each run how far it goes, and the mean and last value of each column."""
    found = []
    for run, mine in rows.groupby("run", observed=True):
        row: dict[str, object] = {"run": run, "rows": len(mine), f"last {x}": mine[x].iloc[-1]}
        for column in y:
            row |= {f"mean {column}": mine[column].mean(), f"last {column}": mine[column].iloc[-1]}
        found.append(row)
    return pd.DataFrame(found)


if __name__ == "__main__":
    sys.exit(main())
