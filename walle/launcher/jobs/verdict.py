"""How a job ended, in words and for status.json."""

from __future__ import annotations

import pickle
import re
import signal
from typing import Any, NamedTuple

from walle.launcher.jobs.fork_server import Ended
from walle.launcher.jobs.job import JobResult, one_line

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED_CODES = tuple(128 + signum for signum in INTERRUPTS)


class Verdict(NamedTuple):
    """How a job ended."""

    state: str  # completed, failed, interrupted or pruned; pending for a job that never started
    error: str | None = None  # why it did not complete, in one line
    exit_code: int | None = None  # the exit code of its process
    signal: str | None = None  # the name of the signal that ended the process or made it exit
    value: Any = None  # the value that the job returned


class Circumstances(NamedTuple):
    """What the launcher knows about the end of a job, besides how its process ended."""

    timeout_s: float | None = None  # the time limit, if the job ran past it
    # why the launcher asked the job to stop before its end; None if it did not
    pruned: str | None = None
    interrupted: bool = False  # whether the sweep was being stopped
    out_of_memory: bool = False  # whether the kernel killed processes for lack of memory meanwhile
    own_state: str | None = None  # the state that the job itself wrote into status.json
    own_error: str | None = None  # the error that it wrote there
    own_signal: str | None = None  # the signal that it wrote there
    last_line: str | None = None  # the last line that it printed


def judge(ended: Ended, around: Circumstances) -> Verdict:
    """Decides between completed, failed, interrupted and pruned, with the reason in one line."""
    name = signal.Signals(ended.signal).name if ended.signal is not None else None
    result = _unpickled(ended.result)
    verdict = Verdict("failed", None, ended.exit_code, name or around.own_signal)
    if around.timeout_s is not None:
        return verdict._replace(error=f"ran past its limit of {around.timeout_s:g} s")
    own_end = around.own_state in ("failed", "interrupted")
    if result is not None and result.error is None and not own_end:
        return verdict._replace(state="completed", value=result.value)
    if around.pruned is not None:
        return verdict._replace(state="pruned", error=around.pruned)
    if (
        around.interrupted
        or around.own_state == "interrupted"
        or ended.exit_code in INTERRUPTED_CODES
        or ended.signal in INTERRUPTS
        or (result is not None and result.error == "KeyboardInterrupt")
    ):
        return verdict._replace(state="interrupted", error="stopped before its end")
    if ended.signal == signal.SIGKILL and around.out_of_memory:
        peak_gib = ended.peak_memory_bytes / 2**30
        return verdict._replace(
            error=f"killed by the kernel: out of memory (peak {peak_gib:.1f} GiB)"
        )
    if around.own_state == "failed" and around.own_error:
        reason = around.own_error
    elif result is not None and result.error is not None:
        # A program that exits with a number alone has printed the reason before.
        number = re.fullmatch(r"SystemExit: \d+", result.error)
        reason = (around.last_line if number else None) or result.error
    elif name is not None:
        reason = f"killed by {name}"
    else:
        code = ended.exit_code
        reason = f"its process ended with exit code {code} before the job returned"
    note = "; the kernel was ending processes for lack of memory" if around.out_of_memory else ""
    return verdict._replace(error=reason + note)


def _unpickled(result: bytes | None) -> JobResult | None:
    if result is None:
        return None
    try:
        content: JobResult = pickle.loads(result)
    except Exception as error:  # noqa: BLE001  the value's own code runs: any error is possible
        return JobResult(error=f"what it returned cannot be read: {one_line(error)}")
    return content
