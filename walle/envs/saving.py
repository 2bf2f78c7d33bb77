"""The states of Gymnasium environments: pickled, or the actions of the episode to replay.

A pickle is exact for most environments written in Python. Simulators in C++ often leave their state
out of it. For those, the state is what the episode began with, the generator or the seed, and the
actions since; `walle.envs.probe` finds out which of the two goes on bit for bit.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import gymnasium as gym
import numpy as np

from walle.envs.mujoco.generators import Words, pack, unpack
from walle.errors import RestoreError
from walle.types import AnyArray

Env = gym.Env[Any, Any]
_PLAIN = {
    "builtins": {"bytearray", "complex", "frozenset", "range", "set", "slice"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.random._pickle": {"__bit_generator_ctor", "__generator_ctor"},
    "random": {"Random"},
}
_HEADER = 4  # integers before the generator's words: has a seed, the seed, actions, bytes of each
_WORDS = 6


class _Loader(pickle.Unpickler):
    """Loads only classes and functions that `known` allows: a file must not run foreign code."""

    def __init__(self, data: bytes, known: set[tuple[str, str]] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known
        self.asked: set[tuple[str, str]] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.asked.add((module, name))
        plain = name in _PLAIN.get(module, ())
        if module == "builtins" and not plain:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an environment's state")
        if self._known is None or plain or (module, name) in self._known:
            return super().find_class(module, name)
        if "." not in name and any(module == ours for ours, _ in self._known):
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found  # another class of a module that the environment itself uses
        raise pickle.UnpicklingError(f"{module}.{name} is no part of this environment")


def dump(env: Env) -> bytes:
    """The environment's state as a pickle."""
    return pickle.dumps(env, pickle.HIGHEST_PROTOCOL)


def load(state: bytes, like: Env) -> Env:
    """The environment that `dump` wrote; bytes after its end are ignored.

    Args:
        state: what `dump` returned.
        like: an environment of the same kind, which decides the classes that may be loaded.

    Raises:
        RestoreError: the state asks for other classes, or is damaged.
    """
    like.reset(seed=0)
    own = _Loader(dump(like), None)
    try:
        own.load().close()
        loaded: Env = _Loader(state, own.asked).load()
    except Exception as error:  # damaged bytes may raise anything
        raise RestoreError(f"the state of an environment cannot be loaded: {error}") from error
    return loaded


class EpisodeReplay:
    """The beginning and the actions of one lane's episode."""

    def __init__(self) -> None:
        """Knows nothing before the first episode."""
        self._seed: int | None = None
        self._words: Words = np.zeros(_WORDS, np.uint64)
        self._actions: list[bytes] = []

    def begins(self, env: Env, seed: int | None) -> None:
        """Notes the seed, or the generator's state without a seed; call it before the reset."""
        self._seed = seed
        if seed is None:
            self._words = pack(env.unwrapped.np_random)
        self._actions = []

    def acts(self, action: AnyArray) -> None:
        """Notes an action."""
        self._actions.append(action.tobytes())

    def state(self) -> bytes:
        """The beginning and the actions."""
        size = len(self._actions[0]) if self._actions else 0
        seeded = self._seed is not None
        header = np.array([seeded, self._seed or 0, len(self._actions), size], np.int64)
        return header.tobytes() + self._words.tobytes() + b"".join(self._actions)

    @classmethod
    def of(cls, state: bytes) -> EpisodeReplay:
        """The episode that `state` returned; bytes after its end are ignored."""
        episode = cls()
        seeded, seed, count, size = np.frombuffer(state, np.int64, _HEADER).tolist()
        episode._seed = seed if seeded else None
        episode._words = np.frombuffer(state, np.uint64, _WORDS, offset=8 * _HEADER).copy()
        begin = 8 * (_HEADER + _WORDS)
        episode._actions = [state[begin + i * size :][:size] for i in range(count)]
        return episode

    def begin(self, env: Env) -> AnyArray:
        """Resets `env` as the episode began; returns the observation."""
        if self._seed is None:
            unpack(self._words, env.unwrapped.np_random)
        obs: AnyArray = env.reset(seed=self._seed)[0]
        return obs

    def actions(self, like: AnyArray) -> list[AnyArray]:
        """The actions as the environment got them, with the type and the shape of `like`."""
        arrays = (np.frombuffer(action, like.dtype) for action in self._actions)
        return [array.reshape(like.shape)[()] for array in arrays]  # [()]: a number, not 0-d
