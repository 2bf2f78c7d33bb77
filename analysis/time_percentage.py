"""Draws the shares of time of collecting, learning and each section of a process.

Each combination of settings has a bar. The left panel shows shares of the iteration. In lock-step,
collecting, learning and the rest add up to 100%. If collecting and learning overlap, the shares add
up to more, so they are drawn below one another. The other panels show the sections of the samplers
(their mean) and of the agent. A section has the same colour in every figure.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.measuring import groups, stats, wall_clock
from walle.analysis.runs import LOCK_STEP, Scalar, Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import joined

WHOLE = ("collect_s", "learn_s", "other_s")
TELLING = {
    "learn": "Learning takes",
    "wait_policy": "A sampler waits for a policy",
    "wait_slot": "A sampler waits for a free slot",
    "wait_experience": "The agent waits for experience",
}
SMALL = 0.01
BAR_INCHES, LEAST_INCHES = 0.24, 1.5  # of a bar; of a figure, whose legend needs them
BUSY = "busy"
Key = tuple[str, Scalar]
Parts = dict[str, list[groups.Cell]]  # the share of each part, such as a section, in the time


def study(sweep: Sweep, *, by: str | None = None, warmup: int = 1) -> cli.Study:
    """Shares of the wall clock at every value of `by`; the table has their 95% intervals."""
    by = groups.resolve_key(sweep, by) if by else groups.axis_of(sweep)
    panels = _shares(sweep, warmup, by)
    every = [
        (panel, part, cell)
        for panel, parts in panels.items()
        for part, cells in parts.items()
        for cell in cells
    ]
    bars = list(dict.fromkeys(cell.key for _, _, cell in every))
    height = max(LEAST_INCHES, 0.75 + BAR_INCHES * len(bars))
    figure, axes = style.panels(len(panels), height=height, sharey=True, page=True)
    for area, (panel, parts) in zip(axes, panels.items(), strict=True):
        _draw(area, parts, bars, stacked=panel != BUSY)
        area.set_title("busy, of the iteration" if panel == BUSY else panel)
        area.set_xlabel("share of time (%)")
    names = [joined((line, groups.value_text(by, value))) for line, value in bars]
    axes[0].set_yticks(range(len(bars)), names)
    axes[0].set_ylim(len(bars) - 0.5, -0.5)
    style.legend(figure)
    texts = []
    # With a single line, the ends of each telling part; else its least and its most.
    for telling, words in TELLING.items():
        cells = [cell for _, part, cell in every if part == telling]
        means = [cell.mean for cell in cells]
        if max(means, default=0.0) > SMALL:
            ends = [cells[0], cells[-1]] if len(cells) > 1 else cells
            if len({cell.line for cell in cells}) > 1:
                ends = [cells[means.index(x)] for x in (min(means), max(means))]
            spent = [
                f"{100 * cell.mean:.0f}% of the time at {joined((f'{by}={cell.by}', cell.line))}"
                for cell in ends
            ]
            texts.append(f"{words} {' and '.join(spent)}.")
    counted = [cell for cells in next(iter(panels.values())).values() for cell in cells]
    texts += sentences.few_repeats(counted) + sentences.also_differ(sweep, by)
    rows = [
        {
            "line": cell.line,
            "of": panel,
            "part": part,
            by: cell.by,
            "repeats": cell.repeats,
            **stats.Interval(*(100 * np.clip(cell.interval(), 0, 1)).tolist()).columns("percent"),
        }
        for panel, part, cell in every
    ]
    table = sentences.without_lone_line(pd.DataFrame(rows))
    return cli.Study(figure, table, texts, notes=sentences.sample(warmup, counted))


main = cli.command("time_percentage", study, __doc__)


def _shares(sweep: Sweep, warmup: int, by: str) -> dict[str, Parts]:
    """The shares of each panel, by part."""

    def shares(frame: pd.DataFrame, whole: str, columns: Iterable[str]) -> Parts:
        return {
            column.removesuffix("_s"): groups.measure(sweep, _ratios(frame, column, whole), by)
            for column in columns
        }

    frame = wall_clock.iterations_after_warmup(sweep, warmup)
    groups.require(frame, *WHOLE, "iteration_s")
    if any(run.mode != LOCK_STEP for run in sweep.runs):
        panels = {BUSY: shares(frame, "iteration_s", WHOLE[:2])}
    else:
        panels = {"iteration": shares(frame, "iteration_s", WHOLE)}
    frame = wall_clock.timing_after_warmup(sweep, warmup)
    if not len(frame):
        sweep.note("The shares of each process are not drawn: no run has a timing.csv")
        return panels
    is_agent = frame["process"].astype(str) == wall_clock.AGENT
    for panel, rows in (("samplers", frame[~is_agent]), ("agent", frame[is_agent])):
        sections = [c for c in map(str, rows.columns) if c.endswith("_s") and c != "total_s"]
        parts = shares(rows, "total_s", [c for c in sections if rows[c].any()])
        panels |= {panel: parts} if any(parts.values()) else {}
    return panels


def _ratios(frame: pd.DataFrame, part: str, whole: str) -> dict[str, stats.FloatArray]:
    """The share of `part` in every iteration of each run, weighted by the iteration's length.

    The mean of these shares is the share in all of the run's time: a long iteration counts more
    than a short one.
    """
    sums = frame.groupby(["run", "iteration"], observed=True)[[part, whole]].sum()
    return {
        str(run): (rows[part] / rows[whole].mean()).to_numpy(float)
        for run, rows in sums.groupby(level="run", observed=True)
        if rows[whole].sum() > 0
    }


def _draw(axes: style.Axes, parts: Parts, bars: list[Key], *, stacked: bool) -> None:
    """Draws a bar for each combination from the top: parts in a row, or below one another.

    The parts that are small everywhere join `other`.
    """
    means: dict[str, stats.FloatArray] = {}
    for part, cells in parts.items():
        of_bar = {cell.key: cell.mean for cell in cells}
        means[part] = np.array([of_bar.get(bar, 0.0) for bar in bars])
    for part in [part for part in means if part != "other" and means[part].max() < SMALL]:
        means["other"] = means.get("other", 0.0) + means.pop(part)
    ordered = sorted(means, key=lambda part: (part == "other", part.startswith("wait")))
    height = 0.8 if stacked else 0.8 / max(1, len(means))
    left = np.zeros(len(bars))
    for i, part in enumerate(ordered):
        width = 100 * means[part]
        shift = 0.0 if stacked else (i - (len(means) - 1) / 2) * height
        color, hatch = style.section(part)
        axes.barh(
            np.arange(len(bars)) + shift,
            width,
            height,
            left=left if stacked else None,
            color=color,
            hatch=hatch,
            edgecolor="black",
            linewidth=0.5,
            label=part.replace("_", " "),
        )
        left += width
    if stacked:
        axes.set_xlim(0, 100)


if __name__ == "__main__":
    raise SystemExit(main())
