"""Draws the speedup against the number of samplers, the ideal and Amdahl's law.

speedup(n) = seconds of collection at n = 1 / seconds of collection at n, for the same environment
steps and without the warm-up iterations; within blocks where the launcher measured in blocks. Each
task has a panel. Intervals are 95% intervals over seeds, with one relative variance for all points.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, published, style
from walle.analysis.drawing import tasks as panels
from walle.analysis.loading.directories import BadInputError, Scalar, listed
from walle.analysis.measuring import fits, times
from walle.analysis.measuring.cells import Cell, iterations_after_warmup, lines
from walle.analysis.measuring.design import line_keys, numeric_axis, workers_axis
from walle.analysis.measuring.speedups import Point, all_reached, speedups
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, words

COLLECTION = "collection"
END_TO_END = "end to end"
BEYOND = (0, (4, 3))  # dashes of a law beyond the points that it was fitted to
FLAGS = {
    "--end-to-end": "add the speedup of whole iterations",
    "--time-to-return": {
        "type": float,
        "metavar": "R",
        "help": "add the speedup of the time until return_mean >= R",
    },
    "--paper": cli.PAPER,
    "--log": cli.LOG,
    "--fit-all": "fit the laws to oversubscribed points too",
    "--compiling": cli.COMPILING,
}


def study(
    sweep: Sweep,
    *,
    by: str | None = None,
    warmup: int = 1,
    end_to_end: bool = False,
    time_to_return: float | None = None,
    paper: bool = False,
    log: bool = False,
    fit_all: bool = False,
    compiling: bool = False,
) -> cli.Study:
    """Speedup of collection and, when asked, of whole iterations and of the time to a return.

    Args:
        sweep: the runs.
        by: the configuration key that counts the workers; None for `workers_axis`.
        warmup: the number of iterations of each run that do not count.
        end_to_end: add the speedup of whole iterations.
        time_to_return: add the speedup of the time until return_mean reaches this value.
        paper: draw the papers' points too.
        log: logarithmic axes.
        fit_all: fit the laws to oversubscribed points too.
        compiling: count the compiler's time in the time to a return.
    """
    by = numeric_axis(sweep, by) if by else workers_axis(sweep)
    iterations = iterations_after_warmup(sweep, warmup)
    cells = {COLLECTION: times.measure_seconds(sweep, iterations, "collect_s", by)}
    if end_to_end:
        cells[END_TO_END] = times.measure_seconds(sweep, iterations, "iteration_s", by)
    sentences = words.sample(warmup, cells[COLLECTION]) + words.seconds(
        sweep, iterations, cells[COLLECTION], by
    )
    sentences += words.machine(sweep) + words.also_differ(sweep, by)
    sentences += words.throughput(sweep, cells[COLLECTION])
    sentences += words.lanes(sweep, cells[COLLECTION], by)
    if time_to_return is not None:
        reached, missing = all_reached(sweep, time_to_return, by, compiling=compiling)
        sentences += missing
        if any(len(group) > 1 for group in lines(reached).values()):
            cells[f"to return {time_to_return:g}"] = reached
        else:
            sentences.append(f"Too few points reach {time_to_return:g} for a speedup.")
    points = {name: _speedups_of_lines(found) for name, found in cells.items()}
    if not points[COLLECTION]:
        raise BadInputError(_too_few(sweep, cells[COLLECTION], by))
    sentences += _base_sentences(cells[COLLECTION], points[COLLECTION], by)
    figure = _figure(sweep, points, by=by, paper=paper, log=log, fit_all=fit_all)
    sentences += _fit_sentences(sweep, iterations, points[COLLECTION], by, fit_all=fit_all)
    return cli.Study(figure, _table(sweep, points, by), sentences)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, FLAGS, by=None).parse_args(argv)
    options = ("end_to_end", "time_to_return", "paper", "log", "fit_all", "compiling")
    return cli.run(args, "speedup", study, ("by", "warmup", *options))


def _speedups_of_lines(cells: list[Cell]) -> dict[str, list[Point]]:
    """The speedups of every line that has two points or more."""
    return {line: speedups(group) for line, group in lines(cells).items() if len(group) > 1}


def _too_few(sweep: Sweep, cells: list[Cell], by: str) -> str:
    if not cells:
        return "no run has a value in the column collect_s"
    values = sorted({f"{cell.by}" for cell in cells})
    text = f"a speedup needs runs that differ in {by}, but these have {by}={listed(values)}"
    others = [key for key in line_keys(sweep, by) if key in sweep.varying]
    return f"{text}: what varies is {listed(others)}" if others else text


def _base_sentences(cells: list[Cell], found: dict[str, list[Point]], by: str) -> list[str]:
    """Sentences about the lines without a speedup, and about the bases other than one worker."""
    alone = [group[0] for group in lines(cells).values() if len(group) == 1]
    said = [f"No speedup of {cell.line}, as all its runs have {by}={cell.by}." for cell in alone]
    for line, points in found.items():
        base = points[0].base
        if base != 1:
            text = f"No usable run at {by}=1: the speedup is over {by}={base:g}, "
            said.append(words.for_line(line, f"{text}and the ideal is n/{base:g}."))
    return said


def _fit_points(points: list[Point], *, fit_all: bool) -> list[Point]:
    """The points to fit: those within the machine's cores, or all when fewer than two are."""
    inside = [point for point in points if not point.cell.oversubscribed]
    return points if fit_all or len(inside) < 2 else inside


def _fit_sentences(
    sweep: Sweep, iterations: pd.DataFrame, found: dict[str, list[Point]], by: str, *, fit_all: bool
) -> list[str]:
    learning = lines(times.measure_seconds(sweep, iterations, "learn_s", by))
    unit = times.unit_of(sweep).words
    sentences = []
    for line, points in found.items():
        chosen = [point.cell for point in _fit_points(points, fit_all=fit_all)]
        fitted = {cell.by for cell in chosen}
        learn = [cell.mean for cell in learning.get(line, []) if cell.by in fitted]
        if words.throughput(sweep, chosen):  # collection waits for learning already
            learn = []
        texts = fits.describe(chosen, float(np.mean(learn)) if learn else None, unit)
        if any(cell.oversubscribed for cell in chosen):
            texts.append("The fit uses points with more busy processes than cores.")
        if len(chosen) < len(points):
            texts.append(
                "The fit leaves out the points with more busy processes than cores "
                f"({len(points) - len(chosen)} of {len(points)}; --fit-all includes them)."
            )
        sentences += [words.for_line(line, text) for text in texts]
    return sentences


def _table(sweep: Sweep, points: dict[str, dict[str, list[Point]]], by: str) -> pd.DataFrame:
    lanes = {run.name: words.lanes_text(run.lanes) for run in sweep.runs}
    rows = [
        {
            "line": line,
            "of": name,
            by: point.n,
            "lanes_a_sampler": lanes[point.cell.names[0]],
            "repeats": point.cell.repeats,
            **point.cell.interval(positive=True).columns("seconds"),
            **point.speedup.columns("speedup"),
            "efficiency": point.speedup.value * point.base / point.n,
            "oversubscribed": point.cell.oversubscribed,
        }
        for name, found in points.items()
        for line, group in found.items()
        for point in group
    ]
    return words.without_lone_line(pd.DataFrame(rows), "line", "of")


def _figure(
    sweep: Sweep,
    points: dict[str, dict[str, list[Point]]],
    *,
    by: str,
    paper: bool,
    log: bool,
    fit_all: bool,
) -> style.Figure:
    """A panel for each quantity and task."""
    task_of = {run.name: labels.task_of(run) for run in sweep.runs}
    tasks = list(dict.fromkeys(task_of[group[0].cell.names[0]] for group in _groups(points)))
    names = [
        panels.without_task(line, task_of[group[0].cell.names[0]])
        for found in points.values()
        for line, group in found.items()
    ]
    looks = panels.looks(names)
    figure, rows = panels.axes_of(tasks, len(points), height=2.5, sharey=True)
    for row, (name, found) in zip(rows, points.items(), strict=True):
        for area, task in zip(row, tasks, strict=True):
            mine = {
                panels.without_task(line, task): group
                for line, group in found.items()
                if task_of[group[0].cell.names[0]] == task
            }
            if mine:
                papers = paper and name == COLLECTION
                _draw(area, mine, looks, paper=papers, log=log, fit_all=fit_all)
                _dress(area, mine, by=by, log=log)
                if papers:
                    published.extend_ticks(area, published.collection())
                style.mark_cores(area, sweep.cores if by == "sampler.n" else 0)
        row[0].set_ylabel(_y_label(name if len(points) > 1 else "", found, by))
    style.legend(figure)
    return figure


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
    fitted = fits.fit_cells([point.cell for point in _fit_points(points, fit_all=fit_all)])
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


if __name__ == "__main__":
    sys.exit(main())
