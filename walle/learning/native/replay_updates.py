"""Updates from a replay buffer in C++ (`replay.cpp`), for fully connected networks.

The numbers are those of the stages of `SAC`, `DDPG`, `TD3` and `DQN` in PyTorch, except for
rounding. Nothing runs in Python between the updates of a draw, and several learners meet inside the
library.
"""

from __future__ import annotations

import math
from ctypes import POINTER, byref, c_double, c_float, c_int, c_long, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.learning.native.library import ACTIVATIONS, address, ints, load, structure, widths
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


class ActionValues(NamedTuple):
    """The network and the settings of updates of DQN.

    Attributes:
        values: the parameters of the action values.
        activation: a key of `ACTIVATIONS`.
        minibatch: B.
        shards: into how many parts a minibatch is divided.
        gamma: γ.
        tau: τ.
        learning_rate: of Adam, at first.
        max_grad_norm: bounds the gradient's norm; None does not.
        falls_for: updates until the step size is 0; may be infinite.
        double: whether the network that learns chooses the target's action.
        target_interval: updates between moves of the target.
    """

    values: Layout
    activation: str
    minibatch: int
    shards: int
    gamma: float
    tau: float
    learning_rate: float
    max_grad_norm: float | None
    falls_for: float
    double: bool
    target_interval: int


_Networks = structure(
    "Networks",
    **dict.fromkeys(("policy", "critic"), POINTER(c_int)),
    **dict.fromkeys(("policy_layers", "critic_layers", "activation", "critics"), c_int),
    **dict.fromkeys(("actions", "minibatch", "shards"), c_int),
)
_Update = structure("Update", **dict.fromkeys(("gamma", "tau", "rate"), c_float))
_Smoothing = structure("Smoothing", scale=c_float, bound=c_float)
_ValueNetwork = structure(
    "ValueNetwork",
    widths=POINTER(c_int),
    **dict.fromkeys(("layers", "activation", "minibatch", "shards"), c_int),
)
_DQNSettings = structure(
    "DQNSettings",
    **dict.fromkeys(("gamma", "tau", "rate", "max_grad_norm"), c_float),
    falls_for=c_double,
    is_double=c_int,
    target_interval=c_int,
)
_TYPES = {
    "new_sac": (c_void_p, (c_void_p, c_void_p, c_float)),
    "new_ddpg": (c_void_p, (c_void_p, c_void_p, c_int, c_void_p)),
    "new_dqn": (c_void_p, (c_void_p, c_void_p)),
    "delete": (None, [c_void_p]),
    "exchanged": (c_long, [c_void_p]),
    "load": (None, [c_void_p] * 2),
    "store": (None, [c_void_p] * 2),
    "run": (c_int, (*[c_void_p] * 3, c_long, c_void_p, c_void_p)),
}


class NativeUpdates:
    """Blocks of updates in C++; has the interface of `Updates`."""

    def __init__(
        self, algorithm: str, *arguments: Any, shape: tuple[int, int], metrics: int
    ) -> None:
        """Compiles and loads the library.

        Args:
            algorithm: names the library's constructor.
            arguments: of the constructor.
            shape: K, B: the minibatches of a block, and the rows of a minibatch.
            metrics: I, the numbers of a block.

        Raises:
            CompilerError: there is no compiler that compiles it.
        """
        self._team: Team = ALONE
        self._library, self._shape, self._metrics = load("replay", _TYPES), shape, metrics
        self._learner = getattr(self._library, f"replay_new_{algorithm}")(*arguments)
        self._exchanged = int(self._library.replay_exchanged(self._learner))

    def __del__(self) -> None:
        """Frees the library's memory."""
        if hasattr(self, "_learner"):  # else the library was not loaded
            self._library.replay_delete(self._learner)

    def join_team(self, team: Team) -> None:
        """Takes all later blocks with `team`."""
        self._team = team

    @torch.no_grad()
    def run(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """See `Updates.run`.

        Raises:
            TypeError: a tensor has another dtype than the library's.
            ValueError: the minibatches have another shape than the library's.
        """
        blocks, width = len(minibatches), minibatches.shape[-1]
        metrics = torch.empty(blocks, self._metrics)
        minibatches, noise = minibatches.contiguous(), noise.contiguous()
        pointers = address(minibatches, (blocks, *self._shape, width)), address(noise)
        self._library.replay_load(self._learner, _addresses(state))
        with self._team.exchange(self._exchanged) as exchange:
            team = None if exchange is None else byref(exchange)
            self._library.replay_run(self._learner, *pointers, blocks, team, address(metrics))
        after = map_leaves(torch.empty_like, state)
        self._library.replay_store(self._learner, _addresses(after))
        return after, list(metrics)


def sac_updates(parts: ActorCritic, target_entropy: float) -> NativeUpdates:
    """Updates of SAC, of a `SACState`."""
    structs = _structs(parts)
    return NativeUpdates("sac", *structs, target_entropy, shape=(1, parts.minibatch), metrics=5)


def ddpg_updates(
    parts: ActorCritic, updates: int, smoothing: tuple[float, float] | None
) -> NativeUpdates:
    """Updates of DDPG or TD3, of a `DDPGState`.

    Args:
        parts: networks and settings.
        updates: K, the updates in a block.
        smoothing: scale and bound of the noise on the targets' actions, for TD3.
    """
    arguments = *_structs(parts), updates, smoothing and byref(_Smoothing(*smoothing))
    return NativeUpdates("ddpg", *arguments, shape=(updates, parts.minibatch), metrics=3)


def dqn_updates(parts: ActionValues) -> NativeUpdates:
    """Updates of DQN, of a `DQNState`."""
    layers, activation, *sizes = widths(parts.values), ACTIVATIONS[parts.activation], *parts[2:4]
    network = _ValueNetwork(ints(layers), len(layers) - 1, activation, *sizes)
    bound = math.inf if parts.max_grad_norm is None else parts.max_grad_norm
    settings = _DQNSettings(*parts[4:7], bound, *parts[8:])
    arguments = byref(network), byref(settings)
    return NativeUpdates("dqn", *arguments, shape=(1, parts.minibatch), metrics=2)


def _structs(parts: ActorCritic) -> tuple[Any, Any]:
    policy, critic = widths(parts.policy), widths(parts.critic)
    networks = _Networks(
        *(ints(policy), ints(critic), len(policy) - 1, len(critic) - 1),
        *(ACTIVATIONS[parts.activation], *parts[3:7]),
    )
    return byref(networks), byref(_Update(*parts[7:]))


def _addresses(state: Any) -> Any:
    """The addresses of a state's tensors, float32 but for a count of updates."""
    tensors = leaves(state)
    types = [torch.float32 if x.is_floating_point() else torch.int64 for x in tensors]
    return (c_void_p * len(tensors))(
        *(address(x, dtype=dtype) for x, dtype in zip(tensors, types, strict=True))
    )
