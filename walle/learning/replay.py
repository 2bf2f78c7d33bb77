"""The replay buffer: transitions in the order they came, the oldest overwritten first.

It is the agent's own memory and not shared. Rollouts already arrive in slots of shared memory, and
one process learns from them, so a shared buffer would only add locks around what nobody else reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from walle.types import Rollout


class Transitions(NamedTuple):
    """Steps on their own; any leading shape [...].

    Attributes:
        obs: [..., O] what the policy saw.
        action: [..., A] what it did.
        next_obs: [..., O] the true successor, also where an episode was cut.
        reward: [...].
        continues: [...] 0 after a terminal state, else 1: a truncated episode's value goes on.
    """

    obs: Tensor
    action: Tensor
    next_obs: Tensor
    reward: Tensor
    continues: Tensor

    @classmethod
    def split(cls, rows: Tensor, obs_dim: int) -> Transitions:
        """Views of rows [..., 2 O + A + 2] as `Replay` holds them."""
        action_dim = rows.shape[-1] - 2 * obs_dim - 2
        widths = [obs_dim, action_dim, obs_dim, 1, 1]
        obs, action, next_obs, reward, continues = torch.split(rows, widths, -1)
        return cls(obs, action, next_obs, reward.squeeze(-1), continues.squeeze(-1))


def row_width(obs_dim: int, action_dim: int) -> int:
    """Numbers in a row of a `Replay`: observation, action, successor, reward, continues."""
    return 2 * obs_dim + action_dim + 2


class Replay:
    """A ring of transitions; one is one row of numbers, so that a minibatch is one gather."""

    def __init__(self, capacity: int, obs_dim: int, action_dim: int, device: str = "cpu") -> None:
        """Holds the newest `capacity` transitions. Memory that is not filled is not touched."""
        self.capacity = capacity
        self._rows = torch.empty(capacity, row_width(obs_dim, action_dim), device=device)
        self._next = 0
        self._size = 0

    def __len__(self) -> int:
        """Transitions there are."""
        return self._size

    @property
    def width(self) -> int:
        """Numbers in a row: 2 O + A + 2."""
        return self._rows.shape[1]

    def add(self, rollout: Rollout) -> None:
        """Takes in every step of a rollout, earlier steps first."""
        columns = (
            rollout.obs[:-1],
            rollout.action,
            rollout.successors(),
            rollout.reward[..., None],
            ~rollout.terminated[..., None],
        )
        rows = np.concatenate(columns, -1, dtype=np.float32).reshape(-1, self.width)
        self._append(torch.from_numpy(rows[-self.capacity :]))

    def _append(self, rows: Tensor) -> None:
        until_the_end = self.capacity - self._next
        head, tail = rows[:until_the_end], rows[until_the_end:]
        self._rows[self._next : self._next + len(head)] = head
        self._rows[: len(tail)] = tail
        self._next = (self._next + len(rows)) % self.capacity
        self._size = min(self.capacity, self._size + len(rows))

    def sample(self, minibatches: int, size: int, generator: torch.Generator) -> Tensor:
        """Rows drawn evenly, with replacement: [minibatches, size, width], for `Transitions.split`.

        One draw of indices and one gather serve all the minibatches.
        """
        index = torch.randint(self._size, (minibatches * size,), generator=generator)
        rows = self._rows.index_select(0, index.to(self._rows.device))
        return rows.view(minibatches, size, self.width)

    def state_dict(self) -> dict[str, Any]:
        """The transitions as they lie, and where the oldest or the first free place is."""
        return {"rows": self._rows[: self._size].clone(), "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`; a smaller buffer keeps the newest."""
        rows = state["rows"].to(self._rows.device)
        self._next = self._size = 0
        if len(rows) == self.capacity:  # the same places, so the same samples
            self._append(rows)
            self._next = state["next"]
        else:
            self._append(rows.roll(-state["next"], 0)[-self.capacity :])
