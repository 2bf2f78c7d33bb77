"""The policy as a sampler uses it, with its memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from walle.nets.mlp import ACTING_ROWS, Forward
from walle.nets.normalize import normalize_into
from walle.nets.policies import ActingPolicy, encoder_of, memory_of
from walle.types import AnyArray, BoolArray, FloatArray, ObsLayout, PolicySnapshot


class Actor:
    """A policy with the parameters and the frozen normaliser of one snapshot.

    Observations are padded to a multiple of `ACTING_ROWS` rows, so that a lane's actions do not
    depend on the sampler that runs it. `state`, [L, S], is the policy's memory; S = 0 without one.
    """

    def __init__(self, policy: ActingPolicy, obs_dim: int, lanes: int, clip: float | None) -> None:
        """Acts for `lanes` lanes; normalised observations are clipped to [-clip, clip]."""
        self.policy = policy
        self.params: dict[str, Tensor] = {}
        self._clip = clip
        self._lanes = lanes
        self._encoder = encoder_of(policy)
        layout = self._encoder.obs_layout if self._encoder else ObsLayout(obs_dim)
        rows, dtype = -(-lanes // ACTING_ROWS) * ACTING_ROWS, getattr(torch, layout.dtype)
        self._padded = torch.zeros(rows, obs_dim, dtype=dtype)
        self._obs: AnyArray = self._padded.numpy()[:lanes]
        self._x: FloatArray = layout.vectors(self._obs)
        self._memory = memory_of(policy)
        units = self._memory.units if self._memory else 0
        self._state = torch.zeros(len(self._padded), units)
        self.state: FloatArray = self._state.numpy()[:lanes]
        self._mean: FloatArray = np.zeros(layout.vector, np.float32)
        self._inv_std = self._mean
        self._forward: Forward = lambda x: x

    def load(self, snapshot: PolicySnapshot) -> None:
        """Loads the snapshot's parameters and normaliser."""
        parameters, self._mean, self._inv_std = snapshot.parts(self.policy.layout.size)
        # Cloned: torch's memory starts at a cache line, and the bits of a matrix product may
        # depend on the alignment of its factors.
        self.params = self.policy.layout.unflatten(torch.from_numpy(parameters).clone())
        self._forward = forward = self.policy.acting(self.params, len(self._padded))
        if self._memory:
            remember = self._memory.acting(self.params, self._state)
            self._forward = lambda x: forward(remember(x))
            if (seen := self._memory.inputs) < self._x.shape[1]:
                self._forward = lambda x: forward(remember(x[:, :seen].contiguous()))
        if self._encoder:
            encode = self._encoder.acting(self.params, self._lanes, len(self._padded))
            self._forward = lambda x: forward(encode(x))

    def forget(self, lanes: BoolArray) -> None:
        """Clears the memory of the marked lanes ([L]); call it where an episode starts."""
        self.state[lanes] = 0

    def dist_params(self, obs: AnyArray) -> Tensor:
        """The policy's outputs [L, H] at raw observations [L, O]; the next call overwrites them."""
        if self._encoder:
            self._obs[:] = obs
            obs = self._x
        normalize_into(self._x, obs, self._mean, self._inv_std, self._clip)
        return self._forward(self._padded)[: self._lanes]

    @torch.inference_mode()
    def likeliest(self, obs: AnyArray) -> AnyArray:
        """The likeliest actions [L, *A] at raw observations [L, O], as the policy returns them."""
        dist = self.policy.distribution(self.params, self.dist_params(obs))
        return self.policy.mode(dist).numpy()

    @torch.inference_mode()
    def draw(self, obs: AnyArray, noise: AnyArray) -> AnyArray:
        """Actions [L, *A] at raw observations [L, O], drawn with the noise [L, *N] of a step."""
        policy, dist_params = self.policy, self.dist_params(obs)
        action = torch.empty_like(policy.mode(policy.distribution(self.params, dist_params)))
        scaled = policy.scale_noise(self.params, torch.from_numpy(noise))
        policy.sample(dist_params, scaled, action)
        return action.numpy()
