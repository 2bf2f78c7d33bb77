"""Seconds an iteration spends on something, against the number of workers: table and figure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis import cli, published, style
from analysis.design import is_numeric, resolve_key, sort_key
from analysis.directories import BadInputError, Scalar
from analysis.measures import (
    Cell,
    column_per_run,
    iterations_after_warmup,
    lines,
    measure,
    repeats_label,
    single_run_note,
    warmup_sentence,
)
from analysis.runs import Sweep

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
    by = resolve_key(sweep, by)
    iterations = iterations_after_warmup(sweep, warmup)
    cells = measure(sweep, column_per_run(iterations, quantity.column), by)
    if not cells:
        raise BadInputError(f"no run has a value in the column {quantity.column}")
    places = axis_places(cell.by for cell in cells)
    numeric = is_numeric(sweep, by)
    figure, (axes,) = style.panels(1, height=2.7)
    if paper and by == "sampler.n":
        published.draw(axes, published.collection(), quantity.column)
    for i, (line, group) in enumerate(lines(cells).items()):
        _draw_line(axes, line, group, places, style.look(i))
        if quantity.divides and numeric:
            _draw_ideal(axes, group, "ideal" if i == 0 else "_nolegend_")
    _dress(axes, cells, quantity, axis_name(by), places, log=log and numeric)
    if paper and by == "sampler.n":
        style.more_ticks(axes, published.beyond(published.collection(), axes.get_xticks()[-1]))
    style.mark_cores(axes, sweep.cores if by == "sampler.n" else 0)
    style.legend(figure)
    sentences = [warmup_sentence(warmup), *single_run_note(cells)]
    if paper:
        sentences += published.caveat(set(sweep.values("batch_size")))
    return cli.Study(figure, _table(cells, by, quantity.column), sentences)


def axis_name(by: str) -> str:
    """What people call a configuration key on an axis."""
    return AXIS_NAMES.get(by, by)


def axis_places(values: Iterable[Scalar]) -> dict[Scalar, float]:
    """Where values stand on the axis: numbers at themselves, others at 0, 1, 2 in order."""
    ordered = sorted(set(values), key=sort_key)
    if all(isinstance(value, int | float) for value in ordered):
        return {value: float(value) for value in ordered}
    return {value: float(i) for i, value in enumerate(ordered)}


def _draw_line(
    axes: Axes, line: str, cells: list[Cell], places: dict[Scalar, float], look: style.Look
) -> None:
    x = [places[cell.by] for cell in cells]
    for at, cell in zip(x, cells, strict=True):
        style.point(axes, at, cell.interval(positive=True), look, hollow=cell.oversubscribed)
    label = f"{line or 'measured'} ({repeats_label(cells)})"
    axes.plot(x, [cell.mean for cell in cells], color=look.color, linestyle=look.dash, lw=1)
    axes.plot([], [], color=look.color, marker=look.marker, linestyle=look.dash, label=label)


def _draw_ideal(axes: Axes, cells: list[Cell], label: str) -> None:
    n = np.geomspace(float(cells[0].by), float(cells[-1].by), 50)
    seconds = cells[0].mean * n[0] / n
    axes.plot(n, seconds, color=style.IDEAL_GREY, linestyle="--", zorder=1, label=label)


def _dress(
    axes: Axes,
    cells: list[Cell],
    quantity: Quantity,
    name: str,
    places: dict[Scalar, float],
    *,
    log: bool,
) -> None:
    axes.set_xlabel(name)
    axes.set_ylabel(quantity.label)
    style.ticks_at(axes, places, log=log)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        style.from_zero(axes)
    if any(cell.oversubscribed for cell in cells):
        style.hollow_legend(axes)


def _table(cells: list[Cell], by: str, column: str) -> pd.DataFrame:
    rows = []
    for cell in cells:
        value, low, high = cell.interval(positive=True)
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
