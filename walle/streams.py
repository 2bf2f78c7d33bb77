"""Every random stream of a run, in one tree below the run's seed.

    SeedSequence(seed)
        (0, lane)                   a training lane: its environment's seed
        (0, lane, 0)                its action noise
        (0, lane, 1, round)         the lane in one round of whole episodes: the environment's seed
        (0, lane, 1, round, 0)      its action noise in that round
        (1, lane)                   an evaluation lane: its environment's seed
        (2,)                        the agent: initial networks, orders of minibatches, replay

The numbers in brackets are the `spawn_key` of a `numpy.random.SeedSequence`. No key appears twice,
so no two streams meet: a lane of fixed rounds has only the child 0, and the rounds of whole
episodes lie below the child 1, which nothing else uses. A lane's number counts the lanes of the
whole run, so its streams do not depend on the sampler that runs it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Role = Literal["train", "evaluate"]
ROLES: dict[Role, int] = {"train": 0, "evaluate": 1}
_NOISE, _EPISODE_ROUNDS = 0, 1
_AGENT = 2


def env_seed(seed: int, lane: int, role: Role = "train") -> int:
    """The integer that a lane's environment is reset with, of 32 bits."""
    return _word(_sequence(seed, ROLES[role], lane))


def action_noise(seed: int, lane: int) -> np.random.Generator:
    """A training lane's stream of action noise."""
    return _generator(_sequence(seed, ROLES["train"], lane, _NOISE))


def episode_env_seed(seed: int, lane: int, round_: int) -> int:
    """The integer that a lane's environment is reset with before a round of whole episodes."""
    return _word(_sequence(seed, ROLES["train"], lane, _EPISODE_ROUNDS, round_))


def episode_action_noise(seed: int, lane: int, round_: int) -> np.random.Generator:
    """A lane's stream of action noise in one round of whole episodes."""
    return _generator(_sequence(seed, ROLES["train"], lane, _EPISODE_ROUNDS, round_, _NOISE))


def agent_seed(seed: int) -> int:
    """The integer that seeds the agent's generator, of 63 bits."""
    return int(_sequence(seed, _AGENT).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=key)


def _word(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint32)[0])


def _generator(sequence: np.random.SeedSequence) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(sequence))
