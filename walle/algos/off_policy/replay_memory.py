"""The check that a replay buffer fits into the machine's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from walle.algos.problem import Problem
from walle.errors import ConfigError
from walle.learning.replay import row_width
from walle.system.machine import memory_bytes


def check_replay_memory(
    settings: Any, capacity: int, problem: Problem, action_dim: int, drawn: int
) -> None:
    """Refuses a buffer or minibatches that this machine cannot hold.

    Args:
        settings: the algorithm's settings, with its `minibatch_size`.
        capacity: the most transitions of the buffer.
        problem: spaces and sizes of the run.
        action_dim: the entries of an action.
        drawn: the most minibatches in one draw.

    Raises:
        ConfigError: the full buffer, or the minibatches, need more than the machine's memory.
    """
    dtype = problem.obs_layout.dtype
    width = np.dtype(dtype).itemsize * row_width(problem.obs_dim, action_dim, dtype)
    for name, rows, copies in (
        ("buffer_size", capacity, 3),  # writing a checkpoint takes two more copies
        ("minibatch_size", settings.minibatch_size, drawn),
    ):
        needed, there = copies * rows * width, memory_bytes()
        if needed > there:
            raise ConfigError(
                f"algo.{name}={getattr(settings, name)} needs {needed / 1e9:,.0f} GB, and this "
                f"machine has {there / 1e9:,.0f}; the largest that fits: {rows * there // needed}"
            )
