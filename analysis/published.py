"""The papers' own numbers, from the files beside the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from analysis.style import PAPER_GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REFERENCE = Path(__file__).parent / "reference"
WALLE = "WALL-E 2018"
STEPS_PER_ITERATION = 20_000
FRANS_HAFNER = "Frans & Hafner 2016"
MARKERS = {WALLE: "x", FRANS_HAFNER: "+"}


def collection() -> pd.DataFrame:
    """`source`, `n`, `collect_s`, `learn_s`, `speedup`, as published, in seconds."""
    walle = pd.read_csv(REFERENCE / "walle_2018.csv")
    trpo = pd.read_csv(REFERENCE / "parallel_trpo_2016.csv")
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "source": WALLE,
                    "n": walle["samplers"],
                    "collect_s": walle["collect_min"] * 60,
                    "learn_s": walle["learn_min"] * 60,
                    "speedup": walle["speedup"],
                }
            ),
            pd.DataFrame(
                {
                    "source": FRANS_HAFNER,
                    "n": trpo["threads"],
                    "collect_s": trpo["collect_s"],
                    "speedup": trpo["collect_s"].iloc[0] / trpo["collect_s"],
                }
            ),
        ],
        ignore_index=True,
    )


def caveat(batch_sizes: set[object]) -> list[str]:
    """Says so where the runs' iterations are of another size than the papers'."""
    if batch_sizes == {STEPS_PER_ITERATION}:
        return []
    ours = ", ".join(sorted(str(size) for size in batch_sizes))
    return [
        f"The papers' iterations were of {STEPS_PER_ITERATION:,} steps, these are of {ours}: "
        "compare the slopes, not the seconds."
    ]


def beyond(rows: pd.DataFrame, n: float) -> list[float]:
    """The numbers of workers in `rows` that are greater than `n`, for the axis."""
    return sorted({float(value) for value in rows["n"] if value > n})


def draw(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    """Draws one column of `collection` against n, a marker for each source."""
    for source, points in rows.dropna(subset=[column]).groupby("source"):
        marker = MARKERS[str(source)]
        axes.plot(points["n"], points[column], marker, color=PAPER_GREY, label=source, zorder=2)


def returns(task: str) -> pd.DataFrame:
    """Published returns of one task, such as `HalfCheetah`, whatever its version."""
    rows = pd.read_csv(REFERENCE / "returns_published.csv")
    return rows[rows["task"] == task].reset_index(drop=True)
