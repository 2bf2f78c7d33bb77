"""What the library `ppo.cpp` takes and gives: structures, and what fills them; functions."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_float, c_int, c_long, c_void_p
from typing import Any, NamedTuple

from torch import Tensor

from walle.learning.native.library import load
from walle.learning.native.structures import address, declare, flags
from walle.nets.mlp import Layout

NAMES = (
    *("loss", "grad_norm"),
    *("kl", "clip_fraction", "policy_loss", "value_loss", "entropy"),
)


CORRECTIONS = {"none": 0, "truncated": 1, "vtrace": 2}  # of a round with a `ratio`


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


class Networks(Structure):
    """The struct of that name in `ppo.cpp`."""

    _fields_ = (
        *(("policy", POINTER(c_int)), ("critic", POINTER(c_int))),
        *(("policy_layers", c_int), ("critic_layers", c_int)),
        *(("activation", c_int), ("copies", c_int)),
    )


class Loss(Structure):
    """The struct of that name in `ppo.cpp`."""

    _fields_ = (
        *(("clip", c_float), ("value_weight", c_float), ("value_clip", c_float)),
        *(("entropy_weight", c_float), ("noise_is_learned", c_int)),
    )


class Adam(Structure):
    """The struct `AdamSettings` of `ppo.cpp`."""

    _fields_ = tuple((name, c_double) for name in ("beta1", "beta2", "epsilon", "max_grad_norm"))


class Returns(Structure):
    """The struct of that name in `estimates.hpp`."""

    _fields_ = (
        *(("gamma", c_float), ("gae_lambda", c_float)),
        *(("correction", c_int), ("normalize", c_int)),
    )


class Round(Structure):
    """The struct of that name in `estimates.hpp`."""

    _fields_ = (
        *((name, c_void_p) for name in ("states", "needs_final", "ended")),
        *((name, c_void_p) for name in ("reward", "continues", "ratio")),
        *((name, c_long) for name in ("steps", "lanes", "states_count")),
    )


class Estimates(Structure):
    """The struct of that name in `estimates.hpp`."""

    _fields_ = tuple((name, c_void_p) for name in ("value", "advantage", "target"))


class Rows(Structure):
    """The struct of that name in `ppo.cpp`."""

    _fields_ = (
        *((name, c_void_p) for name in ("obs", "action", "log_prob")),
        *((name, c_void_p) for name in ("advantage", "target", "value")),
        ("count", c_long),
    )


class Spent(Structure):
    """Seconds of a learner since its start.

    Attributes:
        divided: in work that the learners divide: values and gradients.
        waited: in waiting for the others.
    """

    _fields_ = (("divided", c_double), ("waited", c_double))
    divided: float
    waited: float


def round_of(experience: Any) -> Structure:
    """A round for the library, whose tensors must be contiguous and outlive it.

    Raises:
        TypeError: a tensor has another type than the library's.
    """
    x = experience
    return Round(
        *(address(x.states), flags(x.needs_final_obs), flags(x.ended)),
        *(address(x.reward), address(x.continues)),
        *(None if x.ratio is None else address(x.ratio), *x.reward.shape, len(x.states)),
    )


def places_of(estimates: Tensor) -> Structure:
    """Where the estimates go: values, advantages and targets [3, N], or [2, N] without the values.

    Raises:
        TypeError: the tensor has another type than the library's.
    """
    return Estimates(*[None] * (3 - len(estimates)), *map(address, estimates))


def rows_of(experience: Any, estimates: Tensor, old_value: Tensor) -> Structure:
    """A round's rows with estimates [3 or 2, N], and with the values [N] of its first estimates.

    Raises:
        TypeError: a tensor has another type than the library's.
    """
    x = experience
    columns = (x.states, x.action, x.log_prob, *estimates[-2:], old_value)
    return Rows(*map(address, columns), len(old_value))


def ppo_library() -> Any:
    """The library with the types of its functions.

    Raises:
        CompilerError: there is no compiler that compiles it.
    """
    pointer: tuple[Any, ...] = (c_void_p,)
    return declare(
        load("ppo"),
        {
            "ppo_new": (c_void_p, (*pointer * 3, c_int)),
            "ppo_delete": (None, pointer),
            "ppo_exchanged": (c_long, (*pointer, c_long)),
            "ppo_load": (None, (*pointer * 4, c_float)),
            "ppo_store": (None, pointer * 4),
            "ppo_spent": (None, pointer * 2),
            "ppo_moments": (None, (*pointer, c_long, c_long, *pointer * 2)),
            "ppo_normalize": (None, (*pointer, c_long, c_long, *pointer * 2, c_float, *pointer)),
            "ppo_begin_round": (None, pointer * 3),
            "ppo_estimate": (c_int, pointer * 3),
            "ppo_epoch": (c_long, (*pointer * 3, c_long, c_float, c_float, *pointer * 2)),
        },
    )
