"""What a sweep shows while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hydra_plugins.walle_launcher._records import Progress, progress

if TYPE_CHECKING:
    from rich.table import Table

    from hydra_plugins.walle_launcher._compose import Job
    from hydra_plugins.walle_launcher._cores import Grant
    from hydra_plugins.walle_launcher._run import Active
    from hydra_plugins.walle_launcher._verdict import Verdict

log = logging.getLogger(__name__)

REFRESH_S = 1.0
RECENT_ROWS = 8
COLUMNS = ("#", "job", "cores", "state", "round", "return", "steps/s", "left")
STATE = COLUMNS.index("state")
WRAPPED, NUMBERS = {"job": 10, "cores": 5}, ("#", "round", "return", "steps/s", "left")
STYLES = {"completed": "green", "failed": "red", "interrupted": "yellow", "running": "cyan"}


class Row(NamedTuple):
    """One line of the table; None is shown as an empty cell."""

    num: int
    label: str
    cores: str
    state: str
    reached: Progress
    remaining_s: float | None


class Screen(Protocol):
    """What the loop tells as it goes."""

    def started(self, job: Job, grant: Grant) -> None:
        """A job starts."""

    def ended(self, job: Job, verdict: Verdict, tail: Sequence[str]) -> None:
        """A job ended; `tail` holds the last lines it printed, if it did not complete."""

    def update(self, active: Collection[Active], waiting: Sequence[int]) -> None:
        """Some time went by."""

    def warn(self, message: str) -> None:
        """Something the user should know."""

    def close(self) -> None:
        """The sweep is over."""


class Tally:
    """How many jobs there are and how long those took that ended."""

    def __init__(self, total: int, done: int) -> None:
        """Begins before the first job.

        Args:
            total: jobs of the sweep.
            done: those that an earlier launch completed.
        """
        self.total, self._done_before = total, done
        self._ended: set[int] = set()
        self._begun: dict[int, float] = {}
        self._took_s: list[float] = []

    @property
    def done(self) -> int:
        """How many jobs have ended; one that is tried again has not."""
        return self._done_before + len(self._ended)

    def start(self, num: int) -> None:
        """A job starts, perhaps not for the first time."""
        self._ended.discard(num)
        self._begun[num] = time.monotonic()

    def end(self, num: int) -> float:
        """A job ended; returns the seconds it took."""
        self._ended.add(num)
        self._took_s.append(time.monotonic() - self._begun.pop(num))
        return self._took_s[-1]

    def remaining_s(self, running: Mapping[int, float | None], waiting: int) -> float | None:
        """Seconds until the sweep ends; None as long as nothing tells.

        A job that waits or cannot tell is taken to need what those needed that ended, or, before
        the first has ended, what the running ones will have needed.

        Args:
            running: seconds each running job still needs, by number; None for one that cannot tell.
            waiting: jobs not started yet.
        """
        so_far_s = {num: time.monotonic() - self._begun[num] for num in running}
        told = [so_far_s[num] + left_s for num, left_s in running.items() if left_s is not None]
        expected = self._took_s or told
        if not expected:
            return None
        mean_s = sum(expected) / len(expected)
        left = [
            max(0.0, mean_s - so_far_s[num]) if left_s is None else left_s
            for num, left_s in running.items()
        ]
        return max(left, default=0.0) + waiting * mean_s / max(1, len(self._begun))


class PlainScreen:
    """A line when a job starts and when it ends."""

    def __init__(self, total: int, done: int) -> None:
        """Begins a sweep of `total` jobs, `done` of which are complete."""
        self._tally = Tally(total, done)

    def started(self, job: Job, grant: Grant) -> None:
        """A job starts."""
        self._tally.start(job.num)
        log.info(f"#{job.num} starts on cores {cores_text(grant.cores)}: {job.label}")

    def ended(self, job: Job, verdict: Verdict, tail: Sequence[str]) -> None:
        """A job ended."""
        took_s = self._tally.end(job.num)
        log.info(f"#{job.num} {ending_text(verdict)} after {span(took_s)}, {self._so_far()}")
        for line in tail:
            log.info(f"    | {line}")

    def _so_far(self) -> str:
        left = self._tally.total - self._tally.done
        remaining_s = self._tally.remaining_s({}, left)
        about = f", about {span(remaining_s)} left" if left and remaining_s is not None else ""
        return f"{self._tally.done} of {self._tally.total} ended{about}"

    def update(self, active: Collection[Active], waiting: Sequence[int]) -> None:
        """Nothing: plain output is for files, where only news should stand."""

    def warn(self, message: str) -> None:
        """Something the user should know."""
        log.warning(message)

    def close(self) -> None:
        """Nothing is open."""


class LiveScreen:
    """A table that follows the running jobs."""

    def __init__(self, total: int, done: int) -> None:
        """Takes over the terminal until `close`."""
        from rich.live import Live

        self._tally = Tally(total, done)
        self._recent: list[Row] = []
        self._shown_at = 0.0
        self._live = Live(auto_refresh=False)
        self._live.start()

    def started(self, job: Job, grant: Grant) -> None:  # noqa: ARG002  the table has it later
        """A job starts."""
        self._tally.start(job.num)
        self._shown_at = 0.0

    def ended(self, job: Job, verdict: Verdict, tail: Sequence[str]) -> None:
        """A job ended."""
        from rich.text import Text

        self._tally.end(job.num)
        reached = progress(job.directory)
        row = Row(job.num, job.label, "", verdict.state, reached, None)
        self._recent = [*self._recent, row][-RECENT_ROWS:]
        self._shown_at = 0.0
        if verdict.state != "completed":
            self.warn(f"#{job.num} {ending_text(verdict)}: {job.directory}")
            for line in tail:
                self._live.console.print(Text(f"    | {line}"))

    def update(self, active: Collection[Active], waiting: Sequence[int]) -> None:
        """Draws the table, once a second at most."""
        if time.monotonic() - self._shown_at < REFRESH_S:
            return
        self._shown_at = time.monotonic()
        rows = [self._row(one) for one in active]
        table = job_table([*self._recent, *rows])
        remaining_s = self._tally.remaining_s({r.num: r.remaining_s for r in rows}, len(waiting))
        about = f", about {span(remaining_s)} left" if remaining_s else ""
        table.caption = (
            f"{self._tally.done} of {self._tally.total} ended, {len(waiting)} wait{about}"
        )
        self._live.update(table, refresh=True)

    def _row(self, active: Active) -> Row:
        reached = progress(active.job.directory)
        total_steps = active.job.known.config.get("total_steps")
        cores = cores_text(active.grant.cores) + (" !" if active.grant.oversubscribed else "")
        remaining_s = job_remaining_s(reached, total_steps)
        return Row(active.job.num, active.job.label, cores, "running", reached, remaining_s)

    def warn(self, message: str) -> None:
        """Something the user should know, above the table."""
        from rich.text import Text

        self._live.console.print(Text(message, style="yellow"))

    def close(self) -> None:
        """Leaves the last table on the terminal."""
        self._live.stop()


def open_screen(total: int, done: int) -> Screen:
    """The screen that fits where the output goes."""
    return LiveScreen(total, done) if sys.stdout.isatty() else PlainScreen(total, done)


def job_remaining_s(reached: Progress, total_steps: Any) -> float | None:
    """Seconds a run still needs at its mean speed so far; None where it does not tell."""
    if not isinstance(total_steps, int | float) or not reached.env_steps or not reached.wall_s:
        return None
    return max(0.0, (total_steps - reached.env_steps) * reached.wall_s / reached.env_steps)


def job_table(rows: Iterable[Row]) -> Table:
    """The table of the jobs; a column that no job fills is left out."""
    from rich.table import Table
    from rich.text import Text

    lines = [_cells(row) for row in rows]
    filled = [i for i, name in enumerate(COLUMNS) if name == "job" or any(c[i] for c in lines)]
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold underline")
    for name in (COLUMNS[i] for i in filled):
        # In a narrow terminal the job's label takes more lines: nothing is cut off.
        table.add_column(
            name,
            min_width=WRAPPED.get(name),
            no_wrap=name not in WRAPPED,
            overflow="fold",
            justify="right" if name in NUMBERS else "left",
        )
    for line in lines:
        texts = [Text(cell) for cell in line]
        texts[STATE].stylize(STYLES.get(line[STATE], ""))
        table.add_row(*(texts[i] for i in filled))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    """The texts of a row, in the order of `COLUMNS`."""
    return (
        str(row.num),
        row.label,
        row.cores,
        row.state,
        number(row.reached.iteration),
        number(row.reached.return_mean, ".1f"),
        number(row.reached.env_steps_per_s, ",.0f"),
        span(row.remaining_s),
    )


def number(value: float | None, spec: str = "") -> str:
    """The number, or nothing."""
    return "" if value is None else format(value, spec)


def span(seconds: float | None) -> str:
    """A duration for people: `4.2 s`, `3 min`, `2.5 h`; nothing for None."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def cores_text(cores: Sequence[int]) -> str:
    """`0-3,8`."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def label(overrides: Sequence[str], swept: Collection[str]) -> str:
    """Those of a job's overrides that set it apart, in one line."""
    apart = [one for one in overrides if one.lstrip("+").partition("=")[0] in swept]
    return " ".join(apart) or "(the only job)"


def ending_text(verdict: Verdict) -> str:
    """`completed`, `failed: why (exit code 3)`, or why it never started."""
    if verdict.error is None:
        return verdict.state
    code = f" (exit code {verdict.exit_code})" if verdict.exit_code else ""
    by = (
        f" ({verdict.signal})"
        if verdict.signal and verdict.signal not in str(verdict.error)
        else ""
    )
    state = "" if verdict.state == "pending" else f"{verdict.state}: "
    return f"{state}{verdict.error}{code}{by}"
