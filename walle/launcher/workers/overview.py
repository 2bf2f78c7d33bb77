"""How the workers of a sweep and their jobs are, in one question to the scheduler at most."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from walle.launcher.workers import slurm
from walle.launcher.workers.claims import Claims
from walle.launcher.workers.submitted import submissions

# A worker in one of these states still has its cores.
LIVING = ("RUNNING", "COMPLETING", "SUSPENDED")


class Overview(NamedTuple):
    """The workers of a sweep's newest submission.

    Attributes:
        alive: for each job that a worker holds, whether that worker lives, by the job's number;
            None where Slurm could not be asked.
        text: one line about the workers; None when none is left.
        left: whether workers run or wait, as far as is known.
    """

    alive: dict[int, bool | None]
    text: str | None
    left: bool


NOBODY = Overview({}, None, left=False)


def overview(sweep: Path) -> Overview:
    """Looks at the claims, and asks Slurm for the workers unless all their jobs have ended."""
    newest = next(reversed(submissions(sweep)), None)
    if newest is None:
        return NOBODY
    claims = Claims(newest.directory)
    if claims.all_over(newest.nums):
        return NOBODY
    held = {n: claims.owner(claim) for n, claim in claims.newest().items() if claim.state is None}
    states = slurm.states(newest.arrays)
    if states is None:
        text = "workers: Slurm cannot be asked from here, so it is unknown which of them live"
        return Overview(dict.fromkeys(held), text, left=True)
    living = {name for name, state in states.items() if state in LIVING}
    alive: dict[int, bool | None] = {
        n: owner.partition("-")[0] in living for n, owner in held.items()
    }
    counts = Counter(states.values())
    words = ", ".join(f"{count} {state.lower()}" for state, count in counts.most_common())
    shown = f"workers in Slurm: {words} ({', '.join(newest.arrays)})" if words else None
    return Overview(alive, shown, left=bool(states))
