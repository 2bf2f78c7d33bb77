"""A round as normalised tensors, and the normalisers that produce it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from walle.algos.base import Problem
from walle.nets.normalize import ObservationNormalizer, RewardNormalizer, normalize_into
from walle.types import AnyArray, FloatArray, ObsLayout, PolicySnapshot, Rollout


class Experience(NamedTuple):
    """A rollout as normalised tensors.

    The true successor of a step is the next observation, except for M steps: the last step of the
    rollout and each step that ended an episode. In this rollout the policy did not act on the
    successors of these steps.
    """

    # [T L + M, O] normalised: every observation, then the M unseen successors. In rows of bytes,
    # which hold images, only vectors are normalised
    states: Tensor
    needs_final_obs: Tensor  # [T, L] marks the M steps
    action: Tensor  # [T, L, *A]
    reward: Tensor  # [T, L] scaled
    continues: Tensor  # [T, L] 0 after a terminal state, else 1
    ended: Tensor  # [T, L] an episode ended here, terminated or truncated
    log_prob: Tensor  # [T, L] under the policy that acted
    state: Tensor  # [L, S] the policy's memory before the first step
    # [T, L] the newest policy's probability over the acting policy's, if lag is to be corrected;
    # else None
    ratio: Tensor | None = None

    @property
    def obs(self) -> Tensor:
        """The normalised observations, [T, L, O]."""
        return self.states[: self.ended.numel()].view(*self.ended.shape, -1)

    @property
    def began(self) -> Tensor:
        """Steps at which an episode starts, [T, L]; False at step 0, to which `state` applies."""
        return torch.cat((torch.zeros_like(self.ended[:1]), self.ended[:-1]))

    @classmethod
    def zeros(cls, problem: Problem, state_size: int = 0) -> Experience:
        """A round of the problem's shapes, filled with zeros; `state_size` is S."""
        T, L = problem.batch_size // problem.lanes, problem.lanes
        space, device = problem.action_space, problem.device
        dtype = torch.float32 if isinstance(space, gym.spaces.Box) else torch.int64
        obs_dtype: torch.dtype = getattr(torch, problem.obs_layout.dtype)
        last = torch.arange(T, device=device) == T - 1
        zero = torch.zeros(T, L, device=device)
        return cls(
            states=torch.zeros((T + 1) * L, problem.obs_dim, dtype=obs_dtype, device=device),
            needs_final_obs=last.unsqueeze(1).expand(T, L),
            action=torch.zeros((T, L, *(space.shape or ())), dtype=dtype, device=device),
            reward=zero,
            continues=zero,
            ended=zero.bool(),
            log_prob=zero,
            state=torch.zeros(L, state_size, device=device),
        )


class Normalizers:
    """The normalisers of observations and rewards, updated from every round."""

    def __init__(
        self,
        problem: Problem,
        *,
        clip: float,
        gamma: float,
        observations: bool = True,
        rewards: bool = True,
        reward_scale: float = 1.0,
    ) -> None:
        """Switches each normaliser on or off.

        Args:
            problem: sizes of the run.
            clip: bound on normalised observations.
            gamma: discount of the returns that scale rewards.
            observations: whether observations are normalised.
            rewards: whether rewards are divided by the running deviation of returns.
            reward_scale: a constant factor on rewards.
        """
        self._reward_scale = np.float32(reward_scale)
        self.obs_clip = clip if observations else None
        self._layout = layout = problem.obs_layout
        self._observations = ObservationNormalizer(
            layout.vector, enabled=observations and layout.vector > 0
        )
        self._rewards = RewardNormalizer(problem.lanes, gamma, enabled=rewards)
        self._device = problem.device

    def experience(self, rollout: Rollout) -> Experience:
        """Normalises a rollout with the moments as of the newest snapshot.

        In lock-step the samplers acted with the same moments; under lag they had older ones.
        """
        ended = rollout.ended
        raw_reward = rollout.reward * self._reward_scale
        reward = self._rewards(raw_reward, ended, rollout.lane, rollout.begins)
        needs_final_obs = ended.copy()
        needs_final_obs[-1] = True
        obs = rollout.obs[:-1].reshape(ended.size, -1)
        unseen = rollout.obs[1:][needs_final_obs]
        unseen[ended[needs_final_obs]] = rollout.final_obs[ended]
        states = normalized(
            self._layout, (obs, unseen), *self._observations.frozen(), self.obs_clip
        )

        def tensor(x: Any) -> Tensor:
            return torch.from_numpy(x).to(self._device)

        return Experience(
            states=states.to(self._device),
            needs_final_obs=tensor(needs_final_obs),
            action=tensor(rollout.action),
            reward=reward.to(self._device),
            continues=1 - tensor(rollout.terminated).float(),
            ended=tensor(ended),
            log_prob=tensor(rollout.log_prob),
            state=tensor(rollout.state),
        )

    def update(self, rollout: Rollout) -> None:
        """Updates the observation moments from a round; call it after learning from the round."""
        if self._observations.enabled:
            self._observations.update(self._layout.vectors(rollout.obs[:-1]))

    def snapshot(self, policy: Tensor) -> PolicySnapshot:
        """A snapshot of the policy's parameters [P] and the frozen normaliser."""
        return PolicySnapshot.of([policy.detach().cpu().numpy()], *self._observations.frozen())

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"obs": self._observations.state_dict(), "reward": self._rewards.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._observations.load_state_dict(state["obs"])
        self._rewards.load_state_dict(state["reward"])


def normalized(
    layout: ObsLayout,
    parts: Sequence[AnyArray],
    mean: FloatArray,
    inv_std: FloatArray,
    clip: float | None,
) -> Tensor:
    """The rows of all parts, [Nᵢ, W] each, as a tensor [N, W] with normalised vectors."""
    shape = sum(map(len, parts)), parts[0].shape[1]
    rows = torch.empty(shape, dtype=getattr(torch, layout.dtype))  # aligned, unlike NumPy's
    np.concatenate(parts, out=rows.numpy())
    vectors = layout.vectors(rows.numpy())
    normalize_into(vectors, vectors, mean, inv_std, clip)
    return rows


def values(value_of: Callable[[Tensor], Tensor], experience: Experience) -> tuple[Tensor, Tensor]:
    """V of every step and of its true successor, [T, L] each; `value_of` maps [N, O] to [N]."""
    x = experience
    found = value_of(x.states)
    value = found[: x.ended.numel()].view(x.ended.shape)
    next_value = value.roll(-1, 0)
    next_value[x.needs_final_obs] = found[x.ended.numel() :]
    return value, next_value
