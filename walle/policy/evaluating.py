"""Evaluates a policy after training, in episodes that neither training nor its evaluations saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from walle.agent.evaluation import run_episodes
from walle.analysis.loading.directories import counted
from walle.analysis.measuring.stats import Interval, digits, mean_interval
from walle.envs import make_lanes
from walle.errors import ConfigError
from walle.policy.acting import Origin, Policy
from walle.policy.loading import load
from walle.streams import afterwards_noise, afterwards_seed
from walle.types import AnyArray

AT_ONCE = 50  # episodes that run side by side in one process


class Result(NamedTuple):
    """The returns and the lengths of E episodes, and how they came about.

    Attributes:
        origin: where the policy comes from.
        env_id: the environment.
        seed: the seed of the episodes.
        deterministic: whether the likeliest actions were taken.
        returns: [E] the undiscounted return of each episode.
        lengths: [E] the actions of each episode.
    """

    origin: Origin
    env_id: str
    seed: int
    deterministic: bool
    returns: list[float]
    lengths: list[int]

    @property
    def mean(self) -> Interval:
        """The mean return with its 95% interval over the episodes (Student's t)."""
        return mean_interval(self.returns)

    def row(self) -> dict[str, Any]:
        """A row of a table: origin, settings, and statistics of the returns."""
        r = self.returns
        return {
            **self.origin._asdict() | {"checkpoint": str(self.origin.checkpoint)},
            "env": self.env_id,
            "eval_seed": self.seed,
            "deterministic": self.deterministic,
            "episodes": len(r),
            **self.mean.columns("return_mean"),
            "return_median": float(np.median(r)),
            "return_std": float(np.std(r)),
            "return_min": min(r),
            "return_max": max(r),
            "length_mean": float(np.mean(self.lengths)),
        }

    def __repr__(self) -> str:
        """As short as `str`, so that a notebook does not print every return."""
        return f"Result({self})"

    def __str__(self) -> str:
        """The mean with its interval, the median, and the number of episodes."""
        median = f"median {digits(float(np.median(self.returns)))}"
        return f"return {self.mean}, {median}, {counted(len(self.returns), 'episode')}"


def evaluate(
    policy: Policy | str | Path,
    episodes: int = 100,
    seed: int = 0,
    *,
    deterministic: bool = True,
    which: str | None = None,
) -> Result:
    """Runs episodes with a policy and returns what they gave.

    Episode k begins with a seed that depends on `seed` and k alone. So policies that are evaluated
    with equal seeds meet the same episodes, whoever trained them; and no episode is one of those
    by which `best.pt` was chosen. EnvPool has seeds of its own.

    Args:
        policy: a policy, or what `load` takes: a run's directory or a checkpoint file.
        episodes: how many.
        seed: of the episodes.
        deterministic: take the likeliest actions; otherwise draw them.
        which: "best" or "last", for a path; None takes the best if there is one.

    Raises:
        ConfigError: the policy cannot be loaded, or a value is wrong.
    """
    numbers: dict[str, tuple[Any, int]] = {"episodes": (episodes, 1), "seed": (seed, 0)}
    for name, (value, least) in numbers.items():
        if not isinstance(value, Integral) or value < least:
            raise ConfigError(f"{name}={value!r} must be a whole number, {least} at least")
    if isinstance(policy, Policy) and which is not None:
        raise ConfigError(f"which={which!r} with a policy that is loaded already; give its path")
    found = policy if isinstance(policy, Policy) else load(policy, which)
    returns: list[float] = []
    lengths: list[int] = []
    for some in _chunks(episodes):
        chunk = _run(found, some, seed, deterministic)
        returns += chunk[0]
        lengths += chunk[1]
    return Result(found.origin, found.spec.id, seed, deterministic, returns, lengths)


def _chunks(episodes: int) -> Iterator[range]:
    for first in range(0, episodes, AT_ONCE):
        yield range(first, min(first + AT_ONCE, episodes))


def _run(
    policy: Policy, numbers: range, seed: int, deterministic: bool
) -> tuple[list[float], list[int]]:
    """Runs the episodes with these numbers side by side, in new environments."""
    actor = policy.actor(len(numbers))
    noise = [afterwards_noise(seed, number) for number in numbers]

    def act(obs: AnyArray) -> AnyArray:
        if deterministic:
            return actor.likeliest(obs)
        return actor.draw(obs, np.concatenate([policy.network.noise(rng, 1) for rng in noise]))

    seeds = None
    if policy.spec.backend != "envpool":  # whose lanes take no new seeds
        seeds = [afterwards_seed(seed, number) for number in numbers]
    with closing(make_lanes(policy.spec, numbers, seed, "evaluate")) as lanes:
        found = run_episodes(lanes, seeds, act)
    assert found is not None
    return found.returns, found.lengths
