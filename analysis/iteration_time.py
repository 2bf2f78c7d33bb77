"""Draws the seconds an iteration collects or learns, against the number of workers."""

from __future__ import annotations

import math
import sys

import numpy as np
import pandas as pd

from walle.analysis.drawing import published, style
from walle.analysis.loading.directories import BadInputError, Scalar
from walle.analysis.measuring import times
from walle.analysis.measuring.cells import Cell, iterations_after_warmup, lines
from walle.analysis.measuring.design import is_positive, resolve_key
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, words

LABELS = {"collect": "collection", "learn": "learning"}
FLAGS = {
    "--of": {"choices": list(LABELS), "default": "collect", "help": "(default: collect)"},
    "--paper": cli.PAPER,
    "--log": cli.LOG,
}


def study(
    sweep: Sweep,
    *,
    of: str = "collect",
    by: str = "sampler.n",
    warmup: int = 1,
    paper: bool = False,
    log: bool = False,
) -> cli.Study:
    """Mean seconds of an iteration at every value of `by`, with 95% intervals.

    Args:
        sweep: the runs.
        of: `collect` or `learn`; collection is drawn beside the ideal, which falls as 1/n.
        by: the configuration key on the axis, such as `sampler.n` or `learner.n`.
        warmup: the number of iterations of each run that do not count.
        paper: draw the papers' points too.
        log: logarithmic axes.
    """
    by, column = resolve_key(sweep, by), f"{of}_s"
    iterations = iterations_after_warmup(sweep, warmup)
    cells = times.measure_seconds(sweep, iterations, column, by)
    if not cells:
        raise BadInputError(f"no run has a value in the column {column}")
    places = style.axis_places(cell.by for cell in cells)
    positive = all(map(is_positive, places))
    paper_points = published.collection() if paper and by == "sampler.n" else None
    figure, (axes,) = style.panels(1, height=2.7)
    if paper_points is not None:
        published.draw(axes, paper_points, column)
    for i, (line, group) in enumerate(lines(cells).items()):
        _draw_line(axes, line, group, places, style.look(i))
        if of == "collect" and positive:
            _draw_ideal(axes, group, "ideal" if i == 0 else "_nolegend_")
    axes.set_xlabel(style.axis_name(by))
    axes.set_ylabel(f"{LABELS[of]} per {times.unit_of(sweep).words} (s)")
    hollow = any(cell.oversubscribed for cell in cells)
    style.scale_axes(axes, places, log=log and positive, hollow=hollow)
    if paper_points is not None:
        published.extend_ticks(axes, paper_points)
    style.mark_cores(axes, sweep.cores if by == "sampler.n" else 0)
    style.legend(figure)
    sentences = words.sample(warmup, cells) + words.seconds(sweep, iterations, cells, by)
    if paper:
        sentences += published.caveat(set(sweep.values("batch_size")))
    return cli.Study(figure, _table(cells, by, column), sentences)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, FLAGS).parse_args(argv)
    options = ("by", "warmup", "of", "paper", "log")
    return cli.run(args, "iteration_time", study, options, figure=f"{args.of}_time")


def _draw_line(
    axes: style.Axes, line: str, cells: list[Cell], places: dict[Scalar, float], look: style.Look
) -> None:
    x = [places[cell.by] for cell in cells]
    for at, cell in zip(x, cells, strict=True):
        style.point(axes, at, cell.interval(positive=True), look, hollow=cell.oversubscribed)
    label = f"{line or 'measured'} ({words.repeats_label(cells)})"
    axes.plot(x, [cell.mean for cell in cells], color=look.color, linestyle=look.dash, lw=1)
    axes.plot([], [], color=look.color, marker=look.marker, linestyle=look.dash, label=label)


def _draw_ideal(axes: style.Axes, cells: list[Cell], label: str) -> None:
    n = np.geomspace(float(cells[0].by), float(cells[-1].by), 50)
    seconds = cells[0].mean * n[0] / n
    axes.plot(n, seconds, color=style.IDEAL_GREY, linestyle="--", zorder=1, label=label)


def _table(cells: list[Cell], by: str, column: str) -> pd.DataFrame:
    rows = [
        {
            "line": cell.line,
            by: cell.by,
            "repeats": cell.repeats,
            **cell.interval(positive=True).columns(column),
            "std_of_repeats": float(cell.values.std(ddof=1)) if cell.runs > 1 else math.nan,
            "oversubscribed": cell.oversubscribed,
        }
        for cell in cells
    ]
    return words.without_lone_line(pd.DataFrame(rows))


if __name__ == "__main__":
    sys.exit(main())
