"""Reads and draws the numbers that the papers published (analysis/reference/)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from walle.analysis.drawing import style

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
    """A sentence if the runs' iterations differ in size from the papers' iterations."""
    if batch_sizes == {STEPS_PER_ITERATION}:
        return []
    ours = ", ".join(sorted(str(size) for size in batch_sizes))
    return [
        f"The papers' iterations had {STEPS_PER_ITERATION:,} steps, the runs' have {ours}: "
        "compare the slopes, not the seconds."
    ]


def extend_ticks(axes: style.Axes, rows: pd.DataFrame) -> None:
    """Adds ticks to the x axis for the numbers of workers in `rows` that lie beyond it."""
    ticks, labels = axes.get_xticks(), [tick.get_text() for tick in axes.get_xticklabels()]
    beyond = sorted({float(n) for n in rows["n"] if n > ticks[-1]})
    axes.set_xticks([*ticks, *beyond], [*labels, *(f"{n:g}" for n in beyond)])


def draw(axes: style.Axes, rows: pd.DataFrame, column: str) -> None:
    """Draws a column of `collection` against n, with a marker for each source."""
    for source, points in rows.dropna(subset=[column]).groupby("source"):
        marker = MARKERS[str(source)]
        axes.plot(
            points["n"], points[column], marker, color=style.PAPER_GREY, label=source, zorder=2
        )


def returns(task: str, *algorithms: str) -> pd.DataFrame:
    """The published returns of a task in any version; `ppo_kl` gets PPO's."""
    rows = pd.read_csv(REFERENCE / "returns_published.csv")
    names = {algorithm.split("_")[0].upper() for algorithm in algorithms}
    return rows[(rows["task"] == task.split("-")[0]) & rows["algorithm"].isin(names)]
