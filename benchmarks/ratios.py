"""Ratios between contestants that took turns: each turn's own, their median and their range."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def spread(values: Sequence[float], unit: str) -> dict[str, float]:
    """The median and the range."""
    return {
        f"median_{unit}": statistics.median(values),
        f"min_{unit}": min(values),
        f"max_{unit}": max(values),
    }


def compared(
    turns: Mapping[str, Sequence[float]], baseline: str, unit: str
) -> dict[str, dict[str, Any]]:
    """Each contestant's value over the baseline's of the same turn; {} without the baseline.

    A contestant that took fewer turns than another is compared in the turns that both took.
    """
    if baseline not in turns:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, mine in turns.items():
        ratios = [value / base for value, base in zip(mine, turns[baseline], strict=False)]
        found[name] = {unit: ratios, **spread(ratios, unit)}
    return found


def add_ratios(results: dict[str, dict[str, Any]], units: Mapping[str, str]) -> None:
    """Adds each turn's `seconds` as a multiple of each baseline's, by its unit, if measured."""
    seconds = {name: result["seconds"] for name, result in results.items()}
    for baseline, unit in units.items():
        for name, ratios in compared(seconds, baseline, unit).items():
            results[name] |= ratios


def shown(result: Mapping[str, Any], unit: str) -> str:
    """The median with its range, such as "1.21 (1.10-1.34)"; "" where nothing was compared."""
    if unit not in result:
        return ""
    low, high = result[f"min_{unit}"], result[f"max_{unit}"]
    return f"{result[f'median_{unit}']:.2f} ({low:.2f}-{high:.2f})"
