"""Reads and draws the numbers that the papers published (analysis/reference/)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from walle.analysis.drawing.style import PAPER_GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REFERENCE = Path(__file__).parents[1] / "reference"
WALLE = "WALL-E 2018"
STEPS_PER_ITERATION = 20_000
FRANS_HAFNER = "Frans & Hafner 2016"
MARKERS = {WALLE: "x", FRANS_HAFNER: "+"}


def collection() -> pd.DataFrame:
    """The published times: `source`, `n`, `collect_s`, `learn_s` and `speedup`; in seconds."""
    walle = pd.read_csv(REFERENCE / "walle_2018.csv").rename(columns={"samplers": "n"})
    walle = walle.assign(
        source=WALLE, collect_s=walle["collect_min"] * 60, learn_s=walle["learn_min"] * 60
    )
    trpo = pd.read_csv(REFERENCE / "parallel_trpo_2016.csv").rename(columns={"threads": "n"})
    trpo = trpo.assign(source=FRANS_HAFNER, speedup=trpo["collect_s"].iloc[0] / trpo["collect_s"])
    columns = ["source", "n", "collect_s", "learn_s", "speedup"]
    return pd.concat([walle, trpo], ignore_index=True)[columns]


def caveat(batch_sizes: set[object]) -> list[str]:
    """A sentence where the runs' iterations have another size than the papers' iterations."""
    if batch_sizes == {STEPS_PER_ITERATION}:
        return []
    ours = ", ".join(sorted(str(size) for size in batch_sizes))
    return [
        f"The papers' iterations had {STEPS_PER_ITERATION:,} steps, the runs' have {ours}: "
        "compare the slopes, not the seconds."
    ]


def beyond(rows: pd.DataFrame, n: float) -> list[float]:
    """The numbers of workers in `rows` that are greater than `n`: further ticks for the axis."""
    return sorted({float(value) for value in rows["n"] if value > n})


def draw(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    """Draws a column of `collection` against n, with a marker for each source."""
    for source, points in rows.dropna(subset=[column]).groupby("source"):
        marker = MARKERS[str(source)]
        axes.plot(points["n"], points[column], marker, color=PAPER_GREY, label=source, zorder=2)


def returns(task: str) -> pd.DataFrame:
    """The published returns of a task, such as `HalfCheetah`, of any version."""
    rows = pd.read_csv(REFERENCE / "returns_published.csv")
    return rows[rows["task"] == task].reset_index(drop=True)
