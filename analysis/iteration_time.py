"""Draws the seconds to collect steps, or to learn from them, by number of workers.

Each task has a panel. Without --by the x axis is `sampler.n` if it varies, else what varies.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, published, style
from walle.analysis.measuring import comparisons, groups, wall_clock
from walle.analysis.runs import BadInputError, Sweep
from walle.analysis.writing import cli, sentences

PARTS = {"collect": "collection", "learn": "learning"}
IDEAL: dict[str, Any] = {"linestyle": "--", "linewidth": 0.8, "zorder": 1}
FLAGS = {
    "--of": {"choices": list(PARTS), "default": "collect", "help": "(default: collect)"},
    "--paper": cli.PAPER,
    "--log": cli.LOG,
}


def study(
    sweep: Sweep,
    *,
    of: str = "collect",
    by: str | None = None,
    warmup: int = 1,
    paper: bool = False,
    log: bool = False,
) -> cli.Study:
    """Mean seconds of an iteration at every value of `by`, with 95% intervals."""
    by = groups.resolve_key(sweep, by) if by else groups.axis_of(sweep)
    column = f"{of}_s"
    iterations = wall_clock.iterations_after_warmup(sweep, warmup)
    cells = wall_clock.measure_seconds(sweep, iterations, column, by)
    if not cells:
        raise BadInputError(f"no run has a value in the column {column}")
    places = style.axis_places(cell.by for cell in cells)
    log = log and all(map(groups.is_positive, places))
    numeric = all(isinstance(value, int | float) for value in places)
    ideal = of == "collect" and by in comparisons.WORKERS
    papers = published.collection() if paper and by == "sampler.n" else None
    tasks = labels.panels(sweep, cells)
    looks = labels.looks(line for mine in tasks.values() for line in mine)
    figure, (row,) = labels.axes_of(tasks)
    for axes, mine in zip(row, tasks.values(), strict=True):
        if papers is not None:
            published.draw(axes, papers, column)
        for i, (line, group) in enumerate(mine.items()):
            beside = places if numeric else labels.aside(places, i, len(mine))
            look = looks[line]
            for cell in group:
                interval, hollow = cell.interval(positive=True), cell.oversubscribed
                dots = cell.per_run if cell.runs > 1 else ()
                style.point(axes, beside[cell.by], interval, look, hollow=hollow, dots=dots)
            if numeric:  # joined by lines: the values between them mean something
                x, y = [beside[cell.by] for cell in group], [cell.mean for cell in group]
                axes.plot(x, y, color=look.color, linestyle=look.dash, lw=1)
            dash = look.dash if numeric else "none"
            label = f"{line or 'measured'} ({sentences.repeats_label(group)})"
            axes.plot([], [], color=look.color, marker=look.marker, linestyle=dash, label=label)
            if ideal:  # the first point over n
                n = np.geomspace(float(group[0].by), float(group[-1].by), 50)
                alone = len(mine) == 1
                color, label = (style.IDEAL_GREY, "ideal") if alone else (look.color, "_")
                axes.plot(n, group[0].mean * n[0] / n, color=color, label=label, **IDEAL)
        if ideal and len(mine) > 1:
            axes.plot([], [], color=style.IDEAL_GREY, label="ideal", **IDEAL)
        axes.set_xlabel(style.AXIS_NAMES.get(by, by))
        axes.margins(x=0.1)
        hollow = any(cell.oversubscribed for group in mine.values() for cell in group)
        style.scale_axes(axes, places, log=log, hollow=hollow)
        if not numeric:
            axes.set_xlim(-0.5, len(places) - 0.5)
        if papers is not None:
            published.extend_ticks(axes, papers)
        style.mark_cores(axes, sweep.cores if by == "sampler.n" else 0)
    for axes in row[:: labels.PANELS]:
        axes.set_ylabel(f"{PARTS[of]} (s)\nper {wall_clock.unit_of(sweep).words}")
    style.legend(figure)
    texts = sentences.few_repeats(cells) + sentences.seconds(sweep, iterations, by)
    texts += sentences.also_differ(sweep, by)
    if of == "collect":
        texts += sentences.throughput(sweep, cells)
    if paper:
        texts += published.caveat(set(sweep.values("batch_size")))
    rows = [
        {
            "line": cell.line,
            by: cell.by,
            "repeats": cell.repeats,
            **cell.interval(positive=True).columns(column),
            "std_of_repeats": float(cell.per_run.std(ddof=1)) if cell.runs > 1 else math.nan,
            "oversubscribed": cell.oversubscribed,
        }
        for cell in cells
    ]
    table, notes = sentences.without_lone_line(pd.DataFrame(rows)), sentences.sample(warmup, cells)
    return cli.Study(figure, table, texts, notes=notes)


main = cli.command("iteration_time", study, __doc__, FLAGS, figure=lambda args: f"{args.of}_time")


if __name__ == "__main__":
    raise SystemExit(main())
