"""Trust region policy optimisation (Schulman et al. 2015).

The policy takes one step a round along the natural gradient, found by conjugate gradient. The step
is scaled to the KL bound, then shortened until the measured KL keeps the bound and the loss falls.

Departures from the papers:
    - the surrogate has generalised advantage estimates (Schulman et al. 2016), normalised over the
      round, whereas Schulman et al. 2015 had returns of single paths or vines;
    - the value function takes steps of Adam on minibatches, whereas Schulman et al. 2016 used a
      second trust region;
    - rollouts hold parts of episodes unless `sampler.collect=episodes`; a return that is cut by a
      time limit or by the end of a rollout is completed with the value function;
    - observations are normalised, and rewards scaled, by running moments;
    - Fisher's matrix is that of the whole round by default, whereas the paper used a tenth of the
      round (`fisher_every`), and `cg_damping` is added to its diagonal;
    - the line search accepts a step that achieves `accept_ratio` of the expected improvement; the
      paper asks for any improvement. If it accepts no step, the policy does not change;
    - under lag, π_old in the surrogate is the newest policy, and experience of an older policy is
      weighted (`correction`; OnPolicy.with_newest_log_probs).

examples/parallel_trpo_2016 has the TRPO of Frans & Hafner (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.algos.base import Capabilities, Problem
from walle.algos.engines import Part
from walle.algos.on_policy.base import OnPolicy, OnPolicySettings, StepBatch
from walle.algos.on_policy.baselines import BaselineSettings, NeuralBaseline
from walle.algos.on_policy.experience import Experience
from walle.errors import not_negative, positive, within
from walle.learning import losses
from walle.learning.step import Divisible
from walle.learning.trust_region import full_step, hessian_product, line_search
from walle.nets.factory import NetSettings
from walle.types import Rollout


@dataclass(kw_only=True)
class TrustRegionSettings(OnPolicySettings):
    """Settings of the policy's step; conf/algo/trpo.yaml explains every key."""

    max_kl: float = positive()
    cg_iterations: int = positive()
    cg_damping: float = not_negative()
    fisher_every: int = positive()
    accept_ratio: float = within("[0, 1)", example=0.5)
    shrink: float = within("[0, 1)", example=0.5)
    tries: int = positive()


class TrustRegion(OnPolicy):
    """The policy's step of TRPO; a subclass adds the value function and `learn`."""

    settings: TrustRegionSettings

    def improve_policy(self, batch: StepBatch, max_kl: float) -> dict[str, float]:
        """Takes the part of the natural-gradient step that the line search accepts."""
        s = self.settings
        loss, kl = partial(self.surrogate, batch), self.kl_from(batch.obs)
        gradient, before = grad_and_value(loss)(self.vector)
        fisher = hessian_product(
            self.kl_from(self.fisher_rows(batch.obs)), self.vector, s.cg_damping
        )
        step, expected = full_step(gradient, fisher, max_kl=max_kl, iterations=s.cg_iterations)
        with torch.no_grad():
            result = line_search(
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
            dist = self.policy.dist(self.policy.layout.unflatten(result.vector), batch.obs)
        self.vector = result.vector
        return {
            "policy_loss": result.loss,
            "improvement": float(before) - result.loss,
            "kl": result.kl,
            "max_kl": max_kl,
            "step_fraction": result.fraction,
            "entropy": float(self.policy.entropy(dist).mean()),
        }

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

    def fisher_rows(self, obs: Tensor) -> Tensor:
        """The rows of [N, O] that Fisher's matrix is estimated from: one in `fisher_every`.

        They are redrawn for every round. Every k-th row would belong to the same lanes in each
        round, because the rows of a step lie side by side.
        """
        every = self.settings.fisher_every
        if every == 1:
            return obs
        drawn = torch.randperm(len(obs), generator=self.generator)[: -(-len(obs) // every)]
        return obs[drawn.to(obs.device)]


@dataclass(kw_only=True)
class TRPOSettings(BaselineSettings, TrustRegionSettings):
    """Settings in conf/algo/trpo.yaml, which explains every key."""


class TRPO(TrustRegion):
    """TRPO: a policy in one vector, and a value function that is fitted after each policy step."""

    capabilities: ClassVar[Capabilities] = Capabilities(TRPOSettings, asymmetric=True)
    learned = (*TrustRegion.learned, "baseline.vector")

    def __init__(self, settings: TRPOSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        super().__init__(settings, net, problem)
        self.baseline = NeuralBaseline(self)

    def parts(self) -> list[Part]:
        """The value function's steps."""
        return self.baseline.parts(self)

    def optimizers(self) -> Sequence[Divisible]:
        """The value function's optimizer; the policy takes only one step a round."""
        return self.baseline.optimizers()

    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:  # noqa: ARG002
        """Takes one step of the policy, then fits the value function.

        The value function is fitted second: fitted first, it would remove this round's returns from
        the advantages.
        """
        with torch.no_grad():
            batch = StepBatch.of(experience, self.estimates(experience, self.baseline))
        metrics = self.improve_policy(batch, self.settings.max_kl)
        metrics["value_loss"] = self.baseline.fit(batch.obs, batch.target)
        variance = losses.explained_variance(batch.value, batch.target)
        return {**metrics, "explained_variance": variance}

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {**super().state_dict(), "baseline": self.baseline.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        super().load_state_dict(state)
        self.baseline.load_state_dict(state["baseline"])
