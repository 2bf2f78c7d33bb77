"""PPO's passes over a round in C++ (`ppo.cpp`): Gaussian actions, fully connected networks.

The numbers are those of `PPO.loss` with eager or compiled steps, except for rounding. Nothing runs
in Python between the minibatches, and several learners meet inside the library.
"""

from __future__ import annotations

import math
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int, c_long, c_void_p
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from walle.learning.adam import AdamSettings, AdamState
from walle.learning.native.library import load
from walle.learning.native.structures import ACTIVATIONS, address, declare, flags, ints, widths
from walle.learning.optimizer import Result
from walle.learning.sharing.team import ALONE, Exchange, Team
from walle.nets.mlp import Layout
from walle.nets.normalize import BatchMoments
from walle.types import FloatArray

NAMES = (
    *("loss", "grad_norm"),
    *("kl", "clip_fraction", "policy_loss", "value_loss", "entropy"),
)


CORRECTIONS = {"none": 0, "truncated": 0, "vtrace": 1}  # of a round with a `ratio`


class PPOLoss(NamedTuple):
    """The networks and the weights of PPO's loss, and how advantages are estimated.

    Attributes:
        policy: the parameters of a `GaussianPolicy`.
        critic: the parameters of a `Critic` of the same observations.
        activation: a key of `ACTIVATIONS`.
        clip: ε.
        value_weight: c_v.
        value_clip: bounds a value's change; None does not.
        entropy_weight: c_h.
        noise_is_learned: whether log standard deviations have a gradient.
        kl_limit: the passes end before a step at a larger KL divergence; None never ends them.
        gamma: γ.
        gae_lambda: λ.
        correction: of lag, a key of `CORRECTIONS`.
        normalize_advantages: over the round.
    """

    policy: Layout
    critic: Layout
    activation: str
    clip: float
    value_weight: float
    value_clip: float | None
    entropy_weight: float
    noise_is_learned: bool
    kl_limit: float | None
    gamma: float
    gae_lambda: float
    correction: str
    normalize_advantages: bool


class _Networks(Structure):
    _fields_ = (
        *(("policy", POINTER(c_int)), ("critic", POINTER(c_int))),
        *(("policy_layers", c_int), ("critic_layers", c_int)),
        *(("activation", c_int), ("copies", c_int)),
    )


class _Loss(Structure):
    _fields_ = (
        *(("clip", c_float), ("value_weight", c_float), ("value_clip", c_float)),
        *(("entropy_weight", c_float), ("noise_is_learned", c_int)),
    )


class _Adam(Structure):
    _fields_ = tuple((name, c_double) for name in ("beta1", "beta2", "epsilon", "max_grad_norm"))


class _Returns(Structure):
    _fields_ = (
        *(("gamma", c_float), ("gae_lambda", c_float)),
        *(("correction", c_int), ("normalize", c_int)),
    )


class _Round(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("states", "needs_final", "ended")),
        *((name, c_void_p) for name in ("reward", "continues", "ratio")),
        *((name, c_long) for name in ("steps", "lanes", "states_count")),
    )


class _Estimates(Structure):
    _fields_ = tuple((name, c_void_p) for name in ("value", "advantage", "target"))


class _Rows(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("obs", "action", "log_prob")),
        *((name, c_void_p) for name in ("advantage", "target", "value")),
        ("count", c_long),
    )


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


class Epoch(NamedTuple):
    """One pass over a round.

    Attributes:
        taken: gradient steps.
        numbers: [M, I] of the minibatches; one more than steps if the last one's was left out.
    """

    taken: int
    numbers: Tensor


class PPOEpochs:
    """Passes of PPO over the rows of a round.

    Attributes:
        team: the learners that divide values and minibatches.
        names: names of a minibatch's numbers.
    """

    names: tuple[str, ...] = NAMES

    def __init__(self, loss: PPOLoss, settings: AdamSettings, shards: int) -> None:
        """Compiles and loads the library.

        Args:
            loss: networks and weights of the loss.
            settings: of Adam, and the bound of the gradient's norm.
            shards: into how many parts a minibatch is divided; 0 divides the networks instead.

        Raises:
            CompilerError: there is no compiler that compiles it.
        """
        self.team: Team = ALONE
        self._library = _declared(load("ppo"))
        policy, critic = widths(loss.policy), widths(loss.critic)
        copies = math.prod(loss.policy.shapes["log_std"]) // policy[-1]
        networks = _Networks(
            *(ints(policy), ints(critic), len(policy) - 1, len(critic) - 1),
            *(ACTIVATIONS[loss.activation], copies),
        )
        weights = _Loss(
            loss.clip,
            loss.value_weight,
            math.inf if loss.value_clip is None else loss.value_clip,
            loss.entropy_weight,
            loss.noise_is_learned,
        )
        bound = settings.max_grad_norm
        adam = _Adam(*settings[:3], math.inf if bound is None else bound)
        self._learner = self._library.ppo_new(byref(networks), byref(weights), byref(adam), shards)
        self._returns = _Returns(
            *(loss.gamma, loss.gae_lambda),
            *(CORRECTIONS[loss.correction], loss.normalize_advantages),
        )
        self._kl_limit = math.inf if loss.kl_limit is None else loss.kl_limit

    def __del__(self) -> None:
        """Frees the library's memory."""
        if hasattr(self, "_learner"):  # else the library was not loaded
            self._library.ppo_delete(self._learner)

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
            experience: a `walle.algos.experience.Experience`, float32 on the CPU.
            epochs: passes over the round.
            minibatch_size: rows in a minibatch; the last one of an epoch may be smaller.
            learning_rate: Adam's step size.
            generator: draws the orders.
            recompute: whether every epoch has advantages of its own critic, or all the first's.
        """
        x, count = experience, experience.reward.numel()
        x = type(x)(*(None if each is None else each.contiguous() for each in x))
        value, taken, stopped = torch.empty(count), 0, False
        estimates: list[tuple[Tensor, Tensor]] = []
        infos: list[Tensor] = []
        before = [each.contiguous() for each in (vector, state.mean, state.square)]
        self._library.ppo_load(self._learner, *map(address, before), float(state.steps))
        exchanged = self._library.ppo_exchanged(self._learner, 2 * count)  # all steps may end one
        with self.team.exchange(exchanged) as exchange:
            while len(infos) < epochs and not stopped:
                if recompute or not estimates:
                    own = torch.empty(count) if estimates else value
                    estimates.append(self.estimate(x, own, exchange))
                whole = minibatch_size >= count
                order = None if whole else torch.randperm(count, generator=generator)
                columns = (x.states, x.action, x.log_prob, *estimates[-1], value)
                rows = _Rows(*map(address, columns), count)
                found = self.epoch(rows, order, minibatch_size, learning_rate, exchange)
                infos.append(found.numbers)
                taken += found.taken
                stopped = found.taken < len(found.numbers)
                if exchange is not None and not exchange.is_whole:
                    break  # leaving raises what broke the team
        after = [torch.empty_like(each) for each in before]
        self._library.ppo_store(self._learner, *map(address, after))
        numbers = torch.cat(infos)
        info = dict(zip(NAMES, numbers.mean(0).tolist(), strict=True))
        adam = AdamState(after[1], after[2], state.steps + taken)
        return Learned(Result(after[0], adam, info, taken, stopped), value, estimates[0][1])

    def estimate(
        self, experience: Any, value: Tensor, exchange: Exchange | None
    ) -> tuple[Tensor, Tensor]:
        """Advantages and targets [N] of a round by the library's critic; writes its values [N]."""
        x = experience
        round_ = _Round(
            *(address(x.states), flags(x.needs_final_obs), flags(x.ended)),
            *(address(x.reward), address(x.continues)),
            *(None if x.ratio is None else address(x.ratio), *x.reward.shape, len(x.states)),
        )
        advantage, target = torch.empty_like(value), torch.empty_like(value)
        self._library.ppo_estimate(
            *(self._learner, byref(round_), byref(self._returns), _reference(exchange)),
            byref(_Estimates(*map(address, (value, advantage, target)))),
        )
        return advantage, target

    def epoch(
        self,
        rows: Structure,
        order: Tensor | None,
        size: int,
        rate: float,
        exchange: Exchange | None,
    ) -> Epoch:
        """Steps on each minibatch of `size` rows in `order` ([N])."""
        minibatches = -(-rows.count // size)
        numbers = torch.empty(minibatches, len(NAMES))
        taken = self._library.ppo_epoch(
            *(self._learner, byref(rows), None if order is None else order.data_ptr()),
            *(size, rate, self._kl_limit, _reference(exchange), numbers.data_ptr()),
        )
        return Epoch(taken, numbers[: taken + 1])

    def moments(self, samples: FloatArray) -> BatchMoments:
        """See `walle.nets.normalize.batch_moments`; samples are [N, K]."""
        samples = np.ascontiguousarray(samples, np.float32)
        mean, squares = np.empty(samples.shape[1]), np.empty(samples.shape[1])
        arrays = samples.ctypes.data, *samples.shape, mean.ctypes.data, squares.ctypes.data
        self._library.ppo_moments(*arrays)
        return BatchMoments(mean, squares)


def _reference(exchange: Exchange | None) -> Any:
    return None if exchange is None else byref(exchange)


def _declared(library: Any) -> Any:
    """The library with the types of its functions."""
    pointer: tuple[Any, ...] = (c_void_p,)
    return declare(
        library,
        {
            "ppo_new": (c_void_p, (*pointer * 3, c_int)),
            "ppo_delete": (None, pointer),
            "ppo_exchanged": (c_long, (*pointer, c_long)),
            "ppo_load": (None, (*pointer * 4, c_float)),
            "ppo_store": (None, pointer * 4),
            "ppo_moments": (None, (*pointer, c_long, c_long, *pointer * 2)),
            "ppo_estimate": (c_int, pointer * 5),
            "ppo_epoch": (c_long, (*pointer * 3, c_long, c_float, c_float, *pointer * 2)),
        },
    )
