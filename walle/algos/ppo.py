"""Proximal policy optimisation with clipping (Schulman et al. 2017).

Departures from the paper:
    - advantages are recomputed with the newest value function before every epoch
      (`recompute_advantages`; Andrychowicz et al. 2021, section 3.5, "GAE"), and are normalised
      only on request;
    - observations are normalised, and rewards scaled, by running moments (Engstrom et al. 2020);
    - the step size falls linearly, and gradients are clipped by their norm;
    - with a memory (`net=gru`), which policy and critic share, minibatches are sequences of steps
      whose first state is recomputed whenever advantages are (rows.Sequences);
    - what an older policy collected, under lag, is corrected (`correction`): the ratio is clipped
      around the newest policy, and the rest is a truncated weight (Hilton, Cobbe & Schulman 2022,
      "Batch size-invariance for policy optimization") or V-trace (Espeholt et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos.base import Capabilities
from walle.algos.experience import Experience
from walle.algos.networks import NetSettings
from walle.algos.on_policy import OnPolicy, OnPolicySettings, remaining
from walle.algos.problem import Problem
from walle.algos.rows import SequenceInputs, StepInputs, make_rows
from walle.errors import not_negative, one_of, positive, within
from walle.learning import losses
from walle.learning.adam import AdamSettings, AdamState
from walle.learning.compiled import Compilable, Compiling
from walle.learning.fixed_batch import FixedBatch
from walle.learning.gradient_steps import Info
from walle.learning.optimizer import Optimizer
from walle.nets.actor_critic import ActorCritic
from walle.types import Rollout


@dataclass(kw_only=True)
class PPOSettings(OnPolicySettings):
    """conf/algo/ppo.yaml, where every key is explained."""

    clip: float = within("(0, 1)", example=0.2)
    epochs: int = positive()
    minibatch_size: int = positive()
    learning_rate: float = positive()
    schedule: str = one_of("linear", "constant")
    value_weight: float = not_negative()
    value_clip: float | None = positive()
    entropy_weight: float
    max_grad_norm: float | None = positive()
    target_kl: float | None = positive()
    recompute_advantages: bool

    @property
    def shared_minibatches(self) -> dict[str, int]:
        """See `AlgorithmSettings`."""
        return {"minibatch_size": self.minibatch_size}


class PPOBatch(NamedTuple):
    """N rows: steps, or sequences of K steps.

    Attributes:
        inputs: what the networks see.
        action: [N, *A], or [N, K, *A] in sequences, and so on.
        log_prob: of the action under the policy before the update.
        advantage: of the action.
        target: of the value function.
        value: the first estimate of this round.
    """

    inputs: StepInputs | SequenceInputs
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor


class PPO(OnPolicy):
    """Policy and critic share one vector and one optimizer."""

    capabilities: ClassVar[Capabilities] = Capabilities(PPOSettings, recurrent=True)

    def __init__(self, settings: PPOSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        super().__init__(settings, net, problem)
        self.critic = net.critic(problem)
        self.networks = ActorCritic(self.policy, self.critic)
        self.vector = self.networks.init(self.generator).to(problem.device)
        self.adam = AdamState.zeros_like(self.vector)
        self.rows = make_rows(self.policy, net, settings.minibatch_size)
        self.optimizer = Optimizer(
            self.loss,
            AdamSettings(max_grad_norm=settings.max_grad_norm),
            stop=self.too_far if settings.target_kl is not None else None,
        )
        self.value_of: Callable[[Tensor, Tensor], Tensor] = self.networks.value
        minibatches = -(-problem.batch_size // settings.minibatch_size)
        steps = problem.rounds * settings.epochs * minibatches
        parts = [Compilable("learning", steps, self.compile)]
        self.compiling = Compiling(settings.compile, problem.device, parts)

    def loss(self, vector: Tensor, batch: PPOBatch) -> tuple[Tensor, Info]:
        """L = L_clip + c_v L_value - c_h H, over a minibatch."""
        s = self.settings
        policy, critic = self.networks.split(vector)
        features = self.rows.features(policy, batch.inputs)
        dist = self.policy.dist(policy, features)
        log_prob = self.policy.log_prob(dist, batch.action)
        policy_loss, info = losses.ppo_clip(log_prob, batch.log_prob, batch.advantage, s.clip)
        value = self.critic(critic, features)
        value_loss = losses.value_loss(value, batch.target, batch.value, s.value_clip)
        entropy = self.policy.entropy(dist).mean()
        loss = policy_loss + s.value_weight * value_loss - s.entropy_weight * entropy
        info |= {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return loss, info

    @property
    def policy_vector(self) -> Tensor:
        """The policy's part of the vector, [P]."""
        return self.networks.policy_vector(self.vector)

    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizer of policy and critic."""
        return [self.optimizer]

    def compile(self) -> None:
        """Compiles the gradient step and the critic."""
        zeros = Experience.zeros(self.problem, self.net.state_size)
        example = self.batch(zeros, self.vector)
        self.optimizer.compile(self.vector, example, self.rows.minibatch_size)
        width, rows = self.net.features(self.problem), self.problem.batch_size
        self.value_of = FixedBatch(self.networks.value, self.vector, width, rows)

    def features(self, experience: Experience) -> Experience:
        """The round with states of the memory, if there is one, in the place of observations."""
        return self.rows.seen(self.networks.split(self.vector)[0], experience)

    @torch.no_grad()
    def batch(
        self, experience: Experience, vector: Tensor, old_value: Tensor | None = None
    ) -> PPOBatch:
        """The rows to learn from, advantages estimated with the critic in `vector`.

        `old_value`, as rows, is the round's first estimate; None if this call makes it.
        """
        seen = self.rows.seen(self.networks.split(vector)[0], experience)
        found = self.estimates(seen, partial(self.value_of, vector))
        as_rows = self.rows.as_rows
        return PPOBatch(
            inputs=self.rows.inputs(experience, seen),
            action=as_rows(experience.action),
            log_prob=as_rows(experience.log_prob),
            advantage=as_rows(found.advantage),
            target=as_rows(found.target),
            value=as_rows(found.value) if old_value is None else old_value,
        )

    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:  # noqa: ARG002
        """Takes `epochs` passes over the round, advantages estimated before each."""
        s = self.settings
        first = self.batch(experience, self.vector)
        rate = s.learning_rate * remaining(s.schedule, self.env_steps, self.problem.total_steps)
        result = self.optimizer.minimise(
            self.vector,
            self.adam,
            first,
            epochs=s.epochs,
            minibatch_size=self.rows.minibatch_size,
            learning_rate=rate,
            generator=self.generator,
            recompute=partial(self.batch, experience, old_value=first.value)
            if s.recompute_advantages
            else None,
        )
        self.vector, self.adam = result.vector, result.state
        return {
            **result.info,
            "explained_variance": losses.explained_variance(first.value, first.target),
            "learning_rate": rate,
            "minibatches": result.minibatches,
        }

    def too_far(self, info: Mapping[str, float]) -> bool:
        """Whether the policy has left its trust region: KL beyond 1.5 x target."""
        return bool(info["kl"] > 1.5 * self.settings.target_kl)

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        own = {"vector": self.vector, "adam": self.adam.state_dict()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        super().load_state_dict(state)
        self.vector = state["vector"].to(self.problem.device)
        self.adam = AdamState.restored(state["adam"], self.problem.device)
