"""Pure functions that build the rows of iterations.csv and timing.csv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from walle.agent.csv_file import Value
from walle.timing import AGENT_SECTIONS, SAMPLER_SECTIONS
from walle.types import IntArray, Rollout

_ALL_SECTIONS = (*SAMPLER_SECTIONS[:-1], *AGENT_SECTIONS)


class Collection(NamedTuple):
    """The seconds in which a round was collected.

    Attributes:
        mean_s: in lock-step from publication to the last rollout, else the mean over the rollouts.
        max_s: the same in lock-step, else the longest rollout's: unequal samplers differ here.
    """

    mean_s: float
    max_s: float

    @classmethod
    def of(cls, rollouts_s: Sequence[float]) -> Collection:
        """The mean and the maximum of the seconds of the rollouts."""
        return cls(sum(rollouts_s) / len(rollouts_s), max(rollouts_s))


def durations(
    seconds: dict[str, float], collection: Collection, *, lock_step: bool
) -> dict[str, Value]:
    """The cells of iteration_s and its parts, and the shares, from the agent's sections.

    In lock-step `other_s` is the rest of the iteration, so collect_s + learn_s + other_s is
    `iteration_s`. With overlap the sum may be larger, and `other_s` is the agent's time without
    learning and waiting. `compile_s` is a part of `other_s`, above zero in the first iteration of
    a process and in no other: a run that is resumed compiles again.
    """
    collect_s, collect_max_s = collection
    iteration_s = sum(seconds.values())
    learn_s = seconds["update"]
    besides = collect_s if lock_step else seconds["wait_experience"]
    return {
        "iteration_s": iteration_s,
        "collect_s": collect_s,
        "collect_max_s": collect_max_s,
        "learn_s": learn_s,
        "other_s": iteration_s - learn_s - besides,
        "compile_s": seconds["compile"],
        "collect_share": collect_s / iteration_s,
        "learn_share": learn_s / iteration_s,
    }


def lags(version: int, lag: IntArray) -> dict[str, Value]:
    """The cells policy_version, lag_mean and lag_max, from the lags [L] of the lanes."""
    return {
        "policy_version": version,
        "lag_mean": float(lag.mean()),
        "lag_max": int(lag.max()),
    }


def dropped(rollouts: Sequence[Rollout] | None) -> dict[str, Value]:
    """The cells dropped_rollouts and dropped_steps; no cells where none is ever dropped."""
    if rollouts is None:
        return {}
    steps = sum(rollout.env_steps for rollout in rollouts)
    return {"dropped_rollouts": len(rollouts), "dropped_steps": steps}


def timing_row(process: str, iteration: int, seconds: dict[str, float]) -> dict[str, Value]:
    """A row of timing.csv; sections of other kinds of processes are empty."""
    cells = {f"{name}_s": seconds.get(name) for name in _ALL_SECTIONS}
    total_s = sum(seconds.values())
    return {"process": process, "iteration": iteration, **cells, "total_s": total_s}
