"""Seconds an iteration spends on something, against the number of workers: table and figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis import cli, published, style
from analysis.measures import (
    Cell,
    column_per_run,
    iterations_after_warmup,
    lines,
    measure,
    numeric_axis,
    repeats_label,
    single_run_note,
    warmup_sentence,
)
from analysis.runs import BadInputError, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXIS_NAMES = {"sampler.n": "samplers", "learner.n": "learners", "batch_size": "steps per round"}


class Quantity(NamedTuple):
    """What is timed.

    Attributes:
        column: of iterations.csv, and of the published numbers.
        label: of the y axis.
        divides: more workers should make it shorter in proportion; draws that ideal.
    """

    column: str
    label: str
    divides: bool


def study(
    sweep: Sweep,
    quantity: Quantity,
    *,
    by: str,
    warmup: int,
    paper: bool,
    log: bool,
) -> cli.Study:
    """Mean seconds at every value of `by`, with 95% intervals."""
    by = numeric_axis(sweep, by)
    iterations = iterations_after_warmup(sweep, warmup)
    cells = measure(sweep, column_per_run(iterations, quantity.column), by)
    if not cells:
        raise BadInputError(f"no run has a value in the column {quantity.column}")
    figure, (axes,) = style.panels(1, height=2.7)
    if paper:
        published.draw(axes, published.collection(), quantity.column)
    for i, (line, group) in enumerate(lines(cells).items()):
        _draw_line(axes, line, group, style.look(i), ideal=quantity.divides)
    _dress(axes, cells, quantity, axis_name(by), log=log)
    style.mark_cores(axes, sweep.cores if by == "sampler.n" else 0)
    style.legend(figure, columns=2)
    sentences = [warmup_sentence(warmup), *single_run_note(cells)]
    return cli.Study(figure, _table(cells, by, quantity.column), sentences)


def axis_name(by: str) -> str:
    """What people call a configuration key on an axis."""
    return AXIS_NAMES.get(by, by)


def _draw_line(axes: Axes, line: str, cells: list[Cell], look: style.Look, *, ideal: bool) -> None:
    for cell in cells:
        style.point(axes, float(cell.by), cell.interval(), look, hollow=cell.oversubscribed)
    x = [float(cell.by) for cell in cells]
    y = [cell.mean for cell in cells]
    label = f"{line or 'measured'} ({repeats_label(cells)})"
    axes.plot(x, y, color=look.color, linestyle=look.dash, lw=1)
    axes.plot([], [], color=look.color, marker=look.marker, linestyle=look.dash, label=label)
    if ideal:
        n = np.geomspace(x[0], x[-1], 50)
        label = "ideal" if look == style.look(0) else "_nolegend_"
        axes.plot(n, y[0] * x[0] / n, color=style.IDEAL_GREY, ls="--", zorder=1, label=label)


def _dress(axes: Axes, cells: list[Cell], quantity: Quantity, name: str, *, log: bool) -> None:
    axes.set_xlabel(name)
    axes.set_ylabel(quantity.label)
    style.whole_ticks(axes, sorted({float(cell.by) for cell in cells}), log=log)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    if any(cell.oversubscribed for cell in cells):
        style.hollow_legend(axes)


def _table(cells: list[Cell], by: str, column: str) -> pd.DataFrame:
    rows = []
    for cell in cells:
        value, low, high = cell.interval()
        rows.append(
            {
                "line": cell.line,
                by: cell.by,
                "repeats": cell.repeats,
                column: value,
                f"{column}_low": low,
                f"{column}_high": high,
                "std_of_repeats": float(cell.values.std(ddof=1)) if cell.runs > 1 else math.nan,
                "oversubscribed": cell.oversubscribed,
            }
        )
    return cli.without_lone_line(pd.DataFrame(rows))
