"""Draws the speedup against the number of samplers, the ideal and Amdahl's law.

speedup(n) = mean collect_s at n = 1 / mean collect_s at n, without the warm-up iterations. The
intervals are 95% bootstrap intervals over seeds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from walle.analysis.drawing import published, style
from walle.analysis.loading.directories import BadInputError
from walle.analysis.measuring import fits, scaling
from walle.analysis.measuring.cells import (
    Cell,
    column_per_run,
    iterations_after_warmup,
    lines,
    measure,
    numeric_axis,
    of_line,
    repeats_label,
    single_run_note,
    warmup_sentence,
)
from walle.analysis.measuring.speedups import Point, all_reached, speedups
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLLECTION = "collection"
END_TO_END = "end to end"


def study(
    sweep: Sweep,
    *,
    by: str = "sampler.n",
    warmup: int = 1,
    end_to_end: bool = False,
    time_to_return: float | None = None,
    paper: bool = False,
    log: bool = False,
    fit_all: bool = False,
) -> cli.Study:
    """Speedup of collection and, when asked, of whole iterations and of the time to a return.

    Args:
        sweep: the runs.
        by: the configuration key that counts the workers.
        warmup: the number of iterations of each run that do not count.
        end_to_end: add the speedup of whole iterations.
        time_to_return: add the speedup of the time until return_mean reaches this value.
        paper: draw the papers' points too.
        log: logarithmic axes.
        fit_all: fit the laws to oversubscribed points too.
    """
    by = numeric_axis(sweep, by)
    iterations = iterations_after_warmup(sweep, warmup)
    cells = {COLLECTION: measure(sweep, column_per_run(iterations, "collect_s"), by)}
    if end_to_end:
        cells[END_TO_END] = measure(sweep, column_per_run(iterations, "iteration_s"), by)
    sentences = [warmup_sentence(warmup), *single_run_note(cells[COLLECTION])]
    if time_to_return is not None:
        reached, missing = all_reached(sweep, time_to_return, by)
        sentences += missing
        if any(len(group) > 1 for group in lines(reached).values()):
            cells[f"to return {time_to_return:g}"] = reached
        else:
            sentences.append(f"Too few points reach {time_to_return:g} for a speedup.")
    points = {name: _speedups_of_lines(found) for name, found in cells.items()}
    if not points[COLLECTION]:
        raise BadInputError(_too_few(cells[COLLECTION], by))
    sentences += _alone_sentences(cells[COLLECTION], by)
    sentences += _base_sentences(points[COLLECTION], by)
    figure, axes = style.panels(len(points), height=2.7, sharey=True)
    for panel, (name, found) in zip(axes, points.items(), strict=True):
        _draw(panel, found, _laws(found, fit_all=fit_all), paper=paper and name == COLLECTION)
        _dress(panel, found, _axis_label(name) if len(points) > 1 else "speedup", by=by, log=log)
        if paper and name == COLLECTION:
            style.more_ticks(
                panel, published.beyond(published.collection(), panel.get_xticks()[-1])
            )
        style.mark_cores(panel, sweep.cores if by == "sampler.n" else 0)
    style.legend(figure)
    sentences += _fit_sentences(sweep, iterations, points[COLLECTION], by, fit_all=fit_all)
    return cli.Study(figure, _table(points, by), sentences)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = cli.parser(__doc__)
    parser.add_argument(
        "--end-to-end", action="store_true", help="add the speedup of whole iterations"
    )
    parser.add_argument(
        "--time-to-return",
        type=float,
        metavar="R",
        help="add the speedup of the time until return_mean >= R",
    )
    parser.add_argument("--paper", action="store_true", help="draw the papers' own points too")
    parser.add_argument("--log", action="store_true", help="use logarithmic axes")
    parser.add_argument(
        "--fit-all", action="store_true", help="fit the laws to oversubscribed points too"
    )
    args = parser.parse_args(argv)
    return cli.run(
        args,
        "speedup",
        lambda sweep: study(
            sweep,
            by=args.by,
            warmup=args.warmup,
            end_to_end=args.end_to_end,
            time_to_return=args.time_to_return,
            paper=args.paper,
            log=args.log,
            fit_all=args.fit_all,
        ),
    )


def _speedups_of_lines(cells: list[Cell]) -> dict[str, list[Point]]:
    """The speedups of every line that has two points or more."""
    return {line: speedups(group) for line, group in lines(cells).items() if len(group) > 1}


def _too_few(cells: list[Cell], by: str) -> str:
    if not cells:
        return "no run has a value in the column collect_s"
    values = sorted({f"{cell.by}" for cell in cells})
    return f"a speedup needs two values of {by} on one line; there is only {', '.join(values)}"


def _alone_sentences(cells: list[Cell], by: str) -> list[str]:
    return [
        f"{line}: no speedup, as all its runs have {by}={group[0].by}."
        for line, group in lines(cells).items()
        if len(group) == 1
    ]


def _base_sentences(found: dict[str, list[Point]], by: str) -> list[str]:
    return [
        of_line(
            line,
            f"No usable run at {by}=1: the speedup is over {by}={points[0].base:g}, "
            f"and the ideal is n/{points[0].base:g}.",
        )
        for line, points in found.items()
        if points[0].base != 1
    ]


def _fit_points(points: list[Point], *, fit_all: bool) -> list[Point]:
    """The points to fit: those within the machine's cores, or all when fewer than two are."""
    inside = [point for point in points if not point.cell.oversubscribed]
    return points if fit_all or len(inside) < 2 else inside


def _laws(found: dict[str, list[Point]], *, fit_all: bool) -> dict[str, scaling.Law | None]:
    laws = {}
    for line, points in found.items():
        fitted = fits.fit_cells([p.cell for p in _fit_points(points, fit_all=fit_all)])
        laws[line] = fitted.law if fitted else None
    return laws


def _fit_sentences(
    sweep: Sweep, iterations: pd.DataFrame, found: dict[str, list[Point]], by: str, *, fit_all: bool
) -> list[str]:
    learning = lines(measure(sweep, column_per_run(iterations, "learn_s"), by))
    sentences = []
    for line, points in found.items():
        chosen = [point.cell for point in _fit_points(points, fit_all=fit_all)]
        learn = [cell.mean for cell in learning.get(line, [])]
        texts = fits.describe(chosen, float(np.mean(learn)) if learn else None)
        if len(chosen) < len(points):
            texts.append(
                "The fit leaves out the points with more busy processes than cores "
                f"({len(points) - len(chosen)} of {len(points)}; --fit-all includes them)."
            )
        sentences += [of_line(line, text) for text in texts]
    return sentences


def _table(points: dict[str, dict[str, list[Point]]], by: str) -> pd.DataFrame:
    rows = [
        _row(name, line, point, by)
        for name, found in points.items()
        for line, group in found.items()
        for point in group
    ]
    return cli.without_lone_line(pd.DataFrame(rows), "line", "of")


def _row(name: str, line: str, point: Point, by: str) -> dict[str, object]:
    return {
        "line": line,
        "of": name,
        by: point.n,
        "repeats": point.cell.repeats,
        **point.cell.interval(positive=True).columns("seconds"),
        **point.speedup.columns("speedup"),
        "efficiency": point.speedup.value * point.base / point.n,
        "oversubscribed": point.cell.oversubscribed,
    }


def _draw_line(
    axes: Axes, points: list[Point], law: scaling.Law | None, look: style.Look, line: str
) -> None:
    over = "" if points[0].base == 1 else f", over {points[0].base:g}"
    label = f"{line or 'measured'} ({repeats_label(p.cell for p in points)}{over})"
    for point in points:
        style.point(axes, point.n, point.speedup, look, hollow=point.cell.oversubscribed)
    axes.plot([], [], look.marker, color=look.color, label=label)
    if law is not None:
        n = np.linspace(points[0].n, points[-1].n, 100)
        label = "Amdahl's law, fitted" if look == style.look(0) else "_nolegend_"
        speedup = law.speedup(n, points[0].base)
        axes.plot(n, speedup, color=look.color, linestyle=look.dash, lw=1, label=label)


def _draw(
    axes: Axes, found: dict[str, list[Point]], laws: dict[str, scaling.Law | None], *, paper: bool
) -> None:
    for i, (line, points) in enumerate(found.items()):
        _draw_line(axes, points, laws[line], style.look(i), line)
    n = {point.n for points in found.values() for point in points}
    if paper:
        rows = published.collection()
        published.draw(axes, rows, "speedup")
        n |= set(rows["n"])
    base = min(points[0].base for points in found.values())
    reach = np.array([base, max(n)])
    axes.plot(reach, reach / base, color=style.IDEAL_GREY, ls="--", zorder=1, label="ideal")


def _axis_label(name: str) -> str:
    """`collection speedup`, `end-to-end speedup`, `speedup to return 3000`."""
    return f"speedup {name}" if name.startswith("to ") else f"{name.replace(' ', '-')} speedup"


def _dress(axes: Axes, found: dict[str, list[Point]], label: str, *, by: str, log: bool) -> None:
    base = min(points[0].base for points in found.values())
    axes.set_xlabel(style.axis_name(by))
    axes.set_ylabel(label + ("" if base == 1 else f" over {by}={base:g}"))
    points = [point for group in found.values() for point in group]
    places = style.axis_places(point.n for point in points)
    hollow = any(point.cell.oversubscribed for point in points)
    style.scale_axes(axes, places, log=log, hollow=hollow, base=2)


if __name__ == "__main__":
    sys.exit(main())
