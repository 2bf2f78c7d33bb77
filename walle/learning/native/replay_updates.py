"""Updates from a replay buffer in C++ (`sac.cpp`, `ddpg.cpp`), for fully connected networks.

The numbers are those of the stages of `SAC`, `DDPG` and `TD3`, eager or compiled, except for
rounding. Nothing runs in Python between the updates of a draw, and several learners meet inside the
library.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_float, c_int, c_long, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.learning.native.library import load
from walle.learning.native.structures import ACTIVATIONS, address, declare, ints, widths
from walle.learning.sharing.team import ALONE, Team
from walle.learning.trees import leaves, map_leaves
from walle.nets.mlp import Layout


class ActorCritic(NamedTuple):
    """The networks and the settings of updates.

    Attributes:
        policy: the policy's parameters.
        critic: the parameters of one critic.
        activation: a key of `ACTIVATIONS`.
        critics: their number.
        actions: A.
        minibatch: B.
        shards: into how many parts a minibatch is divided.
        gamma: γ.
        tau: τ.
        learning_rate: of Adam, for all networks.
    """

    policy: Layout
    critic: Layout
    activation: str
    critics: int
    actions: int
    minibatch: int
    shards: int
    gamma: float
    tau: float
    learning_rate: float


class _Networks(Structure):
    _fields_ = (
        *(("policy", POINTER(c_int)), ("critic", POINTER(c_int))),
        *(("policy_layers", c_int), ("critic_layers", c_int), ("activation", c_int)),
        *(("critics", c_int), ("actions", c_int), ("minibatch", c_int), ("shards", c_int)),
    )


class _Update(Structure):
    _fields_ = (("gamma", c_float), ("tau", c_float), ("rate", c_float))


class _Smoothing(Structure):
    _fields_ = (("scale", c_float), ("bound", c_float))


class NativeUpdates:
    """Blocks of updates by one of the libraries; has the interface of `Updates`."""

    def __init__(self, name: str, parts: ActorCritic, *rest: Any, metrics: int) -> None:
        """Compiles and loads the library.

        Args:
            name: of the library.
            parts: networks and settings.
            rest: further arguments of its constructor.
            metrics: I, the numbers of a block.

        Raises:
            CompilerError: there is no compiler that compiles it.
        """
        self._team: Team = ALONE
        self._library, self._metrics = load(name), metrics
        argument = c_void_p
        types = {
            f"{name}_new": (c_void_p, (argument, argument, *(_type(x) for x in rest))),
            f"{name}_delete": (None, (argument,)),
            f"{name}_exchanged": (c_long, (argument,)),
            f"{name}_load": (None, (argument, argument)),
            f"{name}_store": (None, (argument, argument)),
            f"{name}_run": (c_int, (argument, argument, argument, c_long, argument, argument)),
        }
        declare(self._library, types)
        self._name = name
        policy, critic = widths(parts.policy), widths(parts.critic)
        networks = _Networks(
            *(ints(policy), ints(critic), len(policy) - 1, len(critic) - 1),
            *(ACTIVATIONS[parts.activation], parts.critics, parts.actions),
            *(parts.minibatch, parts.shards),
        )
        update = _Update(parts.gamma, parts.tau, parts.learning_rate)
        self._learner = self._call("new", byref(networks), byref(update), *rest)
        self._exchanged = int(self._call("exchanged", self._learner))

    def __del__(self) -> None:
        """Frees the library's memory."""
        if hasattr(self, "_learner"):  # else the library was not loaded
            self._call("delete", self._learner)

    def join_team(self, team: Team) -> None:
        """Takes all later blocks with `team`."""
        self._team = team

    @torch.no_grad()
    def run(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """See `Updates.run`."""
        metrics = torch.empty(len(minibatches), self._metrics)
        minibatches, noise = minibatches.contiguous(), noise.contiguous()
        self._call("load", self._learner, _addresses(state))
        with self._team.exchange(self._exchanged) as exchange:
            self._call(
                *("run", self._learner, address(minibatches), address(noise), len(minibatches)),
                *(None if exchange is None else byref(exchange), address(metrics)),
            )
        after = map_leaves(torch.empty_like, state)
        self._call("store", self._learner, _addresses(after))
        return after, list(metrics)

    def _call(self, function: str, *arguments: Any) -> Any:
        return getattr(self._library, f"{self._name}_{function}")(*arguments)


def sac_updates(parts: ActorCritic, target_entropy: float) -> NativeUpdates:
    """Updates of SAC, of a `SACState`."""
    return NativeUpdates("sac", parts, c_float(target_entropy), metrics=5)


def ddpg_updates(
    parts: ActorCritic, updates: int, smoothing: tuple[float, float] | None
) -> NativeUpdates:
    """Updates of DDPG or TD3, of a `DDPGState`.

    Args:
        parts: networks and settings.
        updates: K, the updates in a block.
        smoothing: scale and bound of the noise on the targets' actions, for TD3.
    """
    noise = None if smoothing is None else byref(_Smoothing(*smoothing))
    return NativeUpdates("ddpg", parts, noise, c_int(updates), metrics=3)


def _type(argument: Any) -> Any:
    return type(argument) if isinstance(argument, c_int | c_float) else c_void_p


def _addresses(state: Any) -> Any:
    tensors = leaves(state)
    return (c_void_p * len(tensors))(*(address(x) for x in tensors))
