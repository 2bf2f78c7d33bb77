"""The display of a running sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from walle.launcher.messages import ending_text, time_left_text
from walle.launcher.records import Progress, read_progress
from walle.system.format import duration_text, number_text, ranges_text

if TYPE_CHECKING:  # not loaded: `walle.sweep` needs the table and starts without Hydra
    from rich.table import Table

    from walle.launcher.allocation import Grant
    from walle.launcher.composing import Job
    from walle.launcher.jobs.verdict import Verdict

log = logging.getLogger(__name__)

REFRESH_S = 1.0
RECENT_ROWS = 8
STYLES = {"completed": "green", "failed": "red", "interrupted": "yellow", "running": "cyan"}


class Row(NamedTuple):
    """One row of the table; a value of None leaves its cell empty."""

    num: int
    label: str
    cores: str
    state: str
    progress: Progress
    remaining_s: float | None


class SweepClock:
    """Counts the jobs that have ended, and estimates the time until the sweep ends."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self._done_before = total, done
        self.stopped = False
        self._ended: set[int] = set()
        self._started: dict[int, float] = {}
        self._took_s: list[float] = []

    @property
    def ended(self) -> int:
        """The number of jobs that have ended, without those that are being tried again."""
        return self._done_before + len(self._ended)

    def start(self, num: int) -> None:
        """Notes that a job starts, for the first time or again."""
        self._ended.discard(num)
        self._started[num] = time.monotonic()

    def end(self, num: int) -> float:
        """Notes that a job ended; returns the seconds it took."""
        self._ended.add(num)
        self._took_s.append(time.monotonic() - self._started.pop(num))
        return self._took_s[-1]

    def remaining_s(self, running: Mapping[int, float | None], waiting: int) -> float | None:
        """Seconds until the sweep ends; None before an estimate is possible, and after a stop.

        Waiting jobs, and running jobs without an estimate of their own, are expected to take as
        long as the jobs that have ended took on average. Before the first job has ended, they are
        expected to take as long as the running jobs with an estimate.
        """
        so_far_s = {num: time.monotonic() - self._started[num] for num in running}
        known = [so_far_s[num] + left_s for num, left_s in running.items() if left_s is not None]
        expected = self._took_s or known
        if not expected or self.stopped:
            return None
        mean_s = sum(expected) / len(expected)
        left = [
            max(0.0, mean_s - so_far_s[num]) if left_s is None else left_s
            for num, left_s in running.items()
        ]
        return max(left, default=0.0) + waiting * mean_s / max(1, len(self._started))


class Screen:
    """Prints a line when a job starts and when it ends."""

    def __init__(self, total: int, done: int) -> None:
        self._clock = SweepClock(total, done)

    def started(self, job: Job, grant: Grant, how: str) -> None:
        """A job starts; `how` in words, such as `starts again`."""
        self._clock.start(job.num)
        log.info(f"#{job.num} {how} on cores {ranges_text(grant.cores)}: {job.label}")

    def ended(self, job: Job, verdict: Verdict, tail: Sequence[str]) -> None:
        """A job ended; `tail` holds the last lines it printed, if it did not complete."""
        took = duration_text(self._clock.end(job.num))
        left = self._clock.total - self._clock.ended
        time_left = time_left_text(self._clock.remaining_s({}, left)) if left else ""
        so_far = f"{self._clock.ended} of {self._clock.total} ended{time_left}"
        log.info(f"#{job.num} {ending_text(verdict)} after {took}, {so_far}")
        for line in tail:
            log.info(f"    | {line}")

    def update(self, running: Iterable[tuple[Job, Grant]], waiting: int) -> None:
        """Shows the jobs that run; prints nothing here, as a log should hold only events."""

    def stop(self, message: str) -> None:
        """No further job starts; `message` says why."""
        self._clock.stopped = True
        self.warn(message)

    def warn(self, message: str) -> None:
        """Prints a warning."""
        log.warning(message)

    def close(self) -> None:
        """Ends the display."""


class LiveScreen(Screen):
    """Shows a table of the running jobs and of the last jobs that ended."""

    def __init__(self, total: int, done: int) -> None:
        from rich.live import Live

        super().__init__(total, done)
        self._recent: list[Row] = []
        self._shown_at = 0.0
        self._live = Live(auto_refresh=False)
        self._live.start()
        self.close = self._live.stop  # type: ignore[method-assign]

    def started(self, job: Job, grant: Grant, how: str) -> None:  # noqa: ARG002  `update` shows it
        """See `Screen`."""
        self._clock.start(job.num)
        self._shown_at = 0.0

    def ended(self, job: Job, verdict: Verdict, tail: Sequence[str]) -> None:
        """See `Screen`."""
        self._clock.end(job.num)
        row = Row(job.num, job.label, "", verdict.state, read_progress(job.directory), None)
        self._recent = [*self._recent, row][-RECENT_ROWS:]
        self._shown_at = 0.0
        if verdict.state != "completed":
            self.warn(f"#{job.num} {ending_text(verdict)}: {job.directory}")
            for line in tail:
                self._live.console.print(f"    | {line}", markup=False, highlight=False)

    def update(self, running: Iterable[tuple[Job, Grant]], waiting: int) -> None:
        """Draws the table, once a second at most."""
        if time.monotonic() - self._shown_at < REFRESH_S:
            return
        self._shown_at = time.monotonic()
        rows = []
        for job, grant in running:
            progress = read_progress(job.directory)
            cores = ranges_text(grant.cores) + (" !" if grant.oversubscribed else "")
            left_s = progress.remaining_s(job.identity.config.get("total_steps"))
            rows.append(Row(job.num, job.label, cores, "running", progress, left_s))
        table = job_table([*self._recent, *rows])
        remaining_s = self._clock.remaining_s({row.num: row.remaining_s for row in rows}, waiting)
        table.caption = (
            f"{self._clock.ended} of {self._clock.total} ended, {waiting} wait"
            f"{time_left_text(remaining_s)}"
        )
        self._live.update(table, refresh=True)

    def warn(self, message: str) -> None:
        """Prints a warning above the table."""
        self._live.console.print(message, style="yellow", markup=False, highlight=False)


def open_screen(total: int, done: int) -> Screen:
    """The table where the output goes to a terminal, plain lines elsewhere."""
    return LiveScreen(total, done) if sys.stdout.isatty() else Screen(total, done)


def job_table(rows: Iterable[Row]) -> Table:
    """The table of the jobs, without the columns that no job fills."""
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    columns = {
        "#": [str(row.num) for row in rows],
        "job": [row.label for row in rows],
        "cores": [row.cores for row in rows],
        "state": [row.state for row in rows],
        "round": [number_text(row.progress.iteration) for row in rows],
        "eval": [number_text(row.progress.eval_mean, ".1f") for row in rows],
        "return": [number_text(row.progress.return_mean, ".1f") for row in rows],
        "steps/s": [number_text(row.progress.env_steps_per_s, ",.0f") for row in rows],
        "left": [duration_text(row.remaining_s) for row in rows],
    }
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold underline")
    narrowest = {"job": 10, "cores": 5}  # in a narrow terminal they wrap: nothing is cut off
    columns = {name: cells for name, cells in columns.items() if name == "job" or any(cells)}
    for name in columns:
        table.add_column(
            name,
            min_width=narrowest.get(name),
            no_wrap=name not in narrowest,
            overflow="fold",
            justify="left" if name in ("job", "cores", "state") else "right",
        )
    for row, cells in zip(rows, zip(*columns.values(), strict=True), strict=True):
        style = {"state": STYLES.get(row.state, "")}
        table.add_row(
            *(Text(c, style.get(name, "")) for name, c in zip(columns, cells, strict=True))
        )
    return table
