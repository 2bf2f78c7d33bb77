"""The five functions of SAC's updates by networks (`sac_by_networks`), all of them pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.learning import losses
from walle.learning.off_policy_updates import (
    TrainState,
    adam_step,
    adam_update,
    gradient_of,
    polyak_update,
)
from walle.learning.replay import Transitions
from walle.nets.bounded_policies import SquashedGaussianPolicy
from walle.nets.critics import QFunctions

TWO = 2  # critics, and parts of a minibatch's rows


class SACParts:
    """The parts of an update of SAC: of one critic, or of half of the rows.

    Their inputs and results are flat tuples of tensors, for `compile_function`.

    Attributes:
        size: P, the number of the policy's parameters.
    """

    def __init__(
        self,
        policy: SquashedGaussianPolicy,
        critic: QFunctions,
        settings: Any,
        obs_dim: int,
        summary: Callable[[Sequence[Sequence[Tensor]]], Sequence[Tensor]],
    ) -> None:
        """Computes with the networks' structure; parameters are arguments.

        Args:
            policy: the policy.
            critic: a single critic.
            settings: `SACSettings`, with a target of the entropy.
            obs_dim: O.
            summary: computes an update's metrics from the mean values of SAC's two stages.
        """
        self._policy, self._critic, self._summary = policy, critic, summary
        self._settings, self._obs_dim = settings, obs_dim
        self.size = policy.layout.size

    def act(self, vector: Tensor, minibatch: Tensor, noise: Tensor) -> tuple[Tensor]:
        """Actions and log densities of half of the rows, [2 b (A + 1)]: at next observations first.

        Noise is [2, b, A].
        """
        batch = Transitions.split(minibatch, self._obs_dim)
        obs = torch.cat((batch.next_obs, batch.obs))
        action, log_prob = self._policy.draw(vector, obs, noise.flatten(0, 1))
        return (torch.cat((action, log_prob.unsqueeze(-1)), -1).flatten(),)

    def look_ahead(self, target: Tensor, minibatch: Tensor, acted: Tensor) -> tuple[Tensor]:
        """The slow copy's values [B] of the next actions in what `act` gave for both halves."""
        batch = Transitions.split(minibatch, self._obs_dim)
        (next_action, _), _ = self._of_rows(acted, batch.action.shape[1])
        return (self._critic(target, batch.next_obs, next_action)[0],)

    def move_critic(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Moves a critic towards the target of `SAC.target`, and its slow copy after it.

        Args:
            inputs: the fields of an `Owned`; log α; the minibatch [B, W]; what `act` gave for both
                halves; the slow copies' values [2, B] of the next actions.

        Returns:
            the fields of the new `Owned`, and a row: for each half the moved critic's values of the
            policy's actions [B / 2] and their gradients along the actions [B / 2 A]; then the loss
            and the mean value before the step.
        """
        *train, target, log_temperature, minibatch, acted, next_q = inputs
        critic, s = TrainState(*train), self._settings
        batch = Transitions.split(minibatch, self._obs_dim)
        (_, next_log_prob), (action, _) = self._of_rows(acted, batch.action.shape[1])
        y = losses.soft_td_target(
            batch.reward, batch.continues, next_q, next_log_prob, log_temperature.exp(), s.gamma
        )

        def loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            q = self._critic(vector, batch.obs, batch.action)
            return losses.critic_loss(q, y), q.mean()

        grad, (value, mean) = gradient_of(loss, critic.vector)
        critic = adam_step(critic, grad, s.learning_rate)

        def total(action: Tensor) -> tuple[Tensor, Tensor]:
            q = self._critic(critic.vector, batch.obs, action)[0]
            return q.sum(), q  # rows are independent, so this is each row's own gradient

        dq, (_, q) = grad_and_value(total, has_aux=True)(action)
        along = torch.cat((q.reshape(TWO, -1), dq.reshape(TWO, -1)), 1)
        row = torch.cat((along.flatten(), torch.stack((value, mean))))
        return *critic, polyak_update(target, critic.vector, s.tau), row

    def improve(self, *inputs: Tensor) -> tuple[Tensor]:
        """The gradient of `losses.soft_policy_loss` on half of the rows, by the chain rule.

        Args:
            inputs: the policy's parameters [P]; log α; b rows [b, W] and their noise [2, b, A]; for
                each critic the values of the policy's actions and their gradients [2, b (1 + A)].

        Returns:
            [P + 2]: the gradient of the mean over these rows, their loss, their mean log density.
        """
        vector, log_temperature, minibatch, noise, along = inputs
        temperature = log_temperature.exp()
        batch = Transitions.split(minibatch, self._obs_dim)
        q, dq = along[:, : len(minibatch)], along[:, len(minibatch) :].view(TWO, *noise[1].shape)
        slope = torch.where((q[0] <= q[1]).unsqueeze(-1), dq[0], dq[1])

        def loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            action, log_prob = self._policy.draw(vector, batch.obs, noise[1])
            rise = (slope * action).sum(-1)  # its gradient is that of min Q
            return (temperature * log_prob - rise).mean(), log_prob

        grad, (_, log_prob) = gradient_of(loss, vector)
        value = losses.soft_policy_loss(q, log_prob, temperature)
        return (torch.cat((grad, torch.stack((value, log_prob.mean())))),)

    def step(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Moves the policy and the temperature.

        Args:
            inputs: the fields of both parts of `Common`; what `improve` gave for the halves; each
                critic's loss and mean value [2, 2].

        Returns:
            the new fields, and the update's metrics.
        """
        *parts, halves, of_critics = inputs
        policy, log_temperature = TrainState(*parts[:4]), TrainState(*parts[4:])
        both, s = (halves[0] + halves[1]) / TWO, self._settings
        value, log_prob = both[-2], both[-1]
        temperature = log_temperature.vector.exp()

        def loss(log_temperature: Tensor) -> tuple[Tensor, Tensor]:
            found = losses.temperature_loss(log_temperature, log_prob, s.target_entropy)
            return found, log_temperature

        policy = adam_step(policy, both[: self.size], s.learning_rate)
        log_temperature, *_ = adam_update(loss, log_temperature, s.learning_rate)
        of_stages = (
            (of_critics[:, 0].sum(), of_critics[:, 1].mean()),
            (value, log_prob, temperature),
        )
        return *policy, *log_temperature, torch.stack(tuple(self._summary(of_stages)))

    @staticmethod
    def _of_rows(acted: Tensor, actions: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """Actions [B, A] and log densities [B], at next and at present observations."""
        each = acted.view(TWO, 2, -1, actions + 1)  # half, observation, row
        rows = [each[:, i].flatten(0, 1) for i in range(2)]
        return tuple((x[:, :actions], x[:, actions]) for x in rows)
