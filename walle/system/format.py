"""Text for numbers: durations, counts, ranges and returns."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable


def number_text(value: float | None, spec: str = "") -> str:
    """The formatted number; empty for None."""
    return "" if value is None else format(value, spec)


def digits(value: float) -> str:
    """Three significant digits; from a thousand on, all integer digits, as in 4416.

    No commas between thousands: they would look like the comma of an interval.
    """
    return f"{value:.0f}" if 999.5 <= abs(value) < 1e12 else f"{value:.3g}"


def duration_text(seconds: float | None) -> str:
    """`4.2 s`, `3 min` or `2.5 h`; empty for None."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def count_text(number: int, noun: str) -> str:
    """The number with its noun, as in `1 job` and `3 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ranges_text(numbers: Iterable[int]) -> str:
    """`0-3,8` for the cores 0, 1, 2, 3 and 8."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def return_text(mean: float | None) -> str:
    """A return as `1,234.5`; two digits below one (`-0.036`, not `-0.0`); empty for None."""
    if mean is None:
        return ""
    return f"{mean:,.1f}" if abs(mean) >= 1 else f"{mean:.2g}"


def table(lines: dict[str, str]) -> str:
    """A line for each name, indented, with the names in one column; wrapped to the terminal."""
    width = max(map(len, lines))
    room = max(shutil.get_terminal_size((1000, 0)).columns - width - 4, 20)
    between = f"\n{' ' * (width + 4)}"
    return "\n".join(
        f"  {name:{width}}  {between.join(textwrap.wrap(line, room, break_on_hyphens=False))}"
        for name, line in lines.items()
    )
