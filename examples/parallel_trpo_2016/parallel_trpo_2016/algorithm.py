"""TRPO as Frans & Hafner ran it: Monte-Carlo returns, a linear baseline, rounds that adapt.

Departures from Frans & Hafner (2016) and their code, besides those in
walle/algos/on_policy/trpo.py, with sweeps/parallel_trpo_2016.yaml:
    - observations are normalised by one running mean and deviation; their actors each had moments
      of their own;
    - if the line search accepts no step, the policy does not change; their code took the full step
      always;
    - with `sampler.collect=episodes` every lane is dealt its number of episodes before the round,
      one at least, where a free actor of theirs took the next of a common pool; an episode may take
      four times a lane's part of the round, or the time limit if that is longer, and a lane's steps
      after its last episode are dropped; the first round has one episode a lane;
    - an adapted KL bound or size of rounds stops at its limit (adaptive_rounds.py); theirs could
      pass it by one change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from parallel_trpo_2016.adaptive_rounds import BATCH_MAX, KINDS, AdaptiveRounds
from parallel_trpo_2016.baseline import EpisodeClock, LinearBaseline
from walle.algos.base import Capabilities, Problem
from walle.algos.engines import Part
from walle.algos.on_policy.base import StepBatch
from walle.algos.on_policy.experience import Experience
from walle.algos.on_policy.trpo import TrustRegion, TrustRegionSettings
from walle.errors import ConfigError, not_negative, one_of, positive
from walle.learning import losses
from walle.learning.step import Divisible
from walle.nets.factory import NetSettings
from walle.types import PolicySnapshot, Rollout


@dataclass(kw_only=True)
class ParallelTRPOSettings(TrustRegionSettings):
    """Settings in conf/algo/parallel_trpo_2016.yaml, which explains every key."""

    ridge: float = positive()
    adapt: str = one_of(*KINDS)
    adapt_kl: float = not_negative()
    adapt_steps: int = not_negative()

    def __post_init__(self) -> None:
        """Checks the bounds; refuses to compile."""
        super().__post_init__()
        if self.compile == "true":
            raise ConfigError(
                "algo.compile=true: a linear baseline takes no gradient steps that could be"
                " compiled; use algo.compile=auto, or algo=trpo"
            )

    @property
    def largest_batch(self) -> int | None:
        """See `AlgorithmSettings`."""
        return None if self.adapt == "none" else BATCH_MAX


class ParallelTRPO(TrustRegion):
    """TRPO with a linear baseline, which is fitted after each policy step."""

    capabilities: ClassVar[Capabilities] = Capabilities(ParallelTRPOSettings)
    learned = (*TrustRegion.learned, "baseline")

    def __init__(self, settings: ParallelTRPOSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the policy's initial parameters."""
        super().__init__(settings, net, problem)
        self.baseline = LinearBaseline(problem.obs_dim, settings.ridge, problem.device)
        self.clock = EpisodeClock(problem.lanes)
        self.rounds = AdaptiveRounds(
            settings.adapt,
            settings.max_kl,
            problem.batch_size,
            problem.lanes,
            settings.adapt_kl,
            settings.adapt_steps,
        )

    def optimizers(self) -> Sequence[Divisible]:
        """No optimizer: neither the policy nor the baseline takes steps on minibatches."""
        return []

    def parts(self) -> list[Part]:
        """No part: neither the policy nor a linear baseline takes gradient steps."""
        return []

    def skip(self, rollout: Rollout) -> None:
        """Updates what must know every step: normalisers, times in episodes, returns of rounds."""
        super().skip(rollout)
        self.clock(rollout)
        self.rounds.add(rollout)

    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:
        """Takes one step of the policy, then fits the baseline."""
        t = torch.from_numpy(self.clock(rollout)).to(self.vector.device)
        batch = self.batch(experience, t)
        metrics = self.improve_policy(batch, self.rounds.max_kl)
        metrics["value_loss"] = self.baseline.fit(batch.obs, batch.target, t.flatten())
        self.rounds.add(rollout)
        variance = losses.explained_variance(batch.value, batch.target)
        return {**metrics, "explained_variance": variance}

    @torch.no_grad()
    def batch(self, experience: Experience, t: Tensor) -> StepBatch:
        """The round's steps; `t` [T, L] counts the steps since the episode began."""
        times = torch.cat((t.flatten(), t[experience.needs_final_obs] + 1))
        estimates = self.estimates(experience, lambda obs: self.baseline(obs, times))
        return StepBatch.of(experience, estimates)

    def snapshot(self) -> PolicySnapshot:
        """The policy's vector, the normaliser, and the steps T of the next rollouts."""
        return super().snapshot()._replace(rollout_steps=self.rounds.rollout_steps)

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {
            **super().state_dict(),
            "baseline": self.baseline.state_dict(),
            "clock": self.clock.state_dict(),
            "rounds": self.rounds.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        super().load_state_dict(state)
        self.baseline.load_state_dict(state["baseline"])
        self.clock.load_state_dict(state["clock"])
        self.rounds.load_state_dict(state["rounds"])
