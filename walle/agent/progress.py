"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

from walle.agent.csv_file import Row


class Progress(Protocol):
    """Shows iterations as they come."""

    def say(self, line: str) -> None:
        """Prints a line on stdout."""
        ...

    def show(self, row: Row) -> None:
        """Takes a row of iterations.csv."""
        ...

    def close(self) -> None:
        """Leaves the terminal as it was."""
        ...


def make_progress(kind: str, total_steps: int, print_every_s: float) -> Progress:
    """`auto` is a bar on a terminal and lines elsewhere; also `bar`, `lines`, `quiet`."""
    if kind == "auto":
        kind = "bar" if sys.stderr.isatty() else "lines"
    if kind == "bar":
        return Bar(total_steps)
    return Lines(total_steps, print_every_s) if kind == "lines" else Quiet()


class Quiet:
    """Nothing."""

    def say(self, line: str) -> None:
        """Says nothing."""

    def show(self, row: Row) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Nothing to leave."""


class Lines:
    """A line now and then, on stdout."""

    def __init__(self, total_steps: int, every_s: float) -> None:
        """One line each `every_s` seconds, the first after the first iteration."""
        self._total = total_steps
        self._every_s = every_s
        self._next = time.monotonic()

    def say(self, line: str) -> None:
        """Prints it at once."""
        print(line, flush=True)

    def show(self, row: Row) -> None:
        """Prints the row if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        print(f"{row['env_steps']:>10,} / {self._total:,} steps  {describe(row)}", flush=True)

    def close(self) -> None:
        """Nothing to leave."""


class Bar:
    """A progress bar on stderr."""

    def __init__(self, total_steps: int) -> None:
        """Ends at `total_steps`."""
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
        """Prints it at once."""
        print(line, flush=True)

    def show(self, row: Row) -> None:
        """Moves the bar."""
        self._bar.update(self._task, completed=row["env_steps"], description=describe(row))

    def close(self) -> None:
        """Leaves the finished bar."""
        self._bar.stop()


def describe(row: Row) -> str:
    """Return, speed and shares in a few words."""
    mean = row["return_mean"]
    told = "-" if mean is None else f"{mean:,.1f}"
    return (
        f"return {told}  {row['env_steps_per_s']:,.0f} steps/s  "
        f"collect {row['collect_share']:.0%}  learn {row['learn_share']:.0%}"
    )
