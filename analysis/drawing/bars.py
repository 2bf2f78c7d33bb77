"""Draws intervals that do not set the axis: bars that reach beyond it end in an arrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from walle.analysis.measuring.stats import Interval

NAME = "interval"  # the gid of a bar
ASIDE_POINTS = 5.0
REACH = 0.5  # the part of an estimate by which its bar may widen the axis


def draw(axes: Axes, x: float, interval: Interval, color: str) -> None:
    """Draws the bar of an interval, with caps; of a wide one only a part counts for the axis.

    An interval of two seeds may end at a hundred times the estimate: an axis that showed it whole
    would show nothing else.
    """
    from matplotlib.lines import Line2D

    value, low, high = interval
    if low != low or high != high:
        return
    bar = Line2D([x, x], [low, high], color=color, linewidth=1.1, marker="_", gid=NAME, zorder=2)
    bar.set_markersize(4)
    axes.add_artist(bar)  # which, unlike a plotted line, leaves the limits alone
    reach = REACH * abs(value)
    axes.update_datalim([(x, max(low, value - reach)), (x, min(high, value + reach))])


def dots(axes: Axes, x: float, values: Iterable[float], color: str) -> None:
    """Draws small dots a little to the left of `x`, which count for the axis."""
    from matplotlib.transforms import ScaledTranslation

    aside = ScaledTranslation(-ASIDE_POINTS / 72, 0, axes.figure.dpi_scale_trans)
    for value in values:
        axes.update_datalim([(x, value)])
        axes.plot([x], [value], ".", color=color, markersize=3, transform=axes.transData + aside)


def cut(axes: Axes) -> None:
    """Draws an arrow where the axis cuts a bar; the limits have to be those of the figure."""
    bottom, top = axes.get_ylim()
    for bar in [artist for artist in axes.get_children() if artist.get_gid() == NAME]:
        (x, _), (low, high) = bar.get_data()  # type: ignore[attr-defined]
        for beyond, place, marker in ((low < bottom, 0, "v"), (high > top, 1, "^")):
            if beyond:
                axes.plot(
                    x,
                    place,
                    marker,
                    color=bar.get_color(),  # type: ignore[attr-defined]
                    markersize=4,
                    transform=axes.get_xaxis_transform(),
                    clip_on=False,
                    zorder=3,
                )
    axes.set_ylim(bottom, top)
