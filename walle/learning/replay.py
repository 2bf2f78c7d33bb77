"""The replay buffer: a ring of transitions in which new ones overwrite the oldest.

The buffer is in the agent's private memory. Rollouts already arrive in shared memory, and only
the agent reads the buffer, so a shared buffer would only add locks. Other learners get the
minibatches that the agent draws.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from walle.types import AnyArray, Rollout


class Transitions(NamedTuple):
    """Single steps, with any leading shape [...]."""

    obs: Tensor  # [..., O] observation before the step
    action: Tensor  # [..., A]
    next_obs: Tensor  # [..., O] true successor, also where an episode was truncated
    reward: Tensor  # [...]
    continues: Tensor  # [...] 0 after a terminal state, else 1; a truncated episode counts as 1

    @classmethod
    def split(cls, rows: Tensor, obs_dim: int) -> Transitions:
        """Views of the rows [..., W] of a `Replay`; see `row_width`."""
        if rows.dtype == torch.uint8:
            widths = [obs_dim, obs_dim, rows.shape[-1] - 2 * obs_dim]
            obs, next_obs, rest = torch.split(rows, widths, -1)
            numbers = rest.view(torch.float32)
            action, reward, continues = torch.split(numbers, [numbers.shape[-1] - 2, 1, 1], -1)
        else:
            action_dim = rows.shape[-1] - 2 * obs_dim - 2
            widths = [obs_dim, action_dim, obs_dim, 1, 1]
            obs, action, next_obs, reward, continues = torch.split(rows, widths, -1)
        return cls(obs, action, next_obs, reward.squeeze(-1), continues.squeeze(-1))


def row_width(obs_dim: int, action_dim: int, dtype: str = "float32") -> int:
    """W, the number of entries in a row: observation, action, successor, reward, continues.

    A row of bytes has the observation, the successor, and then the numbers, four bytes each.
    """
    return 2 * obs_dim + (action_dim + 2) * (4 if dtype == "uint8" else 1)


class Replay:
    """A ring of transitions, each in one row of numbers, so that one gather makes a minibatch.

    Attributes:
        capacity: the largest number of transitions that it holds.
        dtype: the type of a row's entries.
        inserted: transitions added since the run started; number n is at index n % capacity.
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Holds the newest `capacity` transitions; memory is used only when rows are filled.

        `dtype` is the type of observations: "float32", or "uint8" with images.
        """
        self.capacity, self.dtype = capacity, dtype
        width, kind = row_width(obs_dim, action_dim, dtype), getattr(torch, dtype)
        self._rows = torch.empty(capacity, width, dtype=kind, device=device)
        self._before_add: tuple[int, Tensor] | None = None  # see `take_back`
        self.inserted = self._first = (
            0  # `_first`: of those that are stored; 0 unless `restore` got too few
        )

    def __len__(self) -> int:
        """The number of transitions in the buffer."""
        return min(self.inserted - self._first, self.capacity)

    @property
    def width(self) -> int:
        """W, the number of entries in a row."""
        return self._rows.shape[1]

    def add(self, rollout: Rollout) -> None:
        """Adds every step of a rollout, earlier steps first."""
        action = rollout.action.reshape(*rollout.reward.shape, -1)
        after: list[AnyArray] = [rollout.reward[..., None], ~rollout.terminated[..., None]]
        columns = [rollout.obs[:-1], action, rollout.successors(), *after]
        if self.dtype == "uint8":
            numbers = np.concatenate([action, *after], -1, dtype=np.float32)
            columns = [rollout.obs[:-1], rollout.successors(), numbers.view(np.uint8)]
        rows = np.concatenate(columns, -1, dtype=self.dtype).reshape(-1, self.width)
        oldest = self.inserted - len(self)
        lost = max(oldest, self.inserted + len(rows) - self.capacity)  # the oldest row that stays
        overwritten = self._rows[self._places(oldest, min(lost, self.inserted))]
        self._before_add = self.inserted, overwritten
        self.inserted += len(rows)
        self._place(torch.from_numpy(rows[-self.capacity :]))

    def take_back(self, inserted: int) -> None:
        """Undoes the last `add`, complete or not, if the buffer had `inserted` rows before it."""
        if self._before_add is None or self._before_add[0] != inserted:
            return
        _, overwritten = self._before_add
        self.inserted = inserted
        oldest = inserted - len(self)
        self._rows[self._places(oldest, oldest + len(overwritten))] = overwritten

    def _place(self, rows: Tensor) -> None:
        """Writes the newest rows to their places."""
        places = self._places(self.inserted - len(rows), self.inserted)
        self._rows[places] = rows.to(self._rows.device)

    def sample(self, minibatches: int, size: int, generator: torch.Generator) -> Tensor:
        """Draws rows uniformly, with replacement: [minibatches, size, W].

        `Transitions.split` splits them into columns.
        """
        index = torch.randint(len(self), (minibatches * size,), generator=generator)
        index = (index + self._first) % self.capacity
        rows = self._rows.index_select(0, index.to(self._rows.device))
        return rows.view(minibatches, size, self.width)

    def rows(self, begin: int, end: int) -> Tensor:
        """A copy of transitions `begin` to `end` (excluded), [end - begin, W], on the CPU."""
        return self._rows[self._places(begin, end)].cpu()

    def _places(self, begin: int, end: int) -> Tensor:
        return torch.arange(begin, end, device=self._rows.device) % self.capacity

    def restore(self, rows: Tensor, inserted: int) -> None:
        """Fills the buffer with `rows` [N, W], the newest of `inserted` transitions."""
        self.inserted = inserted
        self._first = inserted - len(rows) if len(rows) < self.capacity else 0
        self._place(rows[-self.capacity :])
