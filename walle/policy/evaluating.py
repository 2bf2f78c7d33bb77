"""Evaluates a policy after training, in episodes not used by training or its evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from walle.agent.evaluation import Evaluation, means, run_episodes
from walle.envs import make_lanes
from walle.errors import ConfigError
from walle.policy.acting import Origin, Policy, load
from walle.streams import afterwards_noise, afterwards_seed, kept_globals, seed_globals
from walle.system.format import count_text, digits
from walle.types import AnyArray

AT_ONCE = 50  # episodes that run side by side in one process


class MeanReturn(NamedTuple):
    """A mean and its 95% interval, mean -+ t s / sqrt(n) (Student's t), which is NaN if n = 1."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(
        cls, values: npt.ArrayLike, possible: tuple[float, float] = (-math.inf, math.inf)
    ) -> MeanReturn:
        """The mean of some values; `possible` bounds the interval but not the mean."""
        x = np.asarray(values, float)
        mean = float(x.mean())
        if x.size < 2:
            return cls(mean)
        from scipy.special import stdtrit  # slow to import

        reach = float(stdtrit(x.size - 1, 0.975)) * float(x.std(ddof=1)) / math.sqrt(x.size)
        low, high = possible
        return cls(mean, max(mean - reach, min(low, mean)), min(mean + reach, max(high, mean)))

    def __str__(self) -> str:
        """The mean in the format of `digits`, with the interval, if any, in brackets."""
        interval = "" if math.isnan(self.low) else f" [{digits(self.low)}, {digits(self.high)}]"
        return f"{digits(self.value)}{interval}"


class Result(NamedTuple):
    """The returns and the lengths of E episodes, and what determined them."""

    origin: Origin  # where the policy comes from
    env_id: str  # the environment
    seed: int  # the seed of the episodes
    deterministic: bool  # whether the likeliest actions were taken
    returns: list[float]  # [E] the undiscounted return of each episode
    lengths: list[int]  # [E] the number of actions in each episode
    info: dict[str, list[float]]  # by column of the environment's info, [E] values

    @property
    def mean(self) -> MeanReturn:
        """The mean return with its 95% interval over the episodes (Student's t)."""
        return MeanReturn.of(self.returns)

    def row(self) -> dict[str, Any]:
        """A row of a table: origin, settings, and statistics of the returns."""
        r = self.returns
        return {
            **self.origin._asdict() | {"checkpoint": str(self.origin.checkpoint)},
            "env": self.env_id,
            "eval_seed": self.seed,
            "deterministic": self.deterministic,
            "episodes": len(r),
            "return_mean": self.mean.value,
            "return_mean_low": self.mean.low,
            "return_mean_high": self.mean.high,
            "return_median": float(np.median(r)),
            "return_std": float(np.std(r)),
            "return_min": min(r),
            "return_max": max(r),
            "length_mean": float(np.mean(self.lengths)),
            **means(self.info.items()),
        }

    def __repr__(self) -> str:
        """As short as `str`, so that a notebook does not print every return."""
        return f"Result({self})"

    def __str__(self) -> str:
        """The mean with its interval, the median, and the number of episodes."""
        median = f"median {digits(float(np.median(self.returns)))}"
        found = means(self.info.items()).items()
        info = "".join(f"{name} {digits(x)}, " for name, x in found if x is not None)
        return f"return {self.mean}, {median}, {info}{count_text(len(self.returns), 'episode')}"


def evaluate(
    policy: Policy | str | Path,
    episodes: int = 100,
    seed: int = 0,
    *,
    deterministic: bool = True,
    which: str | None = None,
    trust: bool = False,
) -> Result:
    """Runs episodes with a policy and returns their returns and lengths.

    Episode k starts with a seed that depends on `seed` and k alone. Policies evaluated with equal
    seeds therefore face the same episodes, and none of these episodes was used to choose `best.pt`.
    EnvPool has its own seeds.

    Args:
        policy: a policy, or what `load` takes: a run's directory or a checkpoint file.
        episodes: how many.
        seed: of the episodes.
        deterministic: take the likeliest actions; otherwise draw them.
        which: "best" or "last", for a path; None takes the best if there is one.
        trust: as for `load`, for a path; needed if the environment's module is next to the run.

    Raises:
        ConfigError: the policy cannot be loaded, or a value is wrong.
    """
    numbers: dict[str, tuple[Any, int]] = {"episodes": (episodes, 1), "seed": (seed, 0)}
    for name, (value, least) in numbers.items():
        if not isinstance(value, Integral) or value < least:
            raise ConfigError(f"{name}={value!r} must be a whole number, {least} at least")
    if isinstance(policy, Policy) and which is not None:
        raise ConfigError(f"which={which!r} with a policy that is loaded already; give its path")
    loaded = policy if isinstance(policy, Policy) else load(policy, which, trust=trust)
    loaded.check_env()
    returns: list[float] = []
    lengths: list[int] = []
    info: dict[str, list[float]] = {}
    for first in range(0, episodes, AT_ONCE):
        some = range(first, min(first + AT_ONCE, episodes))
        evaluation = _run(loaded, some, seed, deterministic)
        returns += evaluation.returns
        lengths += evaluation.lengths
        for name, values in evaluation.info:
            info.setdefault(name, []).extend(values)
    return Result(loaded.origin, loaded.spec.id, seed, deterministic, returns, lengths, info)


@kept_globals()
def _run(policy: Policy, numbers: Sequence[int], seed: int, deterministic: bool) -> Evaluation:
    """Runs the episodes with these numbers together, in new environments."""
    actor = policy.actor(len(numbers))
    noise = [afterwards_noise(seed, number) for number in numbers]

    def act(obs: AnyArray) -> AnyArray:
        if deterministic:
            return actor.likeliest(obs)
        return actor.draw(obs, np.concatenate([policy.network.noise(rng, 1) for rng in noise]))

    takes_seeds = policy.spec.backend != "envpool"
    seeds = [afterwards_seed(seed, number) for number in numbers] if takes_seeds else None
    of_lanes = seed if takes_seeds else afterwards_seed(seed, 0)
    seed_globals(seed, "afterwards", numbers[0])
    with closing(make_lanes(policy.spec, numbers, of_lanes, "evaluate")) as lanes:
        policy.spaces.check(lanes, policy.spec.id)
        evaluation = run_episodes(lanes, seeds, act, info=policy.spec.info)
    assert evaluation is not None
    return evaluation
