"""Draws speedups against the number of workers, and what whole rounds are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from walle.analysis.drawing import labels, published, round_parts, style
from walle.analysis.drawing import tasks as panels
from walle.analysis.loading.directories import Scalar
from walle.analysis.measuring import fits
from walle.analysis.measuring.speedups import Point, fit_points
from walle.analysis.measuring.times import unit_of
from walle.analysis.planning.rounds import RoundFit
from walle.analysis.runs import Sweep
from walle.analysis.writing import words

COLLECTION = "collection"
BEYOND = (0, (4, 3))  # dashes of a law beyond the points that it was fitted to


def figure(
    sweep: Sweep,
    points: dict[str, dict[str, list[Point]]],
    *,
    by: str,
    paper: bool,
    log: bool,
    fit_all: bool,
    rounds: Sequence[RoundFit] = (),
) -> style.Figure:
    """A panel for each quantity and task; one for each task's rounds, if these are given.

    Args:
        sweep: the runs.
        points: the speedups of each line, by what they are speedups of.
        by: the configuration key that counts the workers.
        paper: draw the papers' points too.
        log: logarithmic axes.
        fit_all: fit the laws to oversubscribed points too.
        rounds: what the seconds of whole rounds are made of.
    """
    task_of = {run.name: labels.task_of(run) for run in sweep.runs}
    tasks = list(dict.fromkeys(task_of[group[0].cell.names[0]] for group in _groups(points)))
    names = [
        panels.without_task(line, task_of[group[0].cell.names[0]])
        for found in points.values()
        for line, group in found.items()
    ]
    looks = panels.looks(names)
    figure, rows = panels.axes_of(tasks, len(points) + bool(rounds), height=2.5)
    _share_scale([area for row in rows[: len(points)] for area in row])
    if rounds:
        for area, task in zip(rows.pop(), tasks, strict=True):
            mine = [fit for fit in rounds if task_of[fit.cells[0].names[0]] == task]
            round_parts.draw(area, mine, task, unit_of(sweep).words)
    for row, (name, found) in zip(rows, points.items(), strict=True):
        for area, task in zip(row, tasks, strict=True):
            drawn = {
                panels.without_task(line, task): group
                for line, group in found.items()
                if task_of[group[0].cell.names[0]] == task
            }
            if drawn:
                papers = paper and name == COLLECTION
                _draw(area, drawn, looks, paper=papers, log=log, fit_all=fit_all)
                _dress(area, drawn, by=by, log=log)
                if papers:
                    published.extend_ticks(area, published.collection())
                style.mark_cores(area, sweep.cores if by == "sampler.n" else 0)
        row[0].set_ylabel(_y_label(name if len(points) > 1 else "", found, by))
    style.legend(figure)
    return figure


def _share_scale(areas: Sequence[style.Axes]) -> None:
    """One scale of the speedups for all panels, with its numbers at the left."""
    first, *others = areas
    for area in others:
        area.sharey(first)
        place = area.get_subplotspec()
        area.tick_params(labelleft=place is not None and place.is_first_col())


def _groups(points: dict[str, dict[str, list[Point]]]) -> list[list[Point]]:
    return [group for found in points.values() for group in found.values()]


def _draw_line(
    axes: style.Axes,
    points: list[Point],
    look: style.Look,
    line: str,
    places: Mapping[Scalar, float],
    *,
    fit_all: bool,
) -> None:
    over = "" if points[0].base == 1 else f", over {points[0].base:g}"
    label = f"{line or 'measured'} ({words.repeats_label(p.cell for p in points)}{over})"
    for point in points:
        compared = point.cell.runs > 1 and not (point.cell.blocks and point.n == point.base)
        hollow, dots = point.cell.oversubscribed, point.each if compared else ()
        style.point(axes, places[point.n], point.speedup, look, hollow=hollow, dots=dots)
    axes.plot([], [], look.marker, color=look.color, label=label)
    fitted = fits.fit_cells([point.cell for point in fit_points(points, fit_all=fit_all)])
    if fitted is not None and not fitted.at_bound:
        n = np.linspace(points[0].n, points[-1].n, 100)
        speedup = fitted.law.speedup(n, points[0].base)
        inside = n <= max(float(cell.by) for cell in fitted.cells)
        within, beyond = np.where(inside, speedup, np.nan), np.where(inside, np.nan, speedup)
        axes.plot(n, within, color=look.color, linestyle="-", lw=1)
        axes.plot(n, beyond, color=look.color, linestyle=BEYOND, lw=1)
        axes.plot([], [], color=style.PAPER_GREY, lw=1, label="Amdahl's law, fitted")


def _draw(
    axes: style.Axes,
    found: dict[str, list[Point]],
    looks: Mapping[str, style.Look],
    *,
    paper: bool,
    log: bool,
    fit_all: bool,
) -> None:
    places = style.axis_places(point.n for points in found.values() for point in points)
    for i, (line, points) in enumerate(found.items()):
        mine = panels.aside(places, i, len(found), log=log)
        _draw_line(axes, points, looks[line], line, mine, fit_all=fit_all)
    n = {point.n for points in found.values() for point in points}
    if paper:
        rows = published.collection()
        published.draw(axes, rows, "speedup")
        n |= set(rows["n"])
    base = min(points[0].base for points in found.values())
    reach = np.array([base, max(n)])
    axes.plot(reach, reach / base, color=style.IDEAL_GREY, ls="--", zorder=1, label="ideal")


def _y_label(name: str, found: dict[str, list[Point]], by: str) -> str:
    """`collection speedup`, `end-to-end speedup`, `speedup to return 3000`; with another base."""
    label = "speedup"
    if name:
        label = f"{label} {name}" if name.startswith("to ") else f"{name.replace(' ', '-')} {label}"
    base = min(points[0].base for points in found.values())
    return label if base == 1 else f"{label} over {by}={base:g}"


def _dress(axes: style.Axes, found: dict[str, list[Point]], *, by: str, log: bool) -> None:
    axes.set_xlabel(style.axis_name(by))
    axes.margins(x=0.1)
    points = [point for group in found.values() for point in group]
    places = style.axis_places(point.n for point in points)
    hollow = any(point.cell.oversubscribed for point in points)
    style.scale_axes(axes, places, log=log, hollow=hollow, base=2)
