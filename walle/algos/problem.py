"""The description of a run that an algorithm gets."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym
import torch

from walle.streams import agent_seed
from walle.types import ActionSpace, ObsLayout, layout_of


class Problem(NamedTuple):
    """The spaces, sizes and seed of a run, from which an algorithm builds its parts."""

    observation_space: gym.spaces.Box  # of one lane
    action_space: ActionSpace  # of one lane
    lanes: int  # how many lanes the run has in all
    total_steps: int  # environment steps the run will take
    schedule_steps: int  # environment steps after which a falling step size is 0
    batch_size: int  # environment steps a round
    seed: int  # the run's seed
    device: str  # where the agent computes
    # steps of the longest episode; None if episodes have no limit
    longest_episode: int | None = None
    rounds_vary: bool = False  # whether rounds differ in their number of steps
    shards: int = 1  # into how many parts a minibatch is divided, see `learning.step`

    @property
    def rounds(self) -> int:
        """The number of rounds that the run will take."""
        return -(-self.total_steps // self.batch_size)

    @property
    def obs_dim(self) -> int:
        """The width of an observation, O."""
        return int(self.observation_space.shape[0])

    @property
    def obs_layout(self) -> ObsLayout:
        """How an observation lies in a row."""
        return layout_of(self.observation_space)

    def generator(self) -> torch.Generator:
        """The agent's random stream, independent of every lane's."""
        return torch.Generator().manual_seed(agent_seed(self.seed))
