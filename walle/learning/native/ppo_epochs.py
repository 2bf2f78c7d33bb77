"""PPO's passes over a round in C++ (`ppo.cpp`): Gaussian actions, fully connected networks.

The numbers are those of `PPO.loss` with eager or compiled steps, except for rounding. Nothing runs
in Python between the minibatches, and several learners meet inside the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int, c_long, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.learning.adam import AdamSettings, AdamState
from walle.learning.native.library import load
from walle.learning.native.structures import ACTIVATIONS, address, declare, ints, widths
from walle.learning.sharing.team import ALONE, Team
from walle.nets.mlp import Layout

NAMES = (
    *("loss", "grad_norm"),
    *("kl", "clip_fraction", "policy_loss", "value_loss", "entropy"),
)


class PPOLoss(NamedTuple):
    """The networks and the weights of PPO's loss.

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


class _Rows(Structure):
    _fields_ = tuple(
        (name, c_void_p) for name in ("obs", "action", "log_prob", "advantage", "target", "value")
    )


class PPOEpochs:
    """Passes of PPO over the rows of a round.

    Attributes:
        team: the learners that divide the minibatches.
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
        self._parts, self._row = shards or 2, int(self._library.ppo_row(self._learner))
        self._kl_limit = math.inf if loss.kl_limit is None else loss.kl_limit
        self._policy_size = loss.policy.size
        self._packed = int(self._library.ppo_size(self._learner))

    def __del__(self) -> None:
        """Frees the library's memory."""
        if hasattr(self, "_learner"):  # else the library was not loaded
            self._library.ppo_delete(self._learner)

    def __call__(
        self,
        vector: Tensor,
        state: AdamState,
        rate: float,
        rows: Any,
        order: Tensor | None,
        size: int,
    ) -> tuple[Tensor, AdamState, Tensor, bool]:
        """Steps on every minibatch of `size` rows; see `Optimizer.minimise`.

        `rows` has the fields of `walle.algos.ppo_rows.PPOBatch`, float32 on the CPU.

        Returns:
            parameters, Adam's state, the numbers [M, I] of the minibatches, and whether the KL
            divergence of the last of them was too large.
        """
        columns = [rows.inputs.obs, rows.action, rows.log_prob]
        columns += [rows.advantage, rows.target, rows.value]
        columns = [column.contiguous() for column in columns]
        count = len(columns[0])
        numbers = torch.empty(-(-count // size), len(NAMES))
        before = [x.contiguous() for x in (vector, state.mean, state.square)]
        self._library.ppo_load(self._learner, *map(address, before), float(state.steps))
        with self.team.exchange(self._parts, self._row) as exchange:
            done = self._library.ppo_epoch(
                self._learner,
                byref(_Rows(*map(address, columns))),
                None if order is None else order.data_ptr(),
                *(count, size, rate, self._kl_limit),
                None if exchange is None else byref(exchange),
                numbers.data_ptr(),
            )
        numbers = numbers[:done]
        stopped = bool(numbers[-1, NAMES.index("kl")] > self._kl_limit)
        after = [torch.empty_like(x) for x in before]
        self._library.ppo_store(self._learner, *map(address, after))
        vector, mean, square = after
        steps = state.steps + (done - stopped)
        return vector, AdamState(mean, square, steps), numbers, stopped

    def value_function(self, vector: Tensor) -> Callable[[Tensor], Tensor]:
        """V under the critic in `vector`, without a gradient: observations [N, O] -> [N]."""
        critic, packed = vector[self._policy_size :].contiguous(), torch.zeros(self._packed)
        self._library.ppo_pack_critic(self._learner, address(critic), address(packed))

        def values(obs: Tensor) -> Tensor:
            obs, found = obs.contiguous(), torch.empty(len(obs))
            self._library.ppo_values(
                *(self._learner, address(packed), address(obs), len(obs), address(found))
            )
            return found

        return values

    def discounted_sums(
        self, x: Tensor, ended: Tensor, discount: float | Tensor, last: Tensor
    ) -> Tensor:
        """See `returns.discounted_sums`; the same, step by step."""
        factor = (discount * (1 - ended.to(x.dtype))).contiguous()
        x, last, sums = x.contiguous(), last.contiguous(), torch.empty(x.shape)
        self._library.ppo_discounted_sums(
            *(address(x), address(factor), address(last), *x.shape, address(sums))
        )
        return sums


def _declared(library: Any) -> Any:
    """The library with the types of its functions."""
    pointer: tuple[Any, ...] = (c_void_p,)
    return declare(
        library,
        {
            "ppo_new": (c_void_p, (*pointer * 3, c_int)),
            "ppo_delete": (None, pointer),
            "ppo_size": (c_long, pointer),
            "ppo_row": (c_long, pointer),
            "ppo_load": (None, (*pointer * 4, c_float)),
            "ppo_store": (None, pointer * 4),
            "ppo_pack_critic": (None, pointer * 3),
            "ppo_discounted_sums": (None, (*pointer * 3, c_long, c_long, *pointer)),
            "ppo_values": (None, (*pointer * 3, c_long, *pointer)),
            "ppo_epoch": (
                c_long,
                (*pointer * 3, c_long, c_long, c_float, c_float, *pointer * 2),
            ),
        },
    )
