"""Text for numbers, intervals, counts and lists: what every figure, table and page writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from walle.system.format import count_text, digits

counted = count_text  # `1 run` and `3 runs`


def listed(names: Sequence[str], joint: str = ", ", most: int = 6) -> str:
    """Joins names for a sentence; counts the names beyond `most`, as in `a, b and 3 more`."""
    shown = joint.join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def joined(parts: Iterable[str]) -> str:
    """The parts that are not empty, with commas between them."""
    return ", ".join(part for part in parts if part)


def table_digits(value: float) -> str:
    """Four significant digits; all digits before the point from ten thousand on."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"


def percent(value: float) -> str:
    """A share in percent with two significant digits, as in 5.2%."""
    return f"{float(f'{100 * value:.2g}'):g}%"


def milliseconds(seconds: float) -> str:
    """Three significant digits, or all before the point, without the unit."""
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def with_range(
    interval: tuple[float, float, float], text: Callable[[float], str] = digits, unit: str = ""
) -> str:
    """`4.2 [3.9, 4.4]`: a value with the ends of its interval, or alone if these are NaN."""
    value, low, high = map(text, interval)
    return f"{value}{'' if math.isnan(interval[1]) else f' [{low}, {high}]'}{unit}"
