"""Draws a plan: seconds of a round and end-to-end speedup against the number of samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from walle.analysis.drawing import style
from walle.analysis.measuring.stats import Interval

NARROW = 4  # a range of this factor may hold a single one of 1, 2, 5, 10 ...


class Curve(NamedTuple):
    """A line of a panel: the number of samplers, and the estimate with its interval, of a point."""

    samplers: Sequence[int]
    values: Sequence[Interval]
    enough: int | None = None


def figure(
    seconds: Mapping[str, Curve],
    measured: Mapping[str, Curve],
    speedups: Mapping[str, Curve],
    *,
    cores: int,
    unit: str,
) -> style.Figure:
    """Two panels with logarithmic axes.

    Args:
        seconds: the planned seconds of a round, by the mode of the run.
        measured: measured seconds.
        speedups: the planned speedup; a ring marks the samplers beyond which nothing is gained.
        cores: cores of all machines, drawn as a dotted line; 0 for none.
        unit: what the seconds are for.
    """
    drawn, (left, right) = style.panels(2, height=2.7)
    looks = {name: style.look(i) for i, name in enumerate(seconds)}
    for name, curve in seconds.items():
        _line(left, curve, looks[name], name)
    for name, curve in measured.items():
        look = looks.get(name, style.look(len(looks)))
        for n, value in zip(curve.samplers, curve.values, strict=True):
            style.point(left, n, value, look, hollow=True)
    if measured:
        style.explain_hollow(left, "measured")
    for name, curve in speedups.items():
        _line(right, curve, looks[name], name)
        if curve.enough is not None:
            at = curve.values[curve.samplers.index(curve.enough)].value
            look = looks[name]
            right.plot([curve.enough], [at], "o", ms=9, mfc="none", color=look.color, zorder=4)
    right.plot([], [], "o", ms=9, mfc="none", color=style.PAPER_GREY, label="more gain nothing")
    most = max(max(curve.samplers) for curve in speedups.values())
    top = max(value.value for curve in speedups.values() for value in curve.values)
    ideal = min(most, top)
    right.plot([1, ideal], [1, ideal], color=style.IDEAL_GREY, ls="--", zorder=1, label="ideal")
    left.set_ylabel(f"iteration (s)\nper {unit}")
    right.set_ylabel("end-to-end speedup")
    for axes in (left, right):
        _dress(axes, cores)
    style.legend(drawn)
    return drawn


def _line(axes: style.Axes, curve: Curve, look: style.Look, name: str) -> None:
    """A line through the estimates, with a band where the interval is."""
    x = list(curve.samplers)
    y = [value.value for value in curve.values]
    axes.plot(x, y, color=look.color, linestyle=look.dash, lw=1.3, label=name)
    low, high = [value.low for value in curve.values], [value.high for value in curve.values]
    axes.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)


def _dress(axes: style.Axes, cores: int) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(style.axis_name("sampler.n"))
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    low, high = axes.get_ylim()
    wide = high > NARROW * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(5))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    style.mark_cores(axes, cores)
