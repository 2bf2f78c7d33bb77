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
from walle.analysis.measuring import design, groups, stats, wall_clock
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
    cell: groups.Cell


def study(
    sweep: Sweep, *, by: str | None = None, warmup: int = 1, compiling: bool = False
) -> cli.Study:
    """Shares of the wall clock at every value of `by`; the table has their 95% intervals."""
    by = design.resolve_key(sweep, by) if by else design.axis_of(sweep)
    shares = _shares(sweep, warmup, by, compiling=compiling)
    panels = list(dict.fromkeys(share.panel for share in shares))
    bars = list(dict.fromkeys(share.cell.key for share in shares))
    height = 0.75 + BAR_INCHES * len(bars)
    figure, axes = style.panels(len(panels), height=height, sharey=True, page=True)
    for area, panel in zip(axes, panels, strict=True):
        mine = [share for share in shares if share.panel == panel]
        _draw(area, mine, bars, stacked=panel != BUSY)
        area.set_title("busy, of the iteration" if panel == BUSY else panel)
        area.set_xlabel("share of time (%)")
    leaf = by.split(".")[-1]
    named = "" if leaf in design.NAMING_LEAVES else f"{leaf} "
    names = [joined((line, f"{named}{value}")) for line, value in bars]
    axes[0].set_yticks(range(len(bars)), names)
    axes[0].set_ylim(len(bars) - 0.5, -0.5)
    style.legend(figure)
    cells = [share.cell for share in shares if share.panel == panels[0]]
    texts = sentences.sample(warmup, cells) + _sentences(shares, by)
    texts += sentences.machine(sweep) + sentences.also_differ(sweep, by)
    rows = [
        {
            "line": cell.line,
            "of": panel,
            "part": part,
            by: cell.by,
            "repeats": cell.repeats,
            **stats.Interval(*(100 * np.clip(cell.interval(), 0, 1)).tolist()).columns("percent"),
        }
        for panel, part, cell in shares
    ]
    return cli.Study(figure, sentences.without_lone_line(pd.DataFrame(rows)), texts)


main = cli.command("time_percentage", study, __doc__, {"--compiling": cli.COMPILING})


def _shares(sweep: Sweep, warmup: int, by: str, *, compiling: bool) -> list[TimeShare]:
    frame = wall_clock.iterations_after_warmup(sweep, warmup, compiling=compiling)
    groups.require(frame, *WHOLE, "iteration_s")
    overlapped = any(run.overlapped for run in sweep.runs)
    columns = list(WHOLE[:2] if overlapped else WHOLE)
    parts = [(BUSY if overlapped else "iteration", frame, "iteration_s", columns)]
    frame = wall_clock.timing_after_warmup(sweep, warmup, compiling=compiling)
    if len(frame):
        is_agent = frame["process"].astype(str) == wall_clock.AGENT
        for panel, rows in (("samplers", frame[~is_agent]), ("agent", frame[is_agent])):
            columns = [c for c in map(str, rows.columns) if c.endswith("_s") and c != "total_s"]
            parts.append((panel, rows, "total_s", [c for c in columns if rows[c].any()]))
    else:
        sweep.note("The shares of each process are not drawn: no run has a timing.csv")
    return [
        TimeShare(panel, column.removesuffix("_s"), cell)
        for panel, rows, whole, columns in parts
        for column in columns
        for cell in groups.measure(sweep, _ratios(rows, column, whole), by)
    ]


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


def _draw(axes: style.Axes, shares: list[TimeShare], bars: list[Key], *, stacked: bool) -> None:
    """Draws a bar for each combination from the top: parts in a row, or below one another.

    The parts that are small everywhere join `other`.
    """
    means: dict[str, stats.FloatArray] = {}
    for share in shares:
        mine = means.setdefault(share.part, np.zeros(len(bars)))
        mine[bars.index(share.cell.key)] = share.cell.mean
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


def _sentences(shares: list[TimeShare], by: str) -> list[str]:
    # The ends of each telling part on a single line, else its least and its most.
    of_part: dict[str, list[groups.Cell]] = {}
    for share in shares:
        if share.part in TELLING:
            of_part.setdefault(share.part, []).append(share.cell)
    texts = []
    for part, cells in of_part.items():
        means = [cell.mean for cell in cells]
        if max(means) > SMALL:
            ends = [cells[0], cells[-1]] if len(cells) > 1 else cells
            if len({cell.line for cell in cells}) > 1:
                ends = [cells[means.index(x)] for x in (min(means), max(means))]
            spent = [
                f"{100 * cell.mean:.0f}% of the time at {joined((f'{by}={cell.by}', cell.line))}"
                for cell in ends
            ]
            texts.append(f"{TELLING[part]} {' and '.join(spent)}.")
    return texts


if __name__ == "__main__":
    sys.exit(main())
