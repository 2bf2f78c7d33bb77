"""How the workers of a sweep and their jobs are, in one question to Slurm at most.

Ray is not asked: heartbeats tell which of its workers live, wherever one looks from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from walle.launcher.workers import slurm
from walle.launcher.workers.claims import Claims
from walle.launcher.workers.submitted import LOGS, Submission, unfinished

# A worker in one of these states still has its cores.
LIVING = ("RUNNING", "COMPLETING", "SUSPENDED")


class Overview(NamedTuple):
    """The workers of a sweep's newest submission.

    Attributes:
        alive: for each job that a worker holds, whether that worker lives, by the job's number;
            None where that could not be found out.
        text: one line about the workers; None when none is left.
        left: whether workers run or wait, as far as is known.
    """

    alive: dict[int, bool | None]
    text: str | None
    left: bool


NOBODY = Overview({}, None, left=False)


def overview(sweep: Path) -> Overview:
    """Looks at the claims, and at the workers unless all their jobs have ended."""
    newest = unfinished(sweep)
    if newest is None:
        return NOBODY
    claims = Claims(newest.directory)
    held = {n: claims.owner(claim) for n, claim in claims.newest().items() if claim.state is None}
    if newest.backend == "slurm":
        return _in_slurm(newest, held)
    return _by_heartbeat(newest, held, claims.silence_s())


def _in_slurm(newest: Submission, held: Mapping[int, str]) -> Overview:
    """The workers as Slurm knows them; `held` names the worker that holds a job."""
    states = slurm.states(newest.arrays)
    if states is None:
        text = "workers: Slurm cannot be asked from here, so it is unknown which of them live"
        return Overview(dict.fromkeys(held), text, left=True)
    living = {name for name, each in states.items() if each.state in LIVING}
    alive: dict[int, bool | None] = {
        n: owner.partition("-")[0] in living for n, owner in held.items()
    }
    counts = Counter(map(_words, states.values()))
    words = ", ".join(f"{count} {how}" for how, count in counts.most_common())
    shown = f"workers in Slurm: {words} ({', '.join(newest.arrays)})" if words else None
    return Overview(alive, shown, left=bool(states))


def _words(worker: slurm.InQueue) -> str:
    """`running`, or `pending: Resources` with what it waits for."""
    reason = f": {worker.reason}" if worker.state == "PENDING" and worker.reason else ""
    return worker.state.lower() + reason


def _by_heartbeat(
    newest: Submission, held: Mapping[int, str], silence_s: Mapping[str, float] | None
) -> Overview:
    """The workers of Ray as their heartbeats tell; `held` names the worker that holds a job."""
    if silence_s is None:
        text = f"workers: unknown, as this user may not write into {newest.directory}"
        return Overview(dict.fromkeys(held), text, left=True)
    living = {owner for owner, silent_s in silence_s.items() if silent_s <= newest.stale_s}
    alive: dict[int, bool | None] = {n: owner in living for n, owner in held.items()}
    started = any((newest.directory / LOGS).iterdir())
    if not started:
        text = "workers on Ray: none has started yet; `ray status` shows what they wait for"
        return Overview(alive, text, left=True)
    vanished = len(silence_s) - len(living)
    words = f"{len(living)} running" + (f", {vanished} vanished" if vanished else "")
    return Overview(alive, f"workers on Ray: {words}" if silence_s else None, left=bool(living))
