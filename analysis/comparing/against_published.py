"""Compares returns on several tasks with published ones: probabilities of improvement.

A published return has a mean and a spread over seeds, and a kind: what was averaged. It is compared
with the number of ours that was measured in the same way, and with no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from walle.analysis.comparing.estimates import Reported, improvement_on_reported
from walle.analysis.loading.directories import counted, listed
from walle.analysis.measuring.stats import Interval

FINAL, BEST, STOCHASTIC = "final", "best evaluation", "best stochastic evaluation"
# The numbers of ours, in the order of preference, that are measured as a published kind is.
ALIKE = {
    "max of average return over training": (STOCHASTIC, BEST),
    "end of training": (FINAL,),
    "final, stochastic policy": (FINAL,),
}
_NOISE = (
    " Their evaluations draw actions, and these do not: eval.stochastic=true makes such evaluations"
    " too."
)


class Ours(NamedTuple):
    """Returns of our runs on a task.

    Attributes:
        task: the task.
        who: the runs, in words.
        kind: FINAL, BEST or STOCHASTIC.
        values: the return of each run.
    """

    task: str
    who: str
    kind: str
    values: tuple[float, ...]


class Theirs(NamedTuple):
    """A published return on a task.

    Attributes:
        task: the task.
        source: who published it.
        kind: what was averaged.
        reported: mean, spread over seeds and number of seeds; the last two may be nan.
    """

    task: str
    source: str
    kind: str
    reported: Reported


class Improvement(NamedTuple):
    """The probability that a run of ours is above a published one on a task."""

    ours: Ours
    theirs: Theirs
    probability: Interval


def improvements(ours: Sequence[Ours], theirs: Iterable[Theirs]) -> list[Improvement]:
    """All comparisons of like with like, where the spread of the published seeds is known."""
    return [
        Improvement(mine, other, improvement_on_reported([(_array(mine), other.reported)]))
        for other in theirs
        if other.reported.spread >= 0 and other.reported.runs > 1
        for who in dict.fromkeys(each.who for each in ours if each.task == other.task)
        if (mine := _alike([each for each in ours if each[:2] == (other.task, who)], other.kind))
    ]


def _alike(kinds: Sequence[Ours], published: str) -> Ours | None:
    of_kind = {each.kind: each for each in kinds}
    return next((of_kind[kind] for kind in ALIKE.get(published, ()) if kind in of_kind), None)


def _array(ours: Ours) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(ours.values, float)


def sentences(found: Sequence[Improvement], algorithm: str) -> list[str]:
    """A sentence for each of our lines and each source: overall, and on which tasks it is clear."""
    keys = dict.fromkeys(
        (each.ours.who, each.ours.kind, each.theirs.source, each.theirs.kind) for each in found
    )
    return [_sentence([one for one in found if _key(one) == key], algorithm, *key) for key in keys]


def _key(one: Improvement) -> tuple[str, str, str, str]:
    return one.ours.who, one.ours.kind, one.theirs.source, one.theirs.kind


def _sentence(
    found: Sequence[Improvement], algorithm: str, who: str, kind: str, source: str, published: str
) -> str:
    overall = improvement_on_reported([(_array(one.ours), one.theirs.reported) for one in found])
    clear = _on("wholly above 50%", [one for one in found if one.probability.low > 0.5])
    behind = _on("wholly below", [one for one in found if one.probability.high < 0.5])
    noise = _NOISE if (kind, ALIKE[published][0]) == (BEST, STOCHASTIC) else ""
    return (
        f"Probability that a seed of {who} ({kind}) is above one of {source} ({published}, taken "
        f"as normal), {algorithm}: {_percent(overall)} over {counted(len(found), 'task')}; "
        f"{clear}, {behind}.{noise}"
    )


def _on(what: str, found: Sequence[Improvement]) -> str:
    names = [one.theirs.task.split("-v")[0] for one in found]
    return f"{what} on {len(names)} ({listed(names)})" if names else f"{what} on none"


def _percent(interval: Interval) -> str:
    if interval.low != interval.low:
        return f"{interval.value:.0%}"
    return f"{interval.value:.0%} [{interval.low:.0%}, {interval.high:.0%}]"
