"""Deep Q-learning with replay and a target network (Mnih et al. 2015).

Departures from the paper:
    - any observations: images of any size through the paper's convolutions (`net=cnn`), vectors
      through fully connected layers; wrappers, not this file, stack and skip frames or clip
      rewards;
    - Adam instead of RMSProp; the Huber loss instead of an error clipped to [-1, 1], which has the
      same gradient; the gradient's norm is bounded;
    - `double` chooses the target's action with the online network (van Hasselt, Guez & Silver 2016,
      eq. 4);
    - the step size falls linearly to 0, so that the policy changes little at the end (`schedule`);
    - episodes do not start with a random number of no-op actions;
    - every `target_interval` updates, the target moves by a fraction `tau` towards the network (by
      1 in the paper);
    - ε falls linearly from 1 during `exploration_fraction` of the run, and changes once a round;
    - an episode that a time limit cuts is not terminal: its last step bootstraps;
    - collection and updates alternate by rounds: each round's steps are followed by
      `updates_per_step` updates for every step, for any number of lanes;
    - the defaults are for small tasks: after 1,000 steps, an update on 128 of the last 100,000
      transitions every 2 steps, and a final ε of 0.04; in the paper, after 50,000 steps, an update
      on 32 of the last million every 4 steps, and a final ε of 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from walle.algos.base import Capabilities, Problem, check_discrete
from walle.algos.off_policy.base import OffPolicy, OffPolicySettings, Sample
from walle.errors import positive, within
from walle.learning import losses
from walle.learning.adam import TrainState
from walle.learning.native.library import ints, widths
from walle.learning.native.replay_updates import ActionValues, NativeUpdates
from walle.learning.step import Stage, gradient_of
from walle.nets.factory import NetSettings
from walle.nets.replay_policies import EpsilonGreedyPolicy


@dataclass(kw_only=True)
class DQNSettings(OffPolicySettings):
    """Settings in conf/algo/dqn.yaml, which explains every key."""

    double: bool
    max_grad_norm: float | None = positive()
    target_interval: int = positive()
    exploration_fraction: float = within("(0, 1]", example=0.16)
    exploration_final: float = within("[0, 1]", example=0.04)


class DQNState(NamedTuple):
    """The network's parameters and optimizer, the target's [Q], and the updates so far."""

    values: TrainState
    target: Tensor
    updates: Tensor


class DQN(OffPolicy):
    """DQN: one network of action values, with a target network."""

    kind = "epsilon_greedy"
    capabilities: ClassVar[Capabilities] = Capabilities(DQNSettings, replay=True, images=True)
    metrics = ("value_loss", "q")  # q is the mean value of the minibatch's actions

    def __init__(self, settings: DQNSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters; the target is a copy of them."""
        check_discrete(settings.name, problem.action_space)
        self.policy_factory = net.policy_factory(problem, self.kind)
        self.policy: EpsilonGreedyPolicy = self.policy_factory()
        generator = problem.generator()
        initial = self.policy.init_values(generator).to(problem.device)
        updates = torch.zeros((), dtype=torch.int64, device=problem.device)
        start = DQNState(TrainState.start(initial), initial, updates)
        super().__init__(settings, net, problem, start, generator, actions=1)
        self.adam = self.adam._replace(max_grad_norm=settings.max_grad_norm)
        self._exploring_steps = settings.exploration_fraction * problem.schedule_steps

    def stages(self) -> list[Stage]:
        """One stage: a gradient step on the values, and the target's step towards them when due."""
        return [Stage(self.value_gradient, self.value_step)]

    def value_gradient(self, state: DQNState, batch: Sample) -> tuple[Tensor, Tensor]:
        """The gradient of the values' loss, [Q]; the loss, and the mean value of the actions."""
        x, target = batch.transitions, self.target(state, batch)

        def loss(vector: Tensor) -> tuple[Tensor, list[Tensor]]:
            q = self.policy.values(vector, x.obs).gather(-1, x.action.long()).squeeze(-1)
            return functional.smooth_l1_loss(q, target), [q.mean()]

        return gradient_of(loss, state.values.vector)

    def target(self, state: DQNState, batch: Sample) -> Tensor:
        """The target y = r + γ c max_a Q'(s', a), [B]; double: Q'(s', argmax_a Q(s', a)).

        c is 0 after a terminal state, else 1.
        """
        x = batch.transitions
        choosing = q = self.policy.values(state.target, x.next_obs)
        if self.settings.double:
            choosing = self.policy.values(state.values.vector, x.next_obs)
        best = q.gather(-1, choosing.argmax(-1, keepdim=True)).T
        return losses.td_target(x.reward, x.continues, best, self.settings.gamma)

    def value_step(self, state: DQNState, grad: Tensor, numbers: Tensor) -> tuple[DQNState, Tensor]:
        """Moves the values along the gradient [Q], and the target when due."""
        s, after = self.settings, self.adam_step(state.values, grad)
        updates = state.updates + 1
        moved = torch.lerp(state.target, after.vector, s.tau)
        due = updates % s.target_interval == 0
        return DQNState(after, torch.where(due, moved, state.target), updates), numbers

    def summary(self, numbers: Sequence[Tensor]) -> Tensor:
        """See `OffPolicy.summary`."""
        return numbers[0]

    def native_updates(self) -> NativeUpdates:
        """See `OffPolicy`."""
        s, layers = self.settings, widths(self.policy.values_layout)
        parts = ActionValues(
            widths=ints(layers),
            layers=len(layers) - 1,
            max_grad_norm=math.inf if s.max_grad_norm is None else s.max_grad_norm,
            is_double=s.double,
            target_interval=s.target_interval,
        )
        return NativeUpdates(self, "dqn", parts)

    @property
    def policy_vector(self) -> Tensor:
        """The parameters of the values."""
        vector: Tensor = self.state.values.vector
        return vector

    @property
    def exploration(self) -> float:
        """ε: on a line from 1 at step 0 to `exploration_final`, but 1 until learning starts."""
        if self.env_steps < self.settings.learning_starts:
            return 1.0
        share = min(1.0, self.env_steps / self._exploring_steps)
        final: float = self.settings.exploration_final
        return 1.0 + share * (final - 1.0)
