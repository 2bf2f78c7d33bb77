"""Updates from a replay buffer in C++ (`replay.cpp`), for fully connected networks.

The numbers equal those of the stages of `SAC`, `XQC`, `DDPG`, `TD3` and `DQN` in PyTorch, except
for rounding. Nothing runs in Python between the updates on one draw of minibatches, and several
learners synchronise inside the library.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import POINTER, byref, c_double, c_float, c_int, c_long, c_void_p
from typing import Any

import torch
from torch import Tensor

from walle.learning.native.library import ACTIVATIONS, address, load, structure
from walle.learning.sharing.team import ALONE, Team
from walle.learning.trees import leaves, map_leaves

_SIZES = {"activation": c_int, "minibatch": c_int, "shards": c_int}
_RATES = dict.fromkeys(("gamma", "tau", "learning_rate", "adam_beta1"), c_float)
ActorCritic = structure(
    "ActorCritic",
    **dict.fromkeys(("policy", "critic"), POINTER(c_int)),
    **dict.fromkeys(("policy_layers", "critic_layers", "critics", "actions", "obs"), c_int),
    **(_SIZES | dict.fromkeys(("updates", "draws"), c_int) | _RATES),
    falls_for=c_double,
)
ActionValues = structure(
    "ActionValues",
    widths=POINTER(c_int),
    layers=c_int,
    **(_SIZES | _RATES),
    max_grad_norm=c_float,
    falls_for=c_double,
    **dict.fromkeys(("is_double", "target_interval"), c_int),
)
_TYPES = {
    "new_sac": (c_void_p, (c_void_p, c_float)),
    "new_xqc": (c_void_p, (c_void_p, c_float, c_float)),
    "new_ddpg": (c_void_p, (c_void_p, c_float, c_float)),
    "new_dqn": (c_void_p, [c_void_p]),
    "delete": (None, [c_void_p]),
    "exchanged": (c_long, [c_void_p]),
    "copy": (None, (c_void_p, c_void_p, c_int)),
    "run": (c_int, (*[c_void_p] * 3, c_long, c_void_p, c_void_p)),
}


class NativeUpdates:
    """Blocks of updates in C++; has the interface of `Updates`."""

    def __init__(self, algorithm: Any, name: str, parts: Any, *rest: float) -> None:
        """Compiles and loads the library; raises CompilerError if compiling fails.

        `algorithm` is the `OffPolicy` that takes these updates, and `name` the library's
        constructor: "sac", "xqc", "ddpg" (also for TD3) or "dqn". It gets `parts`, an `ActorCritic`
        or `ActionValues` to which this adds the settings that all share, and `rest`; see
        `replay.cpp`.
        """
        parts.activation = ACTIVATIONS[algorithm.net.activation]
        parts.minibatch, parts.shards = algorithm.settings.minibatch_size, algorithm.problem.shards
        parts.falls_for = algorithm.falls_for
        for rate in _RATES:
            setattr(parts, rate, getattr(algorithm.settings, rate))
        self._team: Team = ALONE
        self._library = load("replay", _TYPES)
        self._shapes, self._metrics = algorithm.shapes, len(algorithm.metrics)
        self._learner = getattr(self._library, f"replay_new_{name}")(byref(parts), *rest)
        weakref.finalize(self, self._library.replay_delete, self._learner)
        self._exchanged = int(self._library.replay_exchanged(self._learner))

    def join_team(self, team: Team) -> None:
        """Takes all later blocks with `team`."""
        self._team = team

    @torch.no_grad()
    def run(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """See `Updates.run`; other dtypes or shapes than the library's are refused by `address`."""
        blocks, (shapes, rows, draws) = len(minibatches), self._shapes
        metrics = torch.empty(blocks, self._metrics)
        minibatches, noise = minibatches.contiguous(), noise.contiguous()
        pointers = address(minibatches, (blocks, *rows)), address(noise, (blocks, *draws))
        self._library.replay_copy(self._learner, _addresses(state, shapes), False)
        with self._team.exchange(self._exchanged) as exchange:
            team = exchange and byref(exchange)
            self._library.replay_run(self._learner, *pointers, blocks, team, address(metrics))
        after = map_leaves(torch.empty_like, state)
        self._library.replay_copy(self._learner, _addresses(after, shapes), True)
        return after, list(metrics)


def _addresses(state: Any, shapes: Sequence[torch.Size]) -> Any:
    """The addresses of a state's tensors, float32 but for a count of updates."""
    tensors = leaves(state)
    types = [torch.float32 if x.is_floating_point() else torch.int64 for x in tensors]
    each = zip(tensors, shapes, types, strict=True)
    return (c_void_p * len(tensors))(*(address(*one) for one in each))
