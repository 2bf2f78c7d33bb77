"""PPO with a KL penalty, as in WALL-E (Xu, Zhang & Zhao 2018; Hafner et al. 2017, Batch PPO).

The policy takes up to 20 full-batch steps on -E[ρ A] + β KL + η max(0, KL - 2 target)², and stops
when the KL exceeds four times its target; β and a multiplier of the step size adapt between rounds.
The value function is a separate network, fitted on the data of this round and the previous one.

Departures from Heess et al. 2017 ("Emergence of locomotion behaviours in rich environments"), from
which WALL-E took the algorithm:
    - one agent takes every gradient, on the rollouts of all samplers, instead of averaging the
      gradients of workers; policies have no memory;
    - advantages are generalised estimates instead of K-step returns;
    - rewards are divided by the running deviation of returns instead of that of rewards;
    - the step size adapts too, a round's steps end early, and the value function learns from two
      rounds: all three come from WALL-E's code, as do the constants of `adapt`.

Departures from Batch PPO (Hafner et al. 2017 and its code) that sweeps/batch_ppo_2017.yaml keeps:
    - the excess of the KL divergence is squared for the whole round instead of for each episode;
    - β changes if the KL divergence is above 2 or below 0.5 times its target, instead of 1.3 and
      0.7 times, and β is bounded; the step size adapts, and a round's steps end early;
    - the value function learns from two rounds; its loss has no factor of 1/2;
    - a round is a number of steps instead of a number of whole episodes, so an episode that a round
      cuts is bootstrapped; initial weights are `walle`'s.

Departures from the penalty of Schulman et al. 2017, section 4: β changes by a factor of 1.5 instead
of 2, and does so if the KL divergence is beyond a factor of 2 from its target, instead of 1.5; the
squared excess is added; the policy's steps are full-batch.

examples/wall_e_2018 has the networks, initial weights, step sizes and AMSGrad of WALL-E's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos import engines
from walle.algos.base import Capabilities, Problem
from walle.algos.engines import Part
from walle.algos.on_policy.base import OnPolicy, StepBatch
from walle.algos.on_policy.baselines import BaselineSettings, FitBatch, NeuralBaseline
from walle.algos.on_policy.experience import Experience
from walle.errors import not_negative, positive
from walle.learning import losses
from walle.learning.adam import Result, TrainState
from walle.learning.native.passes import Loss
from walle.learning.step import Divisible, Info, Optimizer
from walle.nets.factory import NetSettings
from walle.types import Rollout

BETA_MAX = 35.0
BETA_HIGH = 30.0
RATE_MIN, RATE_MAX = 0.1, 10.0
STEP = 1.5
TOO_FAR = 4.0  # times the target of the KL divergence


@dataclass(kw_only=True)
class PPOKLSettings(BaselineSettings):
    """Settings in conf/algo/ppo_kl.yaml, which explains every key."""

    kl_target: float = positive()
    eta: float = not_negative()
    epochs: int = positive()
    learning_rate: float = positive()


class PPOKLBatch(NamedTuple):
    """The round's N steps, see `StepBatch`, and the penalty's data."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor
    dist: Tensor  # [N, D] the old policy's distributions
    beta: Tensor  # [] β, the penalty's weight


def adapt(beta: float, rate: float, kl: float, target: float) -> tuple[float, float]:
    """The next round's penalty weight β and step-size multiplier.

    KL > 2 target: β is multiplied by 1.5, up to 35; if β is then > 30 and the multiplier > 0.1, the
    multiplier is divided by 1.5. KL < target / 2: β is divided by 1.5, down to 1/35; if β is then <
    1/30 and the multiplier < 10, the multiplier is multiplied by 1.5.
    """
    if kl > 2 * target:
        beta = min(BETA_MAX, STEP * beta)
        if beta > BETA_HIGH and rate > RATE_MIN:
            rate /= STEP
    elif kl < target / 2:
        beta = max(1 / BETA_MAX, beta / STEP)
        if beta < 1 / BETA_HIGH and rate < RATE_MAX:
            rate *= STEP
    return beta, rate


class PPOKL(OnPolicy):
    """PPO with a KL penalty; policy and value function have separate vectors and optimizers."""

    capabilities: ClassVar[Capabilities] = Capabilities(PPOKLSettings, asymmetric=True)
    learned = (*OnPolicy.learned, "value.vector")

    def __init__(self, settings: PPOKLSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        super().__init__(settings, net, problem)
        self.value = NeuralBaseline(self)
        self.optimizer = Optimizer(self.loss, self.adam_settings, stop=self.too_far)
        self.beta, self.rate = 1.0, 1.0
        self.previous: FitBatch | None = None

    def loss(self, vector: Tensor, batch: PPOKLBatch) -> tuple[Tensor, Info]:
        """The penalised surrogate over the whole round."""
        dist = self.policy.dist(self.policy.layout.unflatten(vector), batch.obs)
        loss, info = losses.ppo_kl(
            self.policy.log_prob(dist, batch.action),
            batch.log_prob,
            batch.advantage,
            self.policy.kl(batch.dist, dist),
            batch.beta,
            self.settings.eta,
            self.settings.kl_target,
        )
        return loss, {**info, "policy_loss": loss, "entropy": self.policy.entropy(dist).mean()}

    def parts(self) -> list[Part]:
        """The policy's steps and the value function's."""
        compile_step = None if self.problem.rounds_vary else self.compile
        load = self.load_native if engines.has_policy(self) else None
        policy = Part("policy", self.problem.rounds * self.settings.epochs, load, compile_step)
        return [policy, *self.value.parts(self, rounds=2)]

    def optimizers(self) -> Sequence[Divisible]:
        """The value function's optimizer.

        In PyTorch every learner takes the policy's steps, because their loss is not a mean over the
        rows.
        """
        return self.value.optimizers()

    def load_native(self) -> None:
        """Takes all later steps of the policy in C++."""
        target = self.settings.kl_target
        loss = Loss(
            "kl_penalty", eta=self.settings.eta, kl_target=target, kl_limit=TOO_FAR * target
        )
        self.learn_in_cpp(engines.passes(self, None, loss))

    def compile(self) -> None:
        """Compiles the policy's gradient."""
        example = self.batch(Experience.zeros(self.problem))
        state = TrainState(self.vector, self.adam)
        self.optimizer.compile(state, example, len(example.obs))

    @torch.no_grad()
    def batch(self, experience: Experience) -> PPOKLBatch:
        """The round's steps, the old policy's distributions and β."""
        params = self.policy.layout.unflatten(self.vector)
        return PPOKLBatch(
            *StepBatch.of(experience, self.estimates(experience, self.value)),
            dist=self.policy.dist(params, experience.obs).flatten(0, 1),
            beta=torch.tensor(self.beta, device=self.vector.device),
        )

    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:  # noqa: ARG002
        """Improves the policy, adapts β and the step size, fits the value function."""
        batch = self.batch(experience)
        used = {"beta": self.beta, "learning_rate": self.settings.learning_rate * self.rate}
        result = self.improve_policy(batch, used["learning_rate"])
        with torch.no_grad():  # E[KL(old || new)] over the round's observations
            dist = self.policy.dist(self.policy.layout.unflatten(self.vector), batch.obs)
            kl = float(self.policy.kl(batch.dist, dist).mean())
        self.beta, self.rate = adapt(self.beta, self.rate, kl, self.settings.kl_target)
        return {
            "policy_loss": result.info["policy_loss"],
            "value_loss": self.fit_value(batch),
            "entropy": result.info["entropy"],
            "kl": kl,
            **used,
            "explained_variance_old": losses.explained_variance(batch.value, batch.target),
            "explained_variance": losses.explained_variance(self.value(batch.obs), batch.target),
            "gradient_steps": result.gradient_steps,
        }

    def improve_policy(self, batch: PPOKLBatch, rate: float) -> Result:
        """Takes at most `epochs` full-batch steps; stops when the KL is too large."""
        result: Result = self.optimizer.minimise(
            self.vector,
            self.adam,
            batch,
            epochs=self.settings.epochs,
            minibatch_size=len(batch.obs),
            learning_rate=rate,
            generator=self.generator,
        )
        self.vector, self.adam = result.vector, result.state
        return result

    def too_far(self, info: Mapping[str, float]) -> bool:
        """Whether the KL divergence is above four times its target."""
        return bool(info["kl"] > TOO_FAR * self.settings.kl_target)

    def fit_value(self, batch: PPOKLBatch) -> float:
        """Fits the value function on this and the previous round; returns the mean loss."""
        current = FitBatch(batch.obs, batch.target)
        data = current
        if self.previous is not None:
            data = FitBatch(*map(torch.cat, zip(self.previous, current, strict=True)))
        self.previous = current
        return self.value.fit(*data)

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {
            **super().state_dict(),
            "value": self.value.state_dict(),
            "previous": self.previous and self.previous._asdict(),
            "beta": self.beta,
            "rate": self.rate,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        super().load_state_dict(state)
        device, previous = self.problem.device, state["previous"]
        self.value.load_state_dict(state["value"])
        self.previous = previous and FitBatch(**{k: x.to(device) for k, x in previous.items()})
        self.beta, self.rate = state["beta"], state["rate"]
