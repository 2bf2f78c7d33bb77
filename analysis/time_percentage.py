"""Draws the shares of time of collecting, learning and each section of a process.

Each combination of settings has a bar. The left panel shows shares of the iteration. In lock-step,
collecting, learning and the rest add up to 100%. Where collecting and learning overlap they add up
to more, so their shares are drawn below one another. The other panels show the sections of the
samplers (their mean) and of the agent. A section has the same colour in every figure.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.loading.directories import Scalar
from walle.analysis.measuring.groups import (
    NAMING_LEAVES,
    Cell,
    axis_of,
    measure,
    require,
    resolve_key,
)
from walle.analysis.measuring.stats import FloatArray, Interval
from walle.analysis.measuring.wall_clock import AGENT, iterations_after_warmup, timing_after_warmup
from walle.analysis.runs import Sweep
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
BAR_INCHES = 0.24
Key = tuple[str, Scalar]
BUSY = "busy"


class TimeShare(NamedTuple):
    """The share of a part, such as a section, in the time of a cell; a fraction."""

    panel: str
    part: str
    cell: Cell


def study(
    sweep: Sweep, *, by: str | None = None, warmup: int = 1, compiling: bool = False
) -> cli.Study:
    """Shares of the wall clock at every value of `by`; the table has their 95% intervals."""
    by = resolve_key(sweep, by) if by else axis_of(sweep)
    shares = _shares(sweep, warmup, by, compiling=compiling)
    panels = list(dict.fromkeys(share.panel for share in shares))
    bars = list(dict.fromkeys(share.cell.key for share in shares))
    height = 0.75 + BAR_INCHES * len(bars)
    figure, axes = style.panels(
        len(panels), height=height, columns=len(panels), sharey=True, page=True
    )
    for area, panel in zip(axes, panels, strict=True):
        mine = [share for share in shares if share.panel == panel]
        _draw(area, _without_small(mine), bars, stacked=panel != BUSY)
        area.set_title("busy, of the iteration" if panel == BUSY else panel)
        area.set_xlabel("share of time (%)")
    leaf = by.split(".")[-1]
    texts = [str(value) if leaf in NAMING_LEAVES else f"{leaf} {value}" for _, value in bars]
    names = [joined((line, text)) for (line, _), text in zip(bars, texts, strict=True)]
    axes[0].set_yticks(range(len(bars)), names)
    axes[0].set_ylim(len(bars) - 0.5, -0.5)
    style.legend(figure)
    cells = [share.cell for share in shares if share.panel == panels[0]]
    texts = sentences.sample(warmup, cells) + _sentences(shares, by)
    texts += sentences.machine(sweep) + sentences.also_differ(sweep, by)
    return cli.Study(figure, _table(shares, by), texts)


main = cli.command("time_percentage", study, __doc__, {"--compiling": cli.COMPILING})


def _shares(sweep: Sweep, warmup: int, by: str, *, compiling: bool) -> list[TimeShare]:
    frame = iterations_after_warmup(sweep, warmup, compiling=compiling)
    require(frame, *WHOLE, "iteration_s")
    overlapped = {run.name for run in sweep.runs if run.overlapped}
    panel = BUSY if overlapped else "iteration"
    shares = [
        TimeShare(panel, column.removesuffix("_s"), cell)
        for column in (WHOLE[:2] if overlapped else WHOLE)
        for cell in measure(sweep, _ratios(frame, column, "iteration_s"), by)
    ]
    frame = timing_after_warmup(sweep, warmup, compiling=compiling)
    if not len(frame):
        sweep.note("The shares of each process are not drawn: no run has a timing.csv")
        return shares
    is_agent = frame["process"].astype(str) == AGENT
    for panel, rows in (("samplers", frame[~is_agent]), ("agent", frame[is_agent])):
        sections = [c for c in map(str, rows.columns) if c.endswith("_s") and c != "total_s"]
        for column in sections:
            if rows[column].any():
                cells = measure(sweep, _ratios(rows, column, "total_s"), by)
                shares += [TimeShare(panel, column.removesuffix("_s"), cell) for cell in cells]
    return shares


def _ratios(frame: pd.DataFrame, part: str, whole: str) -> dict[str, FloatArray]:
    """The share of `part` in every iteration of each run, weighted by the iteration's length.

    The mean of these shares is the share in all of the run's time: a long iteration counts more
    than a short one.
    """
    sums = frame.groupby(["run", "iteration"], observed=True)[[part, whole]].sum()
    found = {}
    for run, rows in sums.groupby(level="run", observed=True):
        if rows[whole].sum() > 0:
            found[str(run)] = (rows[part] / rows[whole].mean()).to_numpy(float)
    return found


def _without_small(shares: list[TimeShare]) -> dict[str, dict[Key, float]]:
    """The share of each part in each bar; the parts that are small everywhere join `other`."""
    means: dict[str, dict[Key, float]] = {}
    for share in shares:
        means.setdefault(share.part, {})[share.cell.key] = share.cell.mean
    small = [p for p, bars in means.items() if p != "other" and max(bars.values()) < SMALL]
    for part in small:
        rest = means.setdefault("other", {})
        for bar, share_ in means.pop(part).items():
            rest[bar] = rest.get(bar, 0.0) + share_
    ordered = sorted(means, key=lambda part: (part == "other", part.startswith("wait")))
    return {part: means[part] for part in ordered}


def _draw(
    axes: style.Axes, means: dict[str, dict[Key, float]], bars: list[Key], *, stacked: bool
) -> None:
    """Draws a bar for each combination from the top: parts in a row, or below one another."""
    place = np.arange(len(bars))
    height = 0.8 if stacked else 0.8 / max(1, len(means))
    left = np.zeros(len(bars))
    for i, (part, found) in enumerate(means.items()):
        width = np.array([100 * found.get(bar, 0.0) for bar in bars])
        shift = 0.0 if stacked else (i - (len(means) - 1) / 2) * height
        color, hatch = style.section(part)
        axes.barh(
            place + shift,
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


def _sentences(shares: list[TimeShare], by: str) -> list[str]:
    # The ends of each telling part on a single line, else its least and its most.
    found: dict[str, list[Cell]] = {}
    for share in shares:
        if share.part in TELLING:
            found.setdefault(share.part, []).append(share.cell)
    texts = []
    for part, cells in found.items():
        if max(cell.mean for cell in cells) > SMALL:
            ends = [cells[0], cells[-1]] if len(cells) > 1 else cells
            if len({cell.line for cell in cells}) > 1:
                ordered = sorted(cells, key=lambda cell: cell.mean)
                ends = [ordered[0], max(cells, key=lambda cell: cell.mean)]
            where = [joined((f"{by}={cell.by}", cell.line)) for cell in ends]
            spent = [
                f"{100 * cell.mean:.0f}% of the time at {text}"
                for cell, text in zip(ends, where, strict=True)
            ]
            texts.append(f"{TELLING[part]} {' and '.join(spent)}.")
    return texts


def _table(shares: list[TimeShare], by: str) -> pd.DataFrame:
    rows = [
        {
            "line": cell.line,
            "of": panel,
            "part": part,
            by: cell.by,
            "repeats": cell.repeats,
            **Interval(*(100 * np.clip(cell.interval(), 0, 1)).tolist()).columns("percent"),
        }
        for panel, part, cell in shares
    ]
    return sentences.without_lone_line(pd.DataFrame(rows))


if __name__ == "__main__":
    sys.exit(main())
