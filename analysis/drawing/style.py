"""The look of the figures: readable in a column of a paper, in grey, and by the colour-blind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from walle.analysis.measuring.groups import sort_key
from walle.analysis.runs import Scalar
from walle.analysis.writing.format import counted

if TYPE_CHECKING:
    from matplotlib.artist import Artist

    # For the annotations of all modules: matplotlib itself is imported when a figure is drawn.
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

    from walle.analysis.measuring.stats import Interval

COLUMN_INCHES = 3.3
PANEL_INCHES = 2.2  # the least width of one of several panels
PAGE_INCHES = 7.2
# Okabe and Ito's palette without its yellow, dark and light in turn so that they differ in grey.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)), (0, (1, 2)))
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++", "oo")
# The colour and hatch of a section of time, the same in every figure; `learn` looks like `update`.
SECTIONS = {
    "collect": ("#003f63", ""),
    "act": ("#8CCBF0", "...."),
    "env_step": ("#0072B2", ""),
    "send": ("#CC79A7", "xxxx"),
    "learn": ("#D55E00", "////"),
    "update": ("#D55E00", "////"),
    "publish": ("#F2B93B", ""),
    "evaluate": ("#006B4F", "++++"),
    "compile": ("#000000", ""),
    "checkpoint": ("#4f4f4f", ""),
    "callbacks": ("#7D6BB3", "xxxx"),
    "log": ("#929292", "----"),
    "wait_policy": ("#e4e4e4", ""),
    "wait_slot": ("#e4e4e4", "oo"),
    "other": ("#ffffff", ""),
}
LEGEND_HANDLE_INCHES = 0.42
LEGEND_LETTER_INCHES = 0.052
LEGEND_ROWS, LEGEND_ROW_INCHES = 3, 0.15  # the rows for which a figure has room; each further row
TITLE_LETTER_INCHES = 0.07
AXIS_NAMES = {"sampler.n": "samplers", "learner.n": "learners", "batch_size": "steps per round"}
PAPER_GREY, IDEAL_GREY = "#6b6b6b", "#9a9a9a"
INK = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
RC: dict[Any, Any] = {
    **dict.fromkeys(INK, "0.15"),
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "0.8",
    "lines.solid_capstyle": "round",
    "patch.edgecolor": "white",
    "patch.force_edgecolor": True,
    "font.sans-serif": ["Arial", "DejaVu Sans", "Liberation Sans"],
    "font.size": 8.0,
    "axes.labelsize": 8.0,
    "axes.titlesize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 300,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "walle",
    "text.parse_math": False,  # a name with two dollar signs is no formula
    "pdf.fonttype": 42,
}


UNNAMED = re.compile("_(child[0-9]+|container[0-9]+|nolegend_)?")  # labels that matplotlib hides
INTERVAL = "interval"  # the gid of a bar
INTERVAL_REACH = 0.5  # the part of an estimate by which its bar may widen the axis


class Look(NamedTuple):
    """Colour, marker, line style and hatch of a line; neighbouring lines differ in each of them."""

    color: str
    marker: str
    dash: Any
    hatch: str


def look(index: int) -> Look:
    """The look of line number `index`; after seven lines the markers and line styles shift."""
    turn = index // len(COLORS)
    return Look(
        COLORS[index % len(COLORS)],
        MARKERS[(index + turn) % len(MARKERS)],
        DASHES[(index + turn) % len(DASHES)],
        HATCHES[index % len(HATCHES)],
    )


def section(name: str) -> tuple[str, str]:
    """The colour and hatch of a section of time; if unknown, those of `wait_policy` or `other`."""
    return SECTIONS.get(name, SECTIONS["wait_policy" if name.startswith("wait") else "other"])


@contextmanager
def paper() -> Iterator[None]:
    """A context in which everything drawn and saved has the style of a paper."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def panels(
    count: int, *, height: float, columns: int = 3, sharey: bool = False, page: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` axes in rows of at most `columns`, each row of the given height.

    It is as wide as a column of a paper, or as a page if `page` is true or there are several
    columns.
    """
    from matplotlib.figure import Figure

    columns = min(count, columns)
    rows = -(-count // columns)
    width = PAGE_INCHES if page or columns > 1 else COLUMN_INCHES
    figure = Figure(figsize=(width, height * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel())
    for area in axes[count:]:
        area.remove()
    return figure, axes[:count]


def resize(figure: Figure, width: float = COLUMN_INCHES) -> None:
    """Gives a drawn figure this width, with as many panels side by side as fit."""
    from matplotlib.gridspec import GridSpec

    panels = figure.axes
    place = panels[0].get_subplotspec()
    rows, most = place.get_geometry()[:2] if place else (1, 1)
    columns = min(most, max(1, int(width / PANEL_INCHES)))
    height = (figure.get_figheight() - _legend_inches(figure)) / rows
    if columns < most:
        rows = -(-len(panels) // columns)
        grid = GridSpec(rows, columns, figure=figure)
        for i, area in enumerate(panels):
            area.set_subplotspec(grid[i])
            area.tick_params(labelleft=True)
            area.set_ylabel(area.get_ylabel() or panels[0].get_ylabel())
    figure.set_size_inches(width, height * rows)
    if figure.legends:
        figure.legends[0].remove()
        legend(figure)


def rename(figure: Figure, words: Mapping[str, str], xlabel: str | None) -> set[str]:
    """Replaces words in the texts of a drawn figure; returns the words that the figure lacks."""
    from matplotlib.text import Text
    from matplotlib.ticker import FixedFormatter

    missing = set(words)

    def renamed(text: str) -> str:
        for old in filter(None, words):
            parts = re.split(rf"(?<!\w){re.escape(old)}(?!\w)", text)
            missing.difference_update([old] * (len(parts) - 1))
            text = words[old].join(parts)
        return text

    for text in figure.findobj(Text):
        text.set_text(renamed(text.get_text()))
    for area in figure.axes:
        area.set_xlabel((area.get_xlabel() and xlabel) or area.get_xlabel())
        for axis in (area.xaxis, area.yaxis):
            if isinstance(ticks := axis.get_major_formatter(), FixedFormatter):
                ticks.seq = list(map(renamed, ticks.seq))
    _wrap(figure)
    return missing


def finish(figure: Figure, title: str | None) -> None:
    """Marks cut intervals, and sets the title if any."""
    for axes in figure.axes:
        _cut_intervals(axes)
    if title:
        width = int(figure.get_figwidth() / TITLE_LETTER_INCHES)
        figure.suptitle(fill(title, width), fontsize=9)


def legend(figure: Figure) -> None:
    """Draws one legend for all axes; it is below them, where it hides no point."""
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        artists: list[Any] = [*axes.get_children(), *axes.containers]
        for artist in artists:
            label = str(artist.get_label())
            if label[:1] == "_" and not UNNAMED.fullmatch(label):
                artist.set_label(f" {label}")  # matplotlib leaves out what begins with _
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    entry = LEGEND_HANDLE_INCHES + LEGEND_LETTER_INCHES * max(len(label) for label in found)
    columns = min(len(found), max(1, int(figure.get_figwidth() / entry)))
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)
    _wrap(figure)
    figure.set_figheight(figure.get_figheight() + _legend_inches(figure))


def _legend_inches(figure: Figure) -> float:
    """By how much a legend of many rows makes a figure higher, as the panels keep their height."""
    legends: list[Any] = figure.legends
    lines = [sum(t.get_text().count("\n") + 1 for t in of.get_texts()) for of in legends]
    rows: int = sum(-(-n // of._ncols) for n, of in zip(lines, legends, strict=True))
    return LEGEND_ROW_INCHES * max(0, rows - LEGEND_ROWS)


def _wrap(figure: Figure) -> None:
    """Breaks the entries of the legend that are wider than their column."""
    legends: list[Any] = figure.legends
    for drawn in legends:
        wide = figure.get_figwidth() / drawn._ncols - LEGEND_HANDLE_INCHES
        for text in drawn.get_texts():
            text.set_text(fill(text.get_text(), max(12, int(wide / LEGEND_LETTER_INCHES))))


def point(
    axes: Axes,
    x: float,
    interval: Interval,
    look: Look,
    *,
    hollow: bool = False,
    dots: Iterable[float] = (),
) -> None:
    """Draws a marker with its error bar; a `hollow` marker means that cores were too few.

    Only a part of a wide bar counts for the axis, see `draw_interval`; `dots`, one for each seed,
    are drawn small on the bar.
    """
    draw_interval(axes, x, interval, look.color)
    inside = "white" if hollow else look.color
    axes.plot([x], [interval.value], look.marker, color=look.color, mfc=inside, zorder=3)
    for value in dots:
        axes.plot([x], [value], ".", color=look.color, ms=5, mew=0, zorder=2.5)


def draw_interval(axes: Axes, x: float, interval: Interval, color: str) -> None:
    """Draws the bar of an interval, with caps; only a part of a wide bar counts for the axis.

    An interval from few seeds may be many times as wide as the estimate itself: an axis that showed
    it whole would show nothing else.
    """
    from matplotlib.lines import Line2D

    value, low, high = interval
    if low != low or high != high:
        return
    bar = Line2D([x, x], [low, high], color=color, linewidth=1.1, marker="_", gid=INTERVAL)
    bar.set(markersize=4, zorder=2)
    axes.add_artist(bar)  # unlike a plotted line, an artist leaves the limits alone
    reach = INTERVAL_REACH * abs(value)
    axes.update_datalim([(x, max(low, value - reach)), (x, min(high, value + reach))])


def _cut_intervals(axes: Axes) -> None:
    """Draws an arrow where the axis cuts a bar; the axis limits must already be final."""
    bottom, top = axes.get_ylim()
    same: Any = {"ms": 4, "transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 3}
    for bar in [line for line in axes.get_lines() if line.get_gid() == INTERVAL]:
        ends: Any = bar.get_data()
        (x, _), (low, high) = ends
        if low < bottom:
            axes.plot(x, 0, "v", color=bar.get_color(), **same)
        if high > top:
            axes.plot(x, 1, "^", color=bar.get_color(), **same)
    axes.set_ylim(bottom, top)


def axis_places(values: Iterable[Scalar]) -> dict[Scalar, float]:
    """The place of each value on the axis: its own size, or 0, 1, 2, ... if any is a word."""
    ordered = sorted(set(values), key=sort_key)
    if all(isinstance(value, int | float) for value in ordered):
        return {value: float(value) for value in ordered}
    return {value: float(i) for i, value in enumerate(ordered)}


def scale_axes(
    axes: Axes, places: Mapping[Scalar, float], *, log: bool, hollow: bool, base: int = 10
) -> None:
    """Sets the scales of fully drawn axes, and the ticks of the x axis at `places`.

    With `log` both axes are logarithmic, y to the base `base`; otherwise y is as by `from_zero`.
    `hollow` explains the hollow markers of `point` in the legend.
    """
    from matplotlib.ticker import LogLocator

    names = [f"{name:g}" if isinstance(name, float) else str(name) for name in places]
    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(list(places.values()), names)
    if log:
        axes.set_yscale("log", base=base)
        axes.yaxis.set_major_locator(LogLocator(base, (1.0, 2.0, 5.0) if base == 10 else (1.0,)))
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        from_zero(axes)
    axes.minorticks_off()  # matplotlib would write formulas at those of a logarithmic axis
    if hollow:
        explain_hollow(axes)


def explain_hollow(axes: Axes, label: str = "more busy processes than cores") -> None:
    """Explains the hollow markers of `point` in the legend."""
    axes.plot([], [], "o", color=PAPER_GREY, markerfacecolor="white", label=label)


def from_zero(axes: Axes) -> None:
    """Sets the y axis from zero to a little beyond its points, also below zero if some are."""
    limits = [other.dataLim for other in axes.get_shared_y_axes().get_siblings(axes)]
    low, high = min(0, *(each.y0 for each in limits)), max(0, *(each.y1 for each in limits))
    axes.set_ylim(low * 1.12, high * 1.12)


def compact_axis(axes: Axes) -> None:
    """Writes large numbers on the x axis as 200k and 1M."""
    from matplotlib.ticker import EngFormatter

    if axes.dataLim.x1 >= 1000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(x=0.02)


def mark_cores(axes: Axes, cores: int) -> None:
    """Draws a dotted line at the number of the machine's cores, if it is within the axis."""
    low, high = axes.get_xlim()
    if cores < 1 or not low < cores < high:
        return
    axes.axvline(cores, color=IDEAL_GREY, linestyle=":", linewidth=1, zorder=0)
    look: Any = {"va": "top", "fontsize": 7, "color": PAPER_GREY}
    place = (cores, 1), (2, -1), ("data", "axes fraction"), "offset points"
    axes.annotate(counted(cores, "core"), *place, **look)
