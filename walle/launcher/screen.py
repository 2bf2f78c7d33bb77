"""The display of a running sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import re
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from walle.launcher.records import Progress, read_progress
from walle.system.format import duration_text, number_text, ranges_text
from walle.system.signals import terminal_may_vanish

if TYPE_CHECKING:  # not loaded: `walle.sweep` needs the table and starts without Hydra
    from rich.live import Live
    from rich.table import Table

    from walle.launcher.allocation import Grant
    from walle.launcher.jobs import Verdict
    from walle.launcher.planning import Job

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


def ending_text(verdict: Verdict) -> str:
    """`completed`, `failed: why (exit code 3)`, or why the job never started."""
    if verdict.error is None:
        return verdict.state
    text = verdict.error if verdict.state == "pending" else f"{verdict.state}: {verdict.error}"
    code, name = verdict.exit_code, verdict.signal
    if code and not (name and code == 128 + signal.Signals[name]):  # else the signal says it
        text += f" (exit code {code})"
    return text if not name or name in verdict.error else f"{text} ({name})"


def alike(first: dict[str, int], num: int, verdict: Verdict) -> Verdict:
    """Shortens a failure to "as #N" if job N was the `first` with this cause, ignoring digits."""
    cause = re.sub(r"\d+", "", str(verdict.error))
    again = verdict.state == "failed" and first.setdefault(cause, num) != num
    return verdict._replace(error=f"as #{first[cause]}") if again else verdict


class Screen:
    """Shows a table of the running and the most recently ended jobs, if it has a terminal.

    Elsewhere it prints a line when a job starts and when it ends.
    """

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done_before = total, done
        self._ended: set[int] = set()
        self._started: dict[int, float] = {}
        self._took_s: list[float] = []
        self._stopped = False
        self._live: Live | None = None
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
        self._recent: list[Row] = []
        self._shown_at = 0.0

    def started(self, job: Job, grant: Grant, how: str) -> None:
        """Shows that a job starts; `how` says in words how, such as `starts again`."""
        self._ended.discard(job.num)
        self._started[job.num] = time.monotonic()
        self._shown_at = 0.0
        if self._live is None:
            log.info(f"#{job.num} {how} on cores {ranges_text(grant.cores)}: {job.label}")

    @terminal_may_vanish()
    def ended(self, job: Job, verdict: Verdict, tail: Sequence[str]) -> None:
        """Shows that a job ended; `tail` holds its last printed lines if it did not complete."""
        self._ended.add(job.num)
        self._took_s.append(time.monotonic() - self._started[job.num])
        took, text = duration_text(self._took_s[-1]), ending_text(verdict)
        running = dict.fromkeys(num for num in self._started if num != job.num)
        waiting = self._total - self._done_before - len(self._ended) - len(running)
        so_far = self.progress_text(running, waiting)  # before the job's place is given up
        del self._started[job.num]
        if self._live is None:
            log.info(f"#{job.num} {text} after {took}, {so_far}")
            for line in tail:
                log.info(f"    | {line}")
            return
        row = Row(job.num, job.label, "", verdict.state, read_progress(job.directory), None)
        self._recent = [*self._recent, row][-RECENT_ROWS:]
        self._shown_at = 0.0
        if verdict.state != "completed":
            self.warn(f"#{job.num} {text}: {job.directory}")
            for line in tail:
                self._live.console.print(f"    | {line}", markup=False, highlight=False)

    @terminal_may_vanish()
    def update(self, running: Iterable[tuple[Job, Grant]], waiting: int) -> None:
        """Draws the table, once a second at most; prints nothing without a terminal."""
        if self._live is None or time.monotonic() - self._shown_at < REFRESH_S:
            return
        self._shown_at = time.monotonic()
        rows = []
        for job, grant in running:
            progress = read_progress(job.directory)
            cores = ranges_text(grant.cores) + (" !" if grant.oversubscribed else "")
            left_s = progress.remaining_s(job.identity.config.get("total_steps"))
            rows.append(Row(job.num, job.label, cores, "running", progress, left_s))
        table = job_table([*self._recent, *rows])
        left_s_of = {row.num: row.remaining_s for row in rows}
        table.caption = self.progress_text(left_s_of, waiting, f", {waiting} wait" * bool(waiting))
        self._live.update(table, refresh=True)

    def stop(self, message: str) -> None:
        """Prints `message`, the reason why no further job starts."""
        self._stopped = True
        self.warn(message)

    @terminal_may_vanish()
    def warn(self, message: str) -> None:
        """Prints a warning, above the table if there is one."""
        if self._live is None:
            log.warning(message)
        else:
            self._live.console.print(message, style="yellow", markup=False, highlight=False)

    @terminal_may_vanish()
    def close(self) -> None:
        """Ends the display."""
        if self._live is not None:
            self._live.stop()

    def remaining_s(self, running: Mapping[int, float | None], waiting: int) -> float | None:
        """Seconds until the sweep ends; None before an estimate is possible, and after a stop.

        Waiting jobs, and running jobs without an estimate, are assumed to take the mean time of the
        ended jobs or, before the first has ended, of the running jobs with an estimate.
        """
        age_s = {num: time.monotonic() - self._started[num] for num in running}
        known = [age_s[num] + left_s for num, left_s in running.items() if left_s is not None]
        expected = self._took_s or known
        if not expected or self._stopped:
            return None
        mean_s = sum(expected) / len(expected)
        rest_s = {num: max(0.0, mean_s - age_s[num]) for num in running}
        left = [rest_s[num] if left_s is None else left_s for num, left_s in running.items()]
        return max(left, default=0.0) + waiting * mean_s / max(1, len(self._started))

    def progress_text(
        self, running: Mapping[int, float | None], waiting: int, note: str = ""
    ) -> str:
        """`3 of 8 ended`, a note, and `, about 3 min left` if known."""
        left_s = self.remaining_s(running, waiting)
        left = f", about {duration_text(left_s)} left" if left_s else ""
        ended = self._done_before + len(self._ended)  # without those that are tried again
        return f"{ended} of {self._total} ended{note}{left}"


def job_table(rows: Iterable[Row]) -> Table:
    """The table of the jobs, without empty columns."""
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
    for cells in zip(*columns.values(), strict=True):  # only states have the name of a style
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in cells))
    return table
