"""PPO's passes over a round in C++ (`ppo.cpp`): Gaussian actions, fully connected networks.

The numbers are those of `PPO.loss` with eager or compiled steps, except for rounding. Nothing runs
in Python between the minibatches, and several learners meet inside the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import Structure, byref
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from walle.learning.adam import AdamSettings, AdamState
from walle.learning.native.ppo_library import (
    CORRECTIONS,
    NAMES,
    Adam,
    Loss,
    Networks,
    PPOLoss,
    Returns,
    Spent,
    places_of,
    ppo_library,
    round_of,
    rows_of,
)
from walle.learning.native.structures import ACTIVATIONS, address, ints, widths
from walle.learning.optimizer import Result
from walle.learning.sharing.team import ALONE, Exchange, Team
from walle.nets.normalize import BatchMoments
from walle.types import FloatArray


class Learned(NamedTuple):
    """What `PPOEpochs.minimise` gives.

    Attributes:
        result: new parameters, Adam's state and the numbers.
        value: [N] estimates of the first critic.
        target: [N] what the first critic's targets were.
    """

    result: Result
    value: Tensor
    target: Tensor


class Orders(NamedTuple):
    """Random orders of a round's rows.

    Attributes:
        rows: [E, N] the rows' numbers in each order.
        states: E + 1 states of the generator: before each order, and after the last.
    """

    rows: Tensor
    states: list[Tensor]

    @classmethod
    def draw(cls, epochs: int, count: int, generator: torch.Generator) -> Orders:
        """Draws E orders of N rows."""
        rows, states = torch.empty(epochs, count, dtype=torch.int64), [generator.get_state()]
        for order in rows:
            torch.randperm(count, generator=generator, out=order)
            states.append(generator.get_state())
        return cls(rows, states)


class PPOEpochs:
    """Passes of PPO over the rows of a round.

    Attributes:
        team: the learners that divide values and minibatches.
    """

    def __init__(self, loss: PPOLoss, settings: AdamSettings, shards: int) -> None:
        """Compiles and loads the library.

        Args:
            loss: networks and weights of the loss.
            settings: of Adam, and the bound of the gradient's norm.
            shards: into how many parts a minibatch is divided.

        Raises:
            CompilerError: there is no compiler that compiles it.
        """
        self.team: Team = ALONE
        self._library = ppo_library()
        policy, critic = widths(loss.policy), widths(loss.critic)
        networks = Networks(
            *(ints(policy), ints(critic), len(policy) - 1, len(critic) - 1),
            *(ACTIVATIONS[loss.activation], 1),
        )
        weights = Loss(
            loss.clip,
            loss.value_weight,
            math.inf if loss.value_clip is None else loss.value_clip,
            loss.entropy_weight,
            loss.noise_is_learned,
        )
        bound = settings.max_grad_norm
        adam = Adam(*settings[:3], math.inf if bound is None else bound)
        self._learner = self._library.ppo_new(byref(networks), byref(weights), byref(adam), shards)
        self._returns = Returns(
            *(loss.gamma, loss.gae_lambda),
            *(CORRECTIONS[loss.correction], loss.normalize_advantages),
        )
        self._kl_limit = math.inf if loss.kl_limit is None else loss.kl_limit
        self._ahead: Orders | None = None

    def __del__(self) -> None:
        """Frees the library's memory."""
        if hasattr(self, "_learner"):  # else the library was not loaded
            self._library.ppo_delete(self._learner)

    def draw_ahead(self, epochs: int, count: int, generator: torch.Generator) -> None:
        """Draws the orders of the next `minimise` of N rows; leaves the generator as it is."""
        copy = torch.Generator()
        copy.set_state(generator.get_state())
        self._ahead = Orders.draw(epochs, count, copy)

    def minimise(
        self,
        vector: Tensor,
        state: AdamState,
        experience: Any,
        *,
        epochs: int,
        minibatch_size: int,
        learning_rate: float,
        generator: torch.Generator,
        recompute: bool,
    ) -> Learned:
        """Passes up to `epochs` times over a round; see `Optimizer.minimise`.

        Args:
            vector: [P] the first parameters.
            state: Adam's state before the first step.
            experience: a `walle.algos.on_policy.experience.Experience`, float32 on the CPU.
            epochs: passes over the round.
            minibatch_size: rows in a minibatch; the last one of an epoch may be smaller.
            learning_rate: Adam's step size.
            generator: draws the orders.
            recompute: whether every epoch has advantages of its own critic, or all the first's.
        """
        x, count = experience, experience.reward.numel()
        x = type(x)(*(None if each is None else each.contiguous() for each in x))
        whole, minibatches = minibatch_size >= count, -(-count // minibatch_size)
        # All tensors are made before the passes. Between them torch's code is not in the cache, and
        # every call takes ten times as long.
        round_, first, later = round_of(x), torch.empty(3, count), torch.empty(2, count)
        estimates = (first, later) if recompute else (first, first)
        rows = [rows_of(x, each, first[0]) for each in estimates]
        places = [places_of(each) for each in estimates]
        numbers = torch.empty(epochs * minibatches, len(NAMES))
        orders = None if whole else self._orders(epochs, count, generator)
        begin, to = 0 if orders is None else orders.rows.data_ptr(), numbers.data_ptr()
        before = [each.contiguous() for each in (vector, state.mean, state.square)]
        after = [torch.empty_like(each) for each in before]
        self._library.ppo_load(self._learner, *map(address, before), float(state.steps))
        # There are at most as many unseen successors as steps.
        exchanged = self._library.ppo_exchanged(self._learner, 2 * count)
        self.begin(round_)
        taken, epoch, stopped = 0, 0, False
        with self.team.exchange(exchanged) as exchange:
            while epoch < epochs and not stopped:
                again = epoch > 0
                if (recompute or not again) and not self.estimate(places[again], exchange):
                    break  # leaving raises what broke the team
                order = None if whole else begin + 8 * count * epoch
                found = self.epoch(rows[again], order, minibatch_size, learning_rate, exchange, to)
                if found < 0:
                    break
                epoch, taken, stopped = epoch + 1, taken + found, found < minibatches
                to += 4 * len(NAMES) * found
        self._library.ppo_store(self._learner, *map(address, after))
        if orders is not None:  # as if they had been drawn one by one
            generator.set_state(orders.states[epoch])
        means = numbers[: taken + stopped].mean(0).tolist()
        adam = AdamState(after[1], after[2], state.steps + taken)
        result = Result(after[0], adam, dict(zip(NAMES, means, strict=True)), taken, stopped)
        return Learned(result, first[0], first[2])

    def _orders(self, epochs: int, count: int, generator: torch.Generator) -> Orders:
        """The orders drawn ahead, if the generator would draw the same ones now; else new ones."""
        ahead, self._ahead = self._ahead, None
        if (
            ahead is not None
            and ahead.rows.shape == (epochs, count)
            and torch.equal(ahead.states[0], generator.get_state())
        ):
            return ahead
        return Orders.draw(epochs, count, generator)

    def begin(self, round_: Structure) -> None:
        """Prepares the estimates of a `round_of` experience."""
        self._library.ppo_begin_round(self._learner, byref(round_), byref(self._returns))

    def estimate(self, to: Structure, exchange: Exchange | None) -> bool:
        """Writes values, advantages and targets of the round by the library's critic.

        Args:
            to: the `places_of` a tensor.
            exchange: of the team.

        Returns:
            whether the team is whole; if not, nothing was written.
        """
        return bool(self._library.ppo_estimate(self._learner, _reference(exchange), byref(to)))

    def epoch(
        self,
        rows: Structure,
        order: int | None,
        size: int,
        rate: float,
        exchange: Exchange | None,
        numbers: int,
    ) -> int:
        """Steps on each minibatch of `size` rows, until the KL divergence of one is too large.

        Args:
            rows: a round with its estimates.
            order: where the rows' numbers [N] lie; None takes them as they come.
            size: of a minibatch.
            rate: Adam's step size.
            exchange: of the team.
            numbers: where those of the minibatches go, [M, I].

        Returns:
            the number of steps; fewer than minibatches if one was left out, -1 if the team broke.
        """
        return int(
            self._library.ppo_epoch(
                *(self._learner, byref(rows), order, size, rate, self._kl_limit),
                *(_reference(exchange), numbers),
            )
        )

    def spent(self) -> Spent:
        """How much time this learner spent on what, since its start."""
        spent = Spent()
        self._library.ppo_spent(self._learner, byref(spent))
        return spent

    def moments(self, samples: FloatArray) -> BatchMoments:
        """See `walle.nets.normalize.batch_moments`; samples are [N, K]."""
        samples = np.ascontiguousarray(samples, np.float32)
        mean, squares = np.empty(samples.shape[1]), np.empty(samples.shape[1])
        arrays = samples.ctypes.data, *samples.shape, mean.ctypes.data, squares.ctypes.data
        self._library.ppo_moments(*arrays)
        return BatchMoments(mean, squares)

    def normalized(
        self, parts: Sequence[FloatArray], mean: FloatArray, inv_std: FloatArray, clip: float | None
    ) -> Tensor:
        """See `walle.algos.on_policy.experience.normalized`; parts are [Nᵢ, O]."""
        rows = torch.empty(sum(map(len, parts)), len(mean))
        bound, first = math.inf if clip is None else clip, rows.data_ptr()
        moments = [np.ascontiguousarray(x, np.float32) for x in (mean, inv_std)]
        for part in parts:
            x = np.ascontiguousarray(part, np.float32)
            self._library.ppo_normalize(
                *(x.ctypes.data, *x.shape, *(m.ctypes.data for m in moments), bound, first)
            )
            first += x.nbytes
        return rows


def _reference(exchange: Exchange | None) -> Any:
    return None if exchange is None else byref(exchange)
