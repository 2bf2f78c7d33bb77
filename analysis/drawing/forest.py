"""Draws estimates with their intervals below one another, beside a line of no difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from walle.analysis.drawing import style
from walle.analysis.measuring.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axis import Axis

REACH = 1.5  # how far beyond the estimates a bar is drawn, in widths of their range
HEADROOM = 0.06


class Series(NamedTuple):
    """Estimates of one quantity, by the label of their row."""

    label: str
    look: style.Look
    of: Mapping[str, Interval]


def draw(
    axes: style.Axes,
    series: Sequence[Series],
    *,
    neutral: float,
    ratio: bool = False,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draws a row for each label, from the top, with a marker and a bar for each series.

    Bars that reach far beyond all estimates are cut, and end in an arrow.

    Args:
        axes: the axes.
        series: the estimates; a row named `overall` stands apart.
        neutral: the value of no difference.
        ratio: on a logarithmic axis.
        limits: of the axis; by default the estimates decide.
    """
    rows = list(dict.fromkeys(label for one in series for label in one.of))
    found = [interval for one in series for interval in one.of.values()]
    low, high = limits or _limits(found, neutral, ratio=ratio)
    for number, one in enumerate(series):
        shift = 0.22 * (number - (len(series) - 1) / 2)
        for row, label in enumerate(rows):
            if label in one.of:
                _bar(axes, row + shift, one.of[label], one.look, (low, high))
        name = one.label if len(series) > 1 else "_nolegend_"
        axes.plot([], [], one.look.marker, color=one.look.color, label=name)
    axes.axvline(neutral, color=style.IDEAL_GREY, linestyle="--", zorder=1)
    if rows[-1] == "overall" and len(rows) > 1:
        axes.axhline(len(rows) - 1.5, color=style.IDEAL_GREY, linewidth=0.5)
    if ratio:
        axes.set_xscale("log")
        plain_ticks(axes.xaxis, low, high)
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _bar(
    axes: style.Axes,
    y: float,
    interval: Interval,
    look: style.Look,
    limits: tuple[float, float],
) -> None:
    axes.plot(interval.value, y, look.marker, color=look.color, zorder=3, clip_on=False)
    if math.isnan(interval.low):
        return
    ends = [min(max(end, limits[0]), limits[1]) for end in interval[1:]]
    axes.plot(ends, [y, y], color=look.color, linewidth=1.1, zorder=2, solid_capstyle="butt")
    for end, wanted, arrow in zip(ends, interval[1:], "<>", strict=True):
        cut = end != wanted
        marker: dict[str, Any] = {
            "marker": arrow if cut else "|",
            "clip_on": False,
            "markersize": 4,
        }
        axes.plot(end, y, color=look.color, zorder=3, **marker)


def _limits(found: Sequence[Interval], neutral: float, *, ratio: bool) -> tuple[float, float]:
    """The axis: all estimates, the neutral value, and their bars as far as `REACH` allows."""
    place, back = (math.log, math.exp) if ratio else (float, float)
    values = [place(x.value) for x in found] + [place(neutral)]
    lows = [place(x.low) for x in found if x.low == x.low and (x.low > 0 or not ratio)]
    highs = [place(x.high) for x in found if x.high == x.high]
    low, high = min(values), max(values)
    span = high - low or max(abs(high), 1.0) * 0.1
    low = max(min([low, *lows]), low - REACH * span)
    high = min(max([high, *highs]), high + REACH * span)
    margin = HEADROOM * (high - low)
    return back(low - margin), back(high + margin)


def plain_ticks(axis: Axis, low: float, high: float) -> None:
    """Sets a few round ticks, such as 0.5, 1 and 2, on a logarithmic axis from `low` to `high`."""
    from matplotlib.ticker import MaxNLocator, NullFormatter

    if high / low < 4:
        ticks = list(MaxNLocator(4).tick_values(low, high))
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
        if high / low > 60:
            ticks = ticks[::3]
    inside = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(inside, [f"{tick:g}" for tick in inside])
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)
