"""The values that are possible, beyond which no interval reaches."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from walle.analysis.loading.directories import Run

RETURNS = Path(__file__).parents[1] / "reference" / "possible_returns.csv"
NEVER_NEGATIVE = ("_s", "_share", "_std")
Ends = tuple[float, float]
ANY: Ends = (-math.inf, math.inf)


def of_column(column: str) -> Ends:
    """The least and the greatest value that a column of iterations.csv can have."""
    if column in ("clip_fraction", "explained_variance"):
        return (0.0 if column == "clip_fraction" else -math.inf), 1.0
    counts = column in ("iteration", "env_steps", "episodes", "grad_norm")
    if counts or column.startswith(("lag_", "length_")) or column.endswith(NEVER_NEGATIVE):
        return 0.0, math.inf
    return ANY


def of_returns(runs: Iterable[Run]) -> Ends:
    """The least and the greatest return of an episode of the runs, where the task is known.

    A task with arguments or a time limit of its own has other rewards or lengths than the table's.
    """
    found = []
    for run in runs:
        changed = any(key.startswith("env.kwargs.") for key in run.config)
        limited = run.config.get("env.episode_limit", "null") != "null"
        task = str(run.config.get("env.id", ""))
        found.append(ANY if changed or limited else _table().get(task, ANY))
    return min((low for low, _ in found), default=-math.inf), max(
        (high for _, high in found), default=math.inf
    )


def of(column: str, runs: Iterable[Run]) -> Ends:
    """The values that a column can have in some runs."""
    is_return = column.startswith("return_") and not column.endswith("_std")
    return of_returns(runs) if is_return else of_column(column)


@cache
def _table() -> dict[str, Ends]:
    with RETURNS.open(newline="", encoding="utf-8") as file:
        return {
            row["task"]: (float(row["low"]), float(row["high"])) for row in csv.DictReader(file)
        }
