"""How a job ended, in words and for status.json."""

from __future__ import annotations

import pickle
import re
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

from walle.errors import cause_text
from walle.launcher.jobs.fork_server import Ended
from walle.launcher.jobs.job import JobResult, one_line

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


class Verdict(NamedTuple):
    """How a job ended."""

    state: str  # completed, failed, interrupted or pruned; pending for a job that never started
    error: str | None = None  # why it did not complete, in one line
    exit_code: int | None = None  # the exit code of its process
    signal: str | None = None  # the name of the signal that ended the process or made it exit
    value: Any = None  # the value that the job returned


def judge(
    ended: Ended,
    status: Mapping[str, Any],  # what the job itself wrote into status.json
    *,
    timeout_s: float | None = None,  # the time limit, if the job ran past it
    pruned: str | None = None,  # why the launcher asked the job to stop before its end
    interrupted: bool = False,  # whether the sweep was being stopped
    out_of_memory: bool = False,  # whether the kernel killed processes for lack of memory meanwhile
    last_line: str | None = None,  # the last line that the job printed
) -> Verdict:
    """Decides between completed, failed, interrupted and pruned, with the reason in one line."""
    result: JobResult | None = None
    if ended.result is not None:
        try:
            result = pickle.loads(ended.result)
        except Exception as error:  # noqa: BLE001  the value's own code runs: any error is possible
            result = JobResult(error=f"what it returned cannot be read: {one_line(error)}")
    name = signal.Signals(ended.signal).name if ended.signal is not None else None
    verdict = Verdict("failed", None, ended.exit_code, name or status.get("signal"))
    own_state = status.get("state")
    if timeout_s is not None:
        return verdict._replace(error=f"ran past its limit of {timeout_s:g} s")
    if result is not None and result.error is None and own_state not in ("failed", "interrupted"):
        return verdict._replace(state="completed", value=result.value)
    if pruned is not None:
        return verdict._replace(state="pruned", error=pruned)
    if (
        interrupted
        or own_state == "interrupted"
        or ended.exit_code in [128 + number for number in INTERRUPTS]
        or ended.signal in INTERRUPTS
        or (result is not None and result.error == "KeyboardInterrupt")
    ):
        return verdict._replace(state="interrupted", error="stopped before its end")
    if ended.signal == signal.SIGKILL and out_of_memory:
        peak_gib = ended.peak_memory_bytes / 2**30
        return verdict._replace(
            error=f"killed by the kernel: out of memory (peak {peak_gib:.1f} GiB)"
        )
    if own_state == "failed" and (own_error := cause_text(status.get("error") or "")):
        reason = own_error
    elif result is not None and result.error is not None:
        # A program that exits with a number alone has printed the reason before.
        number = re.fullmatch(r"SystemExit: \d+", result.error)
        reason = (last_line if number else None) or result.error
    elif name is not None:
        reason = f"killed by {name}"
    else:
        code = ended.exit_code
        reason = f"its process ended with exit code {code} before the job returned"
    note = "; the kernel was ending processes for lack of memory" if out_of_memory else ""
    return verdict._replace(error=reason + note)
