"""Speedup against the number of samplers, beside the ideal and what the laws of scaling say.

speedup(n) = mean collect_s at n = 1 / mean collect_s at n, the warm-up iterations left out. The
intervals are 95% bootstrap intervals over seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import pandas as pd

from analysis import cli, fits, published, scaling, style
from analysis.directories import BadInputError
from analysis.measures import (
    Cell,
    column_per_run,
    iterations_after_warmup,
    lines,
    measure,
    numeric_axis,
    repeats_label,
    single_run_note,
    warmup_sentence,
)
from analysis.points import Point, all_reached, speedups
from analysis.runs import Sweep
from analysis.seconds import axis_name, axis_places

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
    """Speedup of collection and, when asked, end to end and of the time to a return.

    Args:
        sweep: the runs.
        by: the configuration key that counts the workers.
        warmup: iterations of each run that do not count.
        end_to_end: also the speedup of whole iterations.
        time_to_return: also the speedup of reaching this return_mean.
        paper: draw the papers' points.
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
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--end-to-end", action="store_true", help="also of whole iterations")
    parser.add_argument(
        "--time-to-return", type=float, metavar="R", help="also of the time until return_mean >= R"
    )
    parser.add_argument("--paper", action="store_true", help="overlay the papers' own points")
    parser.add_argument("--log", action="store_true", help="logarithmic axes")
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
    """The speedups of every line that has at least two points."""
    return {line: speedups(group) for line, group in lines(cells).items() if len(group) > 1}


def _too_few(cells: list[Cell], by: str) -> str:
    if not cells:
        return "no run has a value in the column collect_s"
    values = sorted({f"{cell.by}" for cell in cells})
    return f"a speedup needs two values of {by} on one line; there is only {', '.join(values)}"


def _alone_sentences(cells: list[Cell], by: str) -> list[str]:
    return [
        f"{line}: only {by}={group[0].by}, so there is no speedup to show."
        for line, group in lines(cells).items()
        if len(group) == 1
    ]


def _base_sentences(found: dict[str, list[Point]], by: str) -> list[str]:
    return [
        f"{f'{line}: ' if line else ''}No usable run at {by}=1: speedup is over "
        f"{by}={points[0].base:g}, and ideal is n/{points[0].base:g}."
        for line, points in found.items()
        if points[0].base != 1
    ]


def _fit_points(points: list[Point], *, fit_all: bool) -> list[Point]:
    """The points within the machine's cores, when there are at least two of them."""
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
                f"Fitted without the points with more busy processes than cores "
                f"({len(points) - len(chosen)} of {len(points)}; --fit-all takes them in)."
            )
        sentences += [f"{line}: {text}" if line else text for text in texts]
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
    seconds = point.cell.interval(positive=True)
    return {
        "line": line,
        "of": name,
        by: point.n,
        "repeats": point.cell.repeats,
        "seconds": seconds.value,
        "seconds_low": seconds.low,
        "seconds_high": seconds.high,
        "speedup": point.speedup.value,
        "speedup_low": point.speedup.low,
        "speedup_high": point.speedup.high,
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
    axes.set_xlabel(axis_name(by))
    axes.set_ylabel(label + ("" if base == 1 else f" over {by}={base:g}"))
    style.ticks_at(axes, axis_places(p.n for points in found.values() for p in points), log=log)
    if log:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        style.from_zero(axes)
    if any(p.cell.oversubscribed for points in found.values() for p in points):
        style.hollow_legend(axes)


if __name__ == "__main__":
    sys.exit(main())
