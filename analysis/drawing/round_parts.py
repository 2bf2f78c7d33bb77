"""Draws what the seconds of whole rounds are made of: serial, collecting and learning."""

from __future__ import annotations

from collections.abc import Sequence

from walle.analysis.drawing import bars, style
from walle.analysis.drawing.tasks import without_task
from walle.analysis.measuring.dividing import Parts
from walle.analysis.planning.costs import Setup
from walle.analysis.planning.rounds import RoundFit

NAMES = ("serial", "divided by samplers", "divided by learners")
COLORS = (style.COLORS[3], style.COLORS[4], style.COLORS[5])  # few lines have these
UPRIGHT = 6  # tick labels that fit beside one another
COMPUTED_HATCH, COMPUTED_ALPHA = "////", 0.45


def draw(axes: style.Axes, found: Sequence[RoundFit], task: str, unit: str) -> None:
    """A bar for each number of samplers and learners, and a hatched one for many, computed.

    The dots are what was measured.

    Args:
        axes: the panel; removed if there is nothing to draw.
        found: the fits of the panel's task.
        task: its name.
        unit: the words for what the seconds are for.
    """
    if not found:
        axes.remove()
        return
    place, places, names = 0, [], []
    for fit in found:
        if line := without_task(fit.line, task):
            axes.text(place, 0, f" {line}", rotation=90, fontsize=6, ha="center", va="bottom")
            place += 1
        for setup, cell in zip(fit.setups, fit.cells, strict=True):
            _bar(axes, place, fit.made_of(setup, fit.shards), computed=False)
            axes.plot([place], [cell.compared], "o", color="black", ms=3, zorder=3)
            bars.draw(axes, place, cell.interval(positive=True), "black")
            places.append(place)
            names.append(_name(setup))
            place += 1
        many = fit.many
        _bar(axes, place, fit.made_of(many, max(fit.shards, many.learners)), computed=True)
        places.append(place)
        names.append(_name(many))
        place += 1
    axes.set_xticks(places, names, rotation=90 if len(places) > UPRIGHT else 0)
    axes.set_xlim(-0.6, place - 0.4)
    axes.set_xlabel("samplers \u00d7 learners")
    axes.set_ylabel(f"seconds\nper {unit}")
    _explain(axes, found)


def _name(setup: Setup) -> str:
    return f"{setup.samplers}\u00d7{setup.learners}"


def _bar(axes: style.Axes, place: int, heights: Parts, *, computed: bool) -> None:
    alpha, hatch = (COMPUTED_ALPHA, COMPUTED_HATCH) if computed else (1.0, "")
    below = 0.0
    for height, color in zip(heights, COLORS, strict=True):
        axes.bar(place, height, 0.7, below, color=color, linewidth=0, alpha=alpha, hatch=hatch)
        below += height


def _explain(axes: style.Axes, found: Sequence[RoundFit]) -> None:
    """Bars without a height, for the legend of the figure."""
    varied = any(fit.samplers_vary for fit in found), any(fit.learners_vary for fit in found)
    for name, color, there in zip(NAMES, COLORS, (True, *varied), strict=True):
        if there:
            axes.bar(0, 0, color=color, linewidth=0, label=name)
    computed, hatch = "computed, not measured", COMPUTED_HATCH
    axes.bar(
        0, 0, color=style.PAPER_GREY, linewidth=0, alpha=COMPUTED_ALPHA, hatch=hatch, label=computed
    )
    axes.plot([], [], "o", color="black", ms=3, label="measured rounds")
