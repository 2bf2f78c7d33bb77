"""Every random stream of a run, in one tree below the run's seed.

    SeedSequence(seed)
        (0, lane)                   a training lane: its environment's seed
        (0, lane, 0)                the key of its action noise; the round sets the counter
        (0, lane, 1, round)         the lane in one round of whole episodes: the environment's seed
        (0, lane, 1, round, 0)      its action noise in that round
        (1, lane)                   an evaluation lane: its environment's seed
        (1, lane, k)                the same in evaluation k
        (1, lane, k, 0)             its action noise in evaluation k
        (2,)                        the agent: initial networks, orders of minibatches, replay
        (3, round)                  the seed of all environments that restart before a round
        (4, episode)                an episode of an evaluation after training: its environment
        (4, episode, 0)             its action noise
        (5, 0, lane, round)         the global generators of the sampler whose first lane is `lane`
        (5, 0, lane, round, 0)      the same while it builds its lanes, before that round
        (5, 1, ...), (5, 2, ...)    global generators in evaluation k, in one after training
        (5, 3, ...)                 global generators in the trial before the run

The numbers in brackets are the `spawn_key` of a `numpy.random.SeedSequence`. No key appears twice,
so all streams differ. Rounds of whole episodes have other keys of a lane than rounds of a fixed
number of steps. Lanes are numbered across the whole run, so a lane's streams do not depend on its
sampler.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

Role = Literal["train", "evaluate"]
ROLES: dict[Role, int] = {"train": 0, "evaluate": 1}
_NOISE, _EPISODE_ROUNDS = 0, 1
_AGENT = 2
_ANEW = 3
_AFTERWARDS = 4
_GLOBALS = {"train": (5, 0), "evaluate": (5, 1), "afterwards": (5, 2), "trial": (5, 3)}


def env_seed(seed: int, lane: int, role: Role = "train") -> int:
    """The 32-bit seed for the first reset of a lane's environment."""
    return _word(_sequence(seed, ROLES[role], lane))


class ActionNoise:
    """A training lane's action noise: a function of seed, lane and round, so it needs no state.

    A counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")
    jumps to any round at once.
    """

    def __init__(self, seed: int, lane: int) -> None:
        """Derives the lane's key."""
        key = _sequence(seed, ROLES["train"], lane, _NOISE).generate_state(2, np.uint64)
        self._philox = np.random.Philox(key=key)
        self._generator = np.random.Generator(self._philox)
        self._state: Any = self._philox.state

    def of_round(self, round_: int) -> np.random.Generator:
        """The stream of one round; valid until the next call."""
        self._state["state"]["counter"][3] = round_
        self._philox.state = self._state
        return self._generator


def evaluation_seed(seed: int, lane: int, evaluation: int) -> int:
    """The 32-bit seed for the reset of a lane before evaluation number `evaluation`, from 0."""
    return _word(_sequence(seed, ROLES["evaluate"], lane, evaluation))


def evaluation_noise(seed: int, lane: int, evaluation: int) -> np.random.Generator:
    """A lane's stream of action noise in evaluation number `evaluation`, counted from 0."""
    return _generator(_sequence(seed, ROLES["evaluate"], lane, evaluation, _NOISE))


def seed_anew(seed: int, round_: int) -> int:
    """A 32-bit seed for environments that cannot resume and therefore restart before a round."""
    return _word(_sequence(seed, _ANEW, round_))


def episode_env_seed(seed: int, lane: int, round_: int) -> int:
    """The 32-bit seed for the reset of a lane before a round of whole episodes."""
    return _word(_sequence(seed, ROLES["train"], lane, _EPISODE_ROUNDS, round_))


def episode_action_noise(seed: int, lane: int, round_: int) -> np.random.Generator:
    """A lane's stream of action noise in one round of whole episodes."""
    return _generator(_sequence(seed, ROLES["train"], lane, _EPISODE_ROUNDS, round_, _NOISE))


def afterwards_seed(seed: int, episode: int) -> int:
    """The 32-bit seed for an episode of an evaluation after training."""
    return _word(_sequence(seed, _AFTERWARDS, episode))


def afterwards_noise(seed: int, episode: int) -> np.random.Generator:
    """The action-noise stream for an episode of an evaluation after training."""
    return _generator(_sequence(seed, _AFTERWARDS, episode, _NOISE))


def agent_seed(seed: int) -> int:
    """The 63-bit seed for the agent's generator."""
    return int(_sequence(seed, _AGENT).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_globals(seed: int, where: str, *numbers: int) -> None:
    """Seeds the global generators: `random`, NumPy's and torch's (of the CPU)."""
    import torch

    # Three words: Mersenne twisters with equal seeds draw equal bits.
    words = _sequence(seed, *_GLOBALS[where], *numbers).generate_state(3).tolist()
    random.seed(words[0])
    np.random.seed(words[1])
    torch.default_generator.manual_seed(words[2])


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restores the global generators afterwards: the agent may run in a user's process."""
    import torch

    ours, numpys, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
        torch.set_rng_state(torchs)


def _sequence(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


def _word(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint32)[0])


def _generator(sequence: np.random.SeedSequence) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(sequence))
