"""Draws the shares of time of collecting, learning and each section of a process.

The left panel shows shares of the iteration. In lock-step, collecting, learning and the rest add up
to 100%. Where collecting and learning overlap they add up to more, so their shares are drawn side
by side. The other panels show the sections of the samplers (their mean) and of the agent.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.loading.directories import Scalar
from walle.analysis.measuring.cells import (
    Cell,
    iterations_after_warmup,
    measure,
    require,
)
from walle.analysis.measuring.clocks import timing_after_warmup
from walle.analysis.measuring.design import resolve_key
from walle.analysis.measuring.stats import FloatArray, Interval
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, words

WHOLE = ("collect_s", "learn_s", "other_s")
TELLING = {
    "learn": "Learning takes",
    "wait_policy": "A sampler waits for a policy",
    "wait_slot": "A sampler waits for a free slot",
    "wait_experience": "The agent waits for experience",
}
SMALL = 0.01
BUSY = "busy"


class Share(NamedTuple):
    """The share of a part, such as a section, in the time of a cell; a fraction."""

    panel: str
    part: str
    cell: Cell


def study(sweep: Sweep, *, by: str = "sampler.n", warmup: int = 1) -> cli.Study:
    """Shares of the wall clock at every value of `by`; the table has their 95% intervals."""
    by = resolve_key(sweep, by)
    shares = _iteration_shares(sweep, warmup, by) + _process_shares(sweep, warmup, by)
    panels = list(dict.fromkeys(share.panel for share in shares))
    rows = list(dict.fromkeys(share.cell.line for share in shares))
    figure, axes = style.panels(len(panels), len(rows), height=2.9, sharey=True)
    for i, line in enumerate(rows):
        for j, panel in enumerate(panels):
            mine = [s for s in shares if s.panel == panel and s.cell.line == line]
            area = axes[i * len(panels) + j]
            _draw(area, _without_small(mine), stacked=panel != BUSY)
            title = "busy, of the iteration" if panel == BUSY else panel
            area.set_title(f"{title}, {line}" if line else title)
            area.set_xlabel(style.axis_name(by))
        axes[i * len(panels)].set_ylabel("share of wall clock (%)")
    cells = [share.cell for share in shares if share.panel == panels[0]]
    sentences = words.sample(warmup, cells) + _sentences(shares, by)
    return cli.Study(figure, _table(shares, by), sentences)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__).parse_args(argv)
    return cli.run(args, "time_percentage", study, ("by", "warmup"))


def _iteration_shares(sweep: Sweep, warmup: int, by: str) -> list[Share]:
    frame = iterations_after_warmup(sweep, warmup)
    require(frame, *WHOLE, "iteration_s")
    overlapped = {run.name for run in sweep.runs if run.overlapped}
    panel = BUSY if overlapped else "iteration"
    return [
        Share(panel, column.removesuffix("_s"), cell)
        for column in (WHOLE[:2] if overlapped else WHOLE)
        for cell in measure(sweep, _ratios(frame, column, "iteration_s"), by)
    ]


def _process_shares(sweep: Sweep, warmup: int, by: str) -> list[Share]:
    frame = timing_after_warmup(sweep, warmup)
    if not len(frame):
        sweep.note("The shares of each process are not drawn: no run has a timing.csv")
        return []
    is_agent = frame["process"].astype(str) == "agent"
    shares = []
    for panel, rows in (("samplers", frame[~is_agent]), ("agent", frame[is_agent])):
        sections = [c for c in map(str, rows.columns) if c.endswith("_s") and c != "total_s"]
        for column in sections:
            if rows[column].any():
                cells = measure(sweep, _ratios(rows, column, "total_s"), by)
                shares += [Share(panel, column.removesuffix("_s"), cell) for cell in cells]
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


def _without_small(shares: list[Share]) -> dict[str, dict[Scalar, float]]:
    """The share of each part at each value; the parts that are small everywhere join `other`."""
    means: dict[str, dict[Scalar, float]] = {}
    for share in shares:
        means.setdefault(share.part, {})[share.cell.by] = share.cell.mean
    small = [p for p, values in means.items() if p != "other" and max(values.values()) < SMALL]
    for part in small:
        rest = means.setdefault("other", {})
        for value, share_ in means.pop(part).items():
            rest[value] = rest.get(value, 0.0) + share_
    if "other" in means:
        means["other"] = means.pop("other")
    return means


def _draw(axes: style.Axes, means: dict[str, dict[Scalar, float]], *, stacked: bool) -> None:
    values = list(dict.fromkeys(value for part in means.values() for value in part))
    place = np.arange(len(values))
    width = 0.8 if stacked else 0.8 / max(1, len(means))
    bottom = np.zeros(len(values))
    for i, (part, found) in enumerate(means.items()):
        height = np.array([100 * found.get(value, 0.0) for value in values])
        where = place if stacked else place + (i - (len(means) - 1) / 2) * width
        axes.bar(
            where,
            height,
            width,
            bottom=bottom if stacked else None,
            edgecolor="black",
            linewidth=0.5,
            **_fill(part, i),
            label=part.replace("_", " "),
        )
        bottom += height
    axes.set_xticks(place, [str(value) for value in values])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, handlelength=1.2)


def _fill(part: str, index: int) -> dict[str, Any]:
    """Colours for work, pale grey for waiting, white for the rest: clear in grey print too."""
    if part == "other":
        return {"color": "white"}
    if part.startswith("wait"):
        return {"color": "#d9d9d9", "hatch": "...." if part == "wait_slot" else ""}
    look = style.look(index)
    return {"color": look.color, "hatch": look.hatch}


def _sentences(shares: list[Share], by: str) -> list[str]:
    found: dict[tuple[str, str], list[Cell]] = {}
    for share in shares:
        if share.part in TELLING:
            found.setdefault((share.cell.line, share.part), []).append(share.cell)
    said = []
    for (line, part), cells in found.items():
        if max(cell.mean for cell in cells) > SMALL:
            ends = [cells[0], cells[-1]] if len(cells) > 1 else cells
            spent = [f"{100 * cell.mean:.0f}% of the time at {by}={cell.by}" for cell in ends]
            said.append(words.of_line(line, f"{TELLING[part]} {', '.join(spent)}."))
    return said


def _table(shares: list[Share], by: str) -> pd.DataFrame:
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
    return words.without_lone_line(pd.DataFrame(rows))


if __name__ == "__main__":
    sys.exit(main())
