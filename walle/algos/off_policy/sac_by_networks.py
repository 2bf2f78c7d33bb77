"""SAC's updates with a learner for each of the two critics (`learner.divide=networks`).

A learner owns a critic with its Adam state and its slow copy, and alone computes and moves them.
Policies are computed by rows, half a minibatch each. An update has four exchanges:

1. actions of the policy at both observations of a transition, by rows;
2. the slow copies' values of the next actions, from which everybody computes the target;
3. each moved critic's values of the policy's actions, and their gradients along the actions;
4. the gradient of the policy, by rows.

Only the last is as long as a network. Everything is computed critic by critic and half by half, so
the parameters are the same bits for one learner and for two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.algos.off_policy.sac_parts import TWO, SACParts
from walle.learning.compiled import Function, compile_function
from walle.learning.off_policy_updates import TrainState
from walle.learning.sharing.team import ALONE, Team, dealt


class Owned(NamedTuple):
    """A critic, with Adam's state, and its slow copy [Q]."""

    critic: TrainState
    target: Tensor


class Common(NamedTuple):
    """What every learner has, and moves in the same way."""

    policy: TrainState
    log_temperature: TrainState


class Programs(NamedTuple):
    """The functions of an update, in the order of the exchanges; then the policy's step."""

    act: Function
    look_ahead: Function
    move_critic: Function
    improve: Function
    step: Function


class SeparateCritics:
    """A function that takes blocks of one update by networks, eagerly until `compile`.

    It has the interface of `off_policy_updates.Updates`; the state is a `SACState`.
    """

    def __init__(self, parts: SACParts) -> None:
        """Takes all blocks alone until `join_team`."""
        self._team: Team = ALONE
        self._size = parts.size
        self._programs = Programs(
            parts.act, parts.look_ahead, parts.move_critic, parts.improve, parts.step
        )

    def join_team(self, team: Team) -> None:
        """Takes all later blocks with `team`."""
        self._team = team

    @torch.no_grad()
    def compile(
        self, state: Any, minibatches: Tensor, noise: Tensor, description: str | None = None
    ) -> None:
        """See `Updates.compile`; compiles five functions."""
        owned, common = self._owned(state, 0), Common(state.policy, state.log_temperature)
        vector, log_temperature = common.policy.vector, common.log_temperature.vector
        minibatch, (draws,) = minibatches[0], self._in_halves(noise.unsqueeze(0))
        half = minibatch[: len(minibatch) // TWO]
        acted, next_q, of_critics, of_policy = (
            torch.zeros(TWO, width, device=noise.device) for width in self._widths(draws)
        )
        along = of_critics[:, : of_critics.shape[1] // TWO - 1]
        examples: list[tuple[Tensor, ...]] = [  # in the order of `Programs`
            (vector, half, draws[0]),
            (owned.target, minibatch, acted),
            (*owned.critic, owned.target, log_temperature, minibatch, acted, next_q),
            (vector, log_temperature, half, draws[0], along),
            (*common.policy, *common.log_temperature, of_policy, of_critics[:, -TWO:]),
        ]
        found = []
        for name, function, inputs in zip(Programs._fields, self._programs, examples, strict=True):
            of = None if description is None else f"{name}, by networks, of {description}"
            example = [x.contiguous() for x in inputs]
            found.append(compile_function(_unbound(function), example, of))
        self._programs = Programs(*found)

    @torch.no_grad()
    def run(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """See `Updates.run`; every learner of the team must call it with the same arguments."""
        mine = dealt(TWO, self._team.rank, self._team.size)
        owned = {k: self._owned(state, k) for k in mine}
        common, metrics = Common(state.policy, state.log_temperature), []
        for minibatch, draws in zip(minibatches[:, 0], self._in_halves(noise), strict=True):
            common, found = self._update(common, owned, minibatch, draws)
            metrics.append(found)
        return self._whole(state, common, owned), metrics

    def _update(
        self, common: Common, owned: dict[int, Owned], minibatch: Tensor, noise: Tensor
    ) -> tuple[Common, Tensor]:
        """One update on [B, W] with noise [2, 2, B / 2, A] of each half; changes `owned`.

        A learner's halves have the numbers of its critics. What it gathers stays for one exchange.
        """
        vector, log_temperature = common.policy.vector, common.log_temperature.vector
        acts, look_ahead, move_critic, improve, step = self._programs
        width, count, of_critics, of_policy = self._widths(noise)
        halves = minibatch.view(TWO, -1, minibatch.shape[1])

        def moved(k: int) -> Tensor:
            inputs = log_temperature, minibatch, acted, next_q
            *found, row = move_critic(*owned[k].critic, owned[k].target, *inputs)
            owned[k] = Owned(TrainState(*found[:4]), found[4])
            return row

        def gradient(h: int) -> Tensor:
            along = rows[:, h * each : (h + 1) * each].contiguous()
            return improve(vector, log_temperature, halves[h], noise[h], along)[0]

        gather = self._team.gather
        acted = gather(TWO, width, lambda h: acts(vector, halves[h], noise[h])[0]).clone()
        next_q = gather(TWO, count, lambda k: look_ahead(owned[k].target, minibatch, acted)[0])
        rows, each = gather(TWO, of_critics, moved), of_critics // TWO - 1
        values = rows[:, -TWO:].contiguous()
        gradients = gather(TWO, of_policy, gradient)
        *found, metrics = step(*common.policy, *common.log_temperature, gradients, values)
        return Common(TrainState(*found[:4]), TrainState(*found[4:])), metrics

    def _widths(self, noise: Tensor) -> tuple[int, int, int, int]:
        """The numbers in a row of each exchange, for noise [2, 2, B / 2, A]."""
        rows, actions = TWO * noise.shape[2], noise.shape[3]
        return rows * (actions + 1), rows, rows * (actions + 1) + 2, self._size + 2

    @staticmethod
    def _in_halves(noise: Tensor) -> Tensor:
        """Noise [N, 1, 2, B, A] as [N, 2, 2, B / 2, A], half by half."""
        updates, _, draws, rows, actions = noise.shape
        halves = noise.view(updates, draws, TWO, rows // TWO, actions)
        return halves.transpose(1, 2).contiguous()

    def _owned(self, state: Any, k: int) -> Owned:
        """Critic `k` of a `SACState`."""
        vector, mean, square, decay = state.critic
        cut = slice(k * len(vector) // TWO, (k + 1) * len(vector) // TWO)
        train = TrainState(vector[cut].clone(), mean[cut].clone(), square[cut].clone(), decay)
        return Owned(train, state.critic_target[cut].clone())

    def _whole(self, state: Any, common: Common, owned: dict[int, Owned]) -> Any:
        """The `SACState` with both critics, the other learner's too."""

        def row(k: int) -> Tensor:
            critic, target = owned[k]
            return torch.cat((critic.vector, critic.mean, critic.square, target))

        size = len(state.critic_target) // TWO
        rows = self._team.gather(TWO, 4 * size, row).view(TWO, 4, size)
        vector, mean, square, target = (rows[:, i].flatten() for i in range(4))
        decay = next(iter(owned.values())).critic.decay
        critic = TrainState(vector, mean, square, decay)
        return state._replace(
            policy=common.policy,
            log_temperature=common.log_temperature,
            critic=critic,
            critic_target=target,
        )


def _unbound(method: Function) -> Function:
    """The method as a plain function: the tracer would count `self` among its inputs."""
    return lambda *inputs: method(*inputs)
