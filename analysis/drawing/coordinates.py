"""Draws parallel coordinates: a vertical axis for each setting, a line for each trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from walle.analysis.drawing import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from optuna.trial import FrozenTrial

TICKS = 5
FEW_STEPS = 8  # a setting with so few values has a tick for each
SHORT = 14  # letters of a tick's label


class Scale(NamedTuple):
    """One vertical axis.

    Attributes:
        name: what it shows.
        place: the height of a value, from 0 to 1.
        ticks: the labels, by their heights.
    """

    name: str
    place: Callable[[Any], float]
    ticks: dict[float, str]


def scale(key: str, trials: Sequence[FrozenTrial]) -> Scale:
    """The axis of a setting: categories side by side, numbers linear or logarithmic."""
    one: Any = next(each.distributions[key] for each in trials if key in each.distributions)
    if hasattr(one, "choices"):
        names = list(map(str, one.choices))
        step = 1 / max(1, len(names) - 1)
        heights = {name: i * step for i, name in enumerate(names)}
        return Scale(key, lambda value: heights[str(value)], {h: n for n, h in heights.items()})
    count = round((one.high - one.low) / one.step) + 1 if one.step else math.inf
    steps = [one.low + i * one.step for i in range(int(count))] if count <= FEW_STEPS else None
    return _numbers(key, one.low, one.high, log=one.log, ticks=steps)


def of_numbers(name: str, values: Sequence[float]) -> Scale:
    """A linear axis from the lowest to the highest value."""
    return _numbers(name, min(values), max(values), log=False)


def _numbers(
    name: str, low: float, high: float, *, log: bool, ticks: Sequence[float] | None = None
) -> Scale:
    from matplotlib.ticker import LogLocator, MaxNLocator

    high = high if high > low else low + 1.0
    turn: Callable[[float], float] = math.log10 if log else float
    width = turn(high) - turn(low)

    def place(value: Any) -> float:
        return (turn(float(value)) - turn(low)) / width

    locator = LogLocator(numticks=TICKS) if log else MaxNLocator(TICKS)
    inside = ticks or [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
    if len(inside) < 2:
        inside = [low, high]
    return Scale(name, place, {place(tick): f"{tick:,.4g}" for tick in inside})


def draw(
    scales: Sequence[Scale],
    lines: Sequence[Mapping[str, Any]],
    grey: Sequence[Mapping[str, Any]] = (),
) -> Figure:
    """The figure.

    Args:
        scales: the axes, from left to right.
        lines: the value on each axis, the best line last; coloured in this order.
        grey: further lines, which may end before the last axis.
    """
    import matplotlib as mpl

    figure, (axes,) = style.panels(1, page=True, height=3.2)
    for line in grey:
        _line(axes, scales, line, color="#c8c8c8", linewidth=0.7, linestyle="--", zorder=1)
    colors = mpl.colormaps["viridis"]
    for i, line in enumerate(lines):
        best = i == len(lines) - 1
        place = i / max(1, len(lines) - 1) * 0.92  # its end is too bright on white
        look = {"color": "#D55E00", "linewidth": 2.6} if best else {"color": colors(place)}
        _line(axes, scales, line, zorder=3 if best else 2, **look)
    for x, one in enumerate(scales):
        _axis(axes, x, one)
    axes.set(xlim=(-0.1, len(scales) - 0.55), ylim=(-0.03, 1.03), yticks=[])
    names = [one.name for one in scales]  # slanted, so that neighbours do not touch
    axes.set_xticks(range(len(scales)), names, rotation=20, ha="right", rotation_mode="anchor")
    axes.spines["left"].set_color("none")
    axes.tick_params(length=0)
    return figure


def _line(axes: Axes, scales: Sequence[Scale], line: Mapping[str, Any], **look: Any) -> None:
    points = [(x, one.place(line[one.name])) for x, one in enumerate(scales) if one.name in line]
    axes.plot(*zip(*points, strict=True), **look)


def _axis(axes: Axes, x: int, one: Scale) -> None:
    axes.axvline(x, color="black", linewidth=0.8, zorder=4)
    for height, label in one.ticks.items():
        axes.annotate(
            label[:SHORT],
            (x, height),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            zorder=5,
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.5},
        )
