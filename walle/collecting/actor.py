"""Acting: a policy with the parameters and the normaliser of one snapshot, and its memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from walle.nets.mlp import ACTING_ROWS, Forward
from walle.nets.normalize import normalize_into
from walle.nets.policies import ActingPolicy
from walle.nets.recurrent import memory_of
from walle.types import BoolArray, FloatArray, PolicySnapshot


class Actor:
    """A policy with the parameters and the frozen normaliser of one snapshot.

    Rows are padded to a multiple of `ACTING_ROWS`, so that a lane acts the same in whichever
    sampler it lives.

    Attributes:
        state: [L, S] what the policy remembers; S = 0 where it has no memory.
    """

    def __init__(self, policy: ActingPolicy, obs_dim: int, lanes: int, clip: float | None) -> None:
        """Acts for `lanes` lanes; normalised observations are clipped to [-clip, clip]."""
        self.policy = policy
        self.params: dict[str, Tensor] = {}
        self._clip = clip
        self._lanes = lanes
        self._padded = torch.zeros(-(-lanes // ACTING_ROWS) * ACTING_ROWS, obs_dim)
        self._x: FloatArray = self._padded.numpy()[:lanes]
        self._memory = memory_of(policy)
        units = self._memory.units if self._memory else 0
        self._state = torch.zeros(len(self._padded), units)
        self.state: FloatArray = self._state.numpy()[:lanes]
        self._mean: FloatArray = np.zeros(obs_dim, np.float32)
        self._inv_std = self._mean
        self._forward: Forward = lambda x: x

    def load(self, snapshot: PolicySnapshot) -> None:
        """Takes over the snapshot's parameters and normaliser."""
        parameters, self._mean, self._inv_std = snapshot.unpack(self.policy.layout.size)
        self.params = self.policy.layout.unflatten(torch.from_numpy(parameters))
        self._forward = forward = self.policy.acting(self.params, len(self._padded))
        if self._memory:
            remember = self._memory.acting(self.params, self._state)
            self._forward = lambda x: forward(remember(x))

    def forget(self, lanes: BoolArray) -> None:
        """Clears the memory of the marked lanes ([L]), where an episode begins."""
        self.state[lanes] = 0

    def dist_params(self, obs: FloatArray) -> Tensor:
        """[L, O] raw observations -> [L, H]; overwritten by the next call."""
        normalize_into(self._x, obs, self._mean, self._inv_std, self._clip)
        return self._forward(self._padded)[: self._lanes]
