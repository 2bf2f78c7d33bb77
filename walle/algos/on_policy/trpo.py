"""Trust region policy optimisation (Schulman et al. 2015), as Frans & Hafner (2016) ran it.

The policy takes one step a round along the natural gradient, found by conjugate gradient. The step
is scaled to the KL bound, then shortened until the measured KL keeps the bound and the loss falls.

Departures from the papers:
    - the surrogate has advantages, where Schulman et al. 2015 had returns of single paths or vines;
      they are normalised over the round;
    - these are generalised estimates (Schulman et al. 2016) unless `advantage=monte_carlo`; the
      neural value function takes steps of Adam on minibatches, where Schulman et al. 2016 gave it a
      trust region of its own;
    - rollouts hold parts of episodes unless `sampler.collect=episodes`; a return that is cut by a
      time limit or by the end of a rollout is completed with the value function;
    - observations are normalised, and rewards scaled, by running moments; Frans & Hafner's actors
      normalised observations each by moments of its own, and scaled no rewards;
    - the defaults of `max_kl` and `cg_damping`, 0.01 and 0.1, and the networks, of 64-64 with tanh
      and orthogonal weights, are not Frans & Hafner's: their code has 0.001 and 0.001, ReLU, and
      weights within ±0.05 (sweeps/parallel_trpo_2016.yaml);
    - Fisher's matrix is that of the whole round by default, where the paper took a tenth of it
      (`fisher_every`), and `cg_damping` is added to its diagonal;
    - the line search accepts a step that brings `accept_ratio` of the expected improvement, where
      the paper asks for any improvement;
    - if the line search accepts no step, the policy does not change; Frans & Hafner's code took the
      full step always;
    - with `sampler.collect=episodes` every lane is dealt its number of episodes before the round,
      one at least, where a free actor of Frans & Hafner took the next of a common pool; an episode
      may take four times a lane's part of the round, or the time limit if that is longer, and a
      lane's steps after its last episode are dropped; the first round has one episode a lane;
    - an adapted KL bound or size of rounds stops at its limit (adaptive_rounds); Frans & Hafner's
      could pass it by one change;
    - under lag the surrogate begins at the newest policy, and experience of an older policy is
      weighted (`correction`; OnPolicy.with_newest_log_probs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.algos.base import Capabilities
from walle.algos.compiling import Compiling, describe
from walle.algos.episodes import EpisodeClock
from walle.algos.on_policy.adaptive_rounds import BATCH_MAX, KINDS, AdaptiveRounds
from walle.algos.on_policy.base import OnPolicy, OnPolicySettings, StepBatch
from walle.algos.on_policy.baselines import Baseline, FitSettings, LinearBaseline, NeuralBaseline
from walle.algos.on_policy.experience import Experience
from walle.algos.problem import Problem
from walle.errors import ConfigError, not_negative, one_of, positive, within
from walle.learning import losses
from walle.learning.optimizer import Optimizer
from walle.learning.trust_region import full_step, hessian_product, line_search
from walle.nets.factory import NetSettings
from walle.types import PolicySnapshot, Rollout


@dataclass(kw_only=True)
class TRPOSettings(OnPolicySettings):
    """Settings in conf/algo/trpo.yaml, which explains every key."""

    advantage: str = one_of("gae", "monte_carlo")
    baseline: str = one_of("neural", "linear")
    max_kl: float = positive()
    cg_iterations: int = positive()
    cg_damping: float = not_negative()
    fisher_every: int = positive()
    accept_ratio: float = within("[0, 1)", example=0.5)
    shrink: float = within("[0, 1)", example=0.5)
    tries: int = positive()
    value_epochs: int = positive()
    value_minibatch_size: int = positive()
    value_learning_rate: float = positive()
    ridge: float = positive()
    adapt: str = one_of(*KINDS)
    adapt_kl: float = not_negative()
    adapt_steps: int = not_negative()

    def __post_init__(self) -> None:
        """Checks the bounds; refuses to compile a linear baseline."""
        super().__post_init__()
        if self.baseline == "linear" and self.compile == "true":
            raise ConfigError(
                "algo.compile=true: a linear baseline takes no gradient steps that could be"
                " compiled; use algo.compile=auto or algo.baseline=neural"
            )

    @property
    def largest_batch(self) -> int | None:
        """See `AlgorithmSettings`."""
        return None if self.adapt == "none" else BATCH_MAX

    @property
    def shared_minibatches(self) -> dict[str, int]:
        """See `AlgorithmSettings`."""
        if self.baseline == "linear":
            return {}
        return {"value_minibatch_size": self.value_minibatch_size}

    @property
    def single_learner_cure(self) -> str:
        """See `AlgorithmSettings`."""
        return (
            f"{super().single_learner_cure}; or algo.baseline=neural, whose updates can be shared"
        )


class TRPO(OnPolicy):
    """TRPO: a policy in one vector, and a baseline that is fitted after each policy step."""

    capabilities: ClassVar[Capabilities] = Capabilities(TRPOSettings)

    def __init__(self, settings: TRPOSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        super().__init__(settings, net, problem)
        self.baseline = self.make_baseline()
        self.clock = EpisodeClock(problem.lanes)
        self.rounds = AdaptiveRounds(
            settings.adapt,
            settings.max_kl,
            problem.batch_size,
            problem.lanes,
            settings.adapt_kl,
            settings.adapt_steps,
        )
        if settings.advantage == "monte_carlo":
            self.gae_lambda = 1.0
        parts = self.baseline.compilable(problem)
        reason = "learning eager: a linear baseline takes no gradient steps"
        self.compiling = Compiling(
            settings.compile,
            problem.device,
            parts,
            without_parts=reason,
            description=describe(self, net, problem),
        )

    def make_baseline(self) -> Baseline:
        """The value function that `algo.baseline` names."""
        s, problem = self.settings, self.problem
        if s.baseline == "linear":
            return LinearBaseline(problem.obs_dim, s.ridge, problem.device)
        fit = FitSettings(s.value_epochs, s.value_minibatch_size, s.value_learning_rate)
        return NeuralBaseline(self.net.critic(problem), fit, self.generator, problem)

    def optimizers(self) -> Sequence[Optimizer]:
        """The value function's optimizers; the policy takes only one step a round."""
        return self.baseline.optimizers()

    def skip(self, rollout: Rollout) -> None:
        """Updates the normalisers, and the steps since each lane's episode began."""
        super().skip(rollout)
        self.clock(rollout.ended, rollout.lane)

    @torch.no_grad()
    def batch(self, experience: Experience, t: Tensor) -> StepBatch:
        """The round's steps; `t` [T, L] counts the steps since the episode began."""
        times = torch.cat((t.flatten(), t[experience.needs_final_obs] + 1))
        found = self.estimates(experience, lambda obs: self.baseline(obs, times))
        return StepBatch.of(experience, found)

    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:
        """Takes one step of the policy, then fits the baseline.

        The baseline is fitted second: fitted first, it would take this round's returns out of the
        advantages.
        """
        elapsed = self.clock(rollout.ended, rollout.lane, rollout.begins)
        t = torch.from_numpy(elapsed).to(self.vector.device)
        batch = self.batch(experience, t)
        metrics = self.improve_policy(batch)
        metrics["value_loss"] = self.baseline.fit(batch.obs, batch.target, t.flatten())
        self.rounds.add(rollout)
        variance = losses.explained_variance(batch.value, batch.target)
        return {**metrics, "explained_variance": variance}

    def improve_policy(self, batch: StepBatch) -> dict[str, float]:
        """Takes the part of the natural-gradient step that the line search accepts."""
        s, max_kl = self.settings, self.rounds.max_kl
        loss, kl = partial(self.surrogate, batch), self.kl_from(batch.obs)
        gradient, before = grad_and_value(loss)(self.vector)
        fisher = hessian_product(
            self.kl_from(self.fisher_rows(batch.obs)), self.vector, s.cg_damping
        )
        step, expected = full_step(gradient, fisher, max_kl=max_kl, iterations=s.cg_iterations)
        with torch.no_grad():
            found = line_search(
                loss,
                kl,
                self.vector,
                step,
                max_kl=max_kl,
                expected=expected,
                accept_ratio=s.accept_ratio,
                shrink=s.shrink,
                tries=s.tries,
            )
            dist = self.policy.dist(self.policy.layout.unflatten(found.vector), batch.obs)
        self.vector = found.vector
        return {
            "policy_loss": found.loss,
            "improvement": float(before) - found.loss,
            "kl": found.kl,
            "max_kl": max_kl,
            "step_fraction": found.fraction,
            "entropy": float(self.policy.entropy(dist).mean()),
        }

    def fisher_rows(self, obs: Tensor) -> Tensor:
        """The rows of [N, O] that Fisher's matrix is estimated from: one in `fisher_every`.

        They are drawn anew for every round. Every k-th row would belong to the same lanes in each
        round, because the rows of a step lie side by side.
        """
        every = self.settings.fisher_every
        if every == 1:
            return obs
        drawn = torch.randperm(len(obs), generator=self.generator)[: -(-len(obs) // every)]
        return obs[drawn.to(obs.device)]

    def surrogate(self, batch: StepBatch, vector: Tensor) -> Tensor:
        """-E[π(a|s) / π_old(a|s) A], over the whole round."""
        dist = self.policy.dist(self.policy.layout.unflatten(vector), batch.obs)
        log_prob = self.policy.log_prob(dist, batch.action)
        return losses.surrogate(log_prob, batch.log_prob, batch.advantage)

    def kl_from(self, obs: Tensor) -> Any:
        """A function of a vector v: the mean of KL(π_now || π_v) over observations [N, O]."""
        with torch.no_grad():
            now = self.policy.dist(self.policy.layout.unflatten(self.vector), obs)

        def kl(vector: Tensor) -> Tensor:
            dist = self.policy.dist(self.policy.layout.unflatten(vector), obs)
            return self.policy.kl(now, dist).mean()

        return kl

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
