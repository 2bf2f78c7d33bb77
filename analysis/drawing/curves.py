"""Draws a mean over runs against steps or time: a line with a band, or a point with a bar."""

from __future__ import annotations

import numpy as np

from walle.analysis.drawing import style
from walle.analysis.measuring.curves import Curve


def draw(axes: style.Axes, found: Curve, look: style.Look, label: str) -> None:
    """A line with its band, thin where some runs have no value.

    A curve of one value is a point with its interval, because a line needs two points to be seen.
    """
    if len(found.x) == 1:
        axes.plot(found.x, found.y, look.marker, color=look.color, label=label)
        axes.vlines(found.x, found.low, found.high, color=look.color)
        return
    whole = np.where(found.complete, found.y, np.nan)
    axes.plot(found.x, whole, color=look.color, linestyle=look.dash, label=label)
    partial = np.where(found.complete, np.nan, found.y)
    axes.plot(found.x, partial, color=look.color, linestyle=look.dash, linewidth=0.5)
    axes.fill_between(found.x, found.low, found.high, color=look.color, alpha=0.2, linewidth=0)
