"""The run as an algorithm is told of it."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym
import torch

from walle.streams import agent_seed


class Problem(NamedTuple):
    """What an algorithm is told of the run it learns in.

    Attributes:
        observation_space: of one lane.
        action_space: of one lane.
        lanes: how many lanes the run has in all.
        total_steps: environment steps the run will take.
        batch_size: environment steps a round.
        seed: the run's seed.
        device: where the agent computes.
        longest_episode: of steps, where episodes have a limit; else None.
        rounds_vary: whether rounds differ in their number of steps.
    """

    observation_space: gym.spaces.Box
    action_space: gym.spaces.Box | gym.spaces.Discrete
    lanes: int
    total_steps: int
    batch_size: int
    seed: int
    device: str
    longest_episode: int | None = None
    rounds_vary: bool = False

    @property
    def rounds(self) -> int:
        """How many rounds the run will take."""
        return -(-self.total_steps // self.batch_size)

    @property
    def obs_dim(self) -> int:
        """The width of an observation, O."""
        return int(self.observation_space.shape[0])

    def generator(self) -> torch.Generator:
        """The agent's random stream, independent of every lane's."""
        return torch.Generator().manual_seed(agent_seed(self.seed))
