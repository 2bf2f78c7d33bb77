"""The states of Gymnasium environments and of generators.

An environment's pickle is its state for most environments written in Python. Simulators in C++
often leave their state out of it. For those, the state is the start of the episode (a generator's
state or a seed) and the actions since; `walle.envs.probe` tests which of the two ways is exact.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from walle.errors import RestoreError
from walle.types import AnyArray

Env = gym.Env[Any, Any]
Words = npt.NDArray[np.uint64]
_PLAIN = {
    "builtins": {"bytearray", "complex", "frozenset", "range", "set", "slice"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.random._pickle": {"__bit_generator_ctor", "__generator_ctor"},
    "random": {"Random"},
}
_HEADER = 4  # integers before the generator's words: is seeded, seed, actions, bytes of each action
_WORDS = 6  # of a generator's state
_MASK = (1 << 64) - 1


class _Loader(pickle.Unpickler):
    """Loads only classes and functions that `known` allows: a file must not run foreign code."""

    def __init__(self, data: bytes, known: set[tuple[str, str]] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known
        self.classes: set[tuple[str, str]] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.classes.add((module, name))
        plain = name in _PLAIN.get(module, ())
        if module == "builtins" and not plain:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an environment's state")
        if self._known is None or plain or (module, name) in self._known:
            return super().find_class(module, name)
        if "." not in name and any(module == ours for ours, _ in self._known):
            value = super().find_class(module, name)
            if isinstance(value, type) and value.__module__ == module:
                return value  # another class of a module that the environment itself uses
        raise pickle.UnpicklingError(f"{module}.{name} is no part of this environment")


def dump(env: Env) -> bytes:
    """The environment's state as a pickle."""
    return pickle.dumps(env, pickle.HIGHEST_PROTOCOL)


def load(state: bytes, like: Env) -> Env:
    """The environment that `dump` wrote; bytes after its end are ignored.

    `like`, an environment of the same kind, decides the classes that may be loaded.

    Raises:
        RestoreError: the state asks for other classes, or is damaged.
    """
    like.reset(seed=0)
    known = _Loader(dump(like), None)
    try:
        known.load().close()
        loaded: Env = _Loader(state, known.classes).load()
    except Exception as error:  # damaged bytes may raise anything
        raise RestoreError(f"the state of an environment cannot be loaded: {error}") from error
    return loaded


class EpisodeReplay:
    """The start and the actions of one lane's episode."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._words: Words = np.zeros(_WORDS, np.uint64)
        self._actions: list[bytes] = []

    def start(self, env: Env, seed: int | None) -> None:
        """Stores the seed or, without one, the generator's state; call it before the reset."""
        self._seed = seed
        if seed is None:
            self._words = pack(env.unwrapped.np_random)
        self._actions = []

    def add(self, action: AnyArray) -> None:
        """Adds an action."""
        self._actions.append(action.tobytes())

    def state(self) -> bytes:
        """The start and the actions."""
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
        first = 8 * (_HEADER + _WORDS)
        episode._actions = [state[first + i * size :][:size] for i in range(count)]
        return episode

    def replay_start(self, env: Env) -> AnyArray:
        """Resets `env` as the episode started; returns the observation."""
        if self._seed is None:
            unpack(self._words, env.unwrapped.np_random)
        obs: AnyArray = env.reset(seed=self._seed)[0]
        return obs

    def actions(self, like: AnyArray) -> list[AnyArray]:
        """The actions that the environment received, with the type and the shape of `like`."""
        size = {len(action) for action in self._actions}  # version 0.3.0 stored 64 bits
        dtype = np.dtype(np.int64) if size - {like.nbytes} else like.dtype
        arrays = (np.frombuffer(action, dtype).astype(like.dtype) for action in self._actions)
        return [array.reshape(like.shape)[()] for array in arrays]  # [()]: a number, not 0-d


def pack(generator: np.random.Generator) -> Words:
    """The state of a PCG64 generator, [6]."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise TypeError(f"a generator of the kind {state['bit_generator']} cannot be packed")
    position, increment = state["state"]["state"], state["state"]["inc"]
    words = (position >> 64, position & _MASK, increment >> 64, increment & _MASK)
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def unpack(words: Words, generator: np.random.Generator) -> None:
    """Sets a PCG64 generator to the state in `words`, [6]."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
