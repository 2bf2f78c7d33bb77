"""The progress display of a run: a bar on a terminal, or lines."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from walle.agent.csv_file import Row
from walle.system.format import return_text

_BESIDE = 24  # columns of the terminal for a short bar, the percentage and the time left


class Progress:
    """The progress of a run on the terminal; this base class shows nothing."""

    def say(self, line: str) -> None:
        """Prints a line on stdout."""

    def show(self, row: Row, eval_mean: float | None) -> None:
        """Shows a row of iterations.csv, and the mean return of the last evaluation."""

    def close(self) -> None:
        """Leaves the terminal in its normal state."""


def make_progress(kind: str, total_steps: int, print_every_s: float) -> Progress:
    """The display of `logger.progress`; `auto` is a bar on a terminal, else lines."""
    if kind == "auto":
        kind = "bar" if sys.stderr.isatty() else "lines"
    if kind == "bar":
        return Bar(total_steps)
    return Lines(total_steps, print_every_s) if kind == "lines" else Progress()


class Lines(Progress):
    """Lines on stdout."""

    def __init__(self, total_steps: int, every_s: float) -> None:
        """Prints a line every `every_s` seconds, the first one after the first iteration."""
        self._total = total_steps
        self._every_s = every_s
        self._next = time.monotonic()

    def say(self, line: str) -> None:
        """Prints the line at once."""
        print(line, flush=True)

    def show(self, row: Row, eval_mean: float | None) -> None:
        """Prints the row if `every_s` seconds have passed since the last one."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        text = describe(row, eval_mean)
        print(f"{row['env_steps']:>10,} / {self._total:,} steps  {text}", flush=True)


class Bar(Progress):
    """A progress bar on stderr."""

    def __init__(self, total_steps: int) -> None:
        """Starts the bar, which is full at `total_steps`."""
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar: Any = RichProgress(
            TaskProgressColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=total_steps)
        self._bar.start()

    def say(self, line: str) -> None:
        """Prints the line at once."""
        print(line, flush=True)

    def show(self, row: Row, eval_mean: float | None) -> None:
        """Moves the bar."""
        text = describe(row, eval_mean, self._bar.console.width - _BESIDE)
        self._bar.update(self._task, completed=row["env_steps"], description=text)

    def close(self) -> None:
        """Stops the bar, which stays on the terminal."""
        self._bar.stop()


def describe(row: Row, eval_mean: float | None, width: float = math.inf) -> str:
    """The returns, the speed and the shares of collecting and learning, as a text.

    Where `width` has no room for all parts, the last ones are left out; the first one stays.
    """
    mean = row["return_mean"]
    parts = [] if eval_mean is None else [f"eval {return_text(eval_mean)}"]
    parts += [
        f"return {return_text(None if mean is None else float(mean))}",
        f"{row['env_steps_per_s']:,.0f} steps/s",
        f"collect {row['collect_share']:.0%}",
        f"learn {row['learn_share']:.0%}",
    ]
    while len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    return "  ".join(parts)
