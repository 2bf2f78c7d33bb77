"""How a job ended, in words and as an entry of status.json."""

from __future__ import annotations

import re
import signal
from typing import Any, NamedTuple

from hydra_plugins.walle_launcher._job import Outcome
from hydra_plugins.walle_launcher._server import Ended

INTERRUPTED_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM)
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


class Verdict(NamedTuple):
    """How a job ended.

    Attributes:
        state: completed, failed or interrupted.
        error: why it did not complete, in one line.
        exit_code: of its process.
        signal: the name of the signal that ended it, or made it end.
        value: what the job returned.
    """

    state: str
    error: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    value: Any = None


class Circumstances(NamedTuple):
    """What the launcher knows about the end of a job and the job's process does not.

    Attributes:
        timeout_s: the limit it ran past, None when it did not.
        interrupted: the sweep was being stopped.
        out_of_memory: the kernel killed processes for want of memory while it ran.
        own_state: the state the job itself wrote into status.json.
        own_error: the error it wrote there.
        own_signal: the signal it wrote there.
        last_words: the last line it printed.
    """

    timeout_s: float | None = None
    interrupted: bool = False
    out_of_memory: bool = False
    own_state: str | None = None
    own_error: str | None = None
    own_signal: str | None = None
    last_words: str | None = None


def judge(ended: Ended, outcome: Outcome | None, around: Circumstances) -> Verdict:
    """Tells completed, failed and interrupted apart, and says why in one line."""
    name = signal.Signals(ended.signal).name if ended.signal is not None else None
    verdict = Verdict("failed", None, ended.exit_code, name or around.own_signal)
    if around.timeout_s is not None:
        return verdict._replace(error=f"ran past its limit of {around.timeout_s:g} s")
    returned = outcome is not None and outcome.error is None
    if returned and around.own_state not in ("failed", "interrupted"):
        assert outcome is not None
        return verdict._replace(state="completed", value=outcome.value)
    if _was_interrupted(ended, outcome, around):
        return verdict._replace(state="interrupted", error="stopped before its end")
    return verdict._replace(error=_reason(ended, outcome, around, name))


def _was_interrupted(ended: Ended, outcome: Outcome | None, around: Circumstances) -> bool:
    return (
        around.interrupted
        or around.own_state == "interrupted"
        or ended.exit_code in INTERRUPTED_CODES
        or ended.signal in INTERRUPTS
        or (outcome is not None and outcome.error == "KeyboardInterrupt")
    )


def _reason(ended: Ended, outcome: Outcome | None, around: Circumstances, name: str | None) -> str:
    memory = f" (peak {ended.peak_memory_bytes / 2**30:.1f} GiB)"
    note = "; the kernel was ending processes for want of memory" if around.out_of_memory else ""
    if ended.signal == signal.SIGKILL and around.out_of_memory:
        return f"killed by the kernel: out of memory{memory}"
    if around.own_state == "failed" and around.own_error:
        return around.own_error + note
    if outcome is not None and outcome.error is not None:
        # A program that leaves with a bare number has said why before.
        bare = re.fullmatch(r"SystemExit: \d+", outcome.error)
        return ((around.last_words if bare else None) or outcome.error) + note
    if name is not None:
        return f"killed by {name}{note}"
    return f"its process ended with exit code {ended.exit_code} before the job returned{note}"
