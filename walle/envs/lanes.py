"""The contract that every batch of environments keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import gymnasium as gym

from walle.types import AnyArray, BoolArray


@dataclass(frozen=True)
class EnvSpec:
    """Everything needed to build lanes in any process. Picklable.

    Attributes:
        id: a registered Gymnasium id, "module:Id-v0" to import `module` first, or "module:NAME"
            for the `walle.envs.mujoco.robot.Robot` of that name.
        kwargs: the environment's own constructor arguments.
        backend: "auto" takes the fastest implementation that gives Gymnasium's results; "mujoco",
            "gymnasium" and "envpool" ask for one.
        frame_skip: environment steps per action, rewards summed; 1 leaves the environment as is.
        episode_limit: environment steps before truncation; None keeps the registered limit.
        action: "rescale" maps [-1, 1] to the action bounds and clips, "clip" clips to the bounds,
            "raw" passes actions on. Entries without finite bounds always pass unchanged.
        time_feature: append t / episode_limit (t / 1000 without a limit) to the observation.
    """

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    backend: str = "auto"
    frame_skip: int = 1
    episode_limit: int | None = None
    action: str = "rescale"
    time_feature: bool = False


class Step(NamedTuple):
    """What one step of L lanes gave. The arrays belong to the lanes and live until the next step.

    Attributes:
        obs: [L, *O] what the policy sees next; the new episode's first where one ended.
        reward: [L] floating point.
        terminated: [L] the episode reached a terminal state.
        truncated: [L] the episode was cut short; where both are true, `terminated` counts.
        final_obs: [L, *O] the true successor, valid where an episode ended; None if none did.
    """

    obs: AnyArray
    reward: AnyArray
    terminated: BoolArray
    truncated: BoolArray
    final_obs: AnyArray | None


class Lanes(Protocol):
    """L environments stepping together. Lanes reset themselves when an episode ends.

    Attributes:
        observation_space: of one lane, one-dimensional.
        action_space: of one lane; a discrete one starts at 0.
        episode_limit: environment steps after which an episode is truncated, if any.
    """

    observation_space: gym.spaces.Box
    action_space: gym.spaces.Box | gym.spaces.Discrete
    episode_limit: int | None

    def __len__(self) -> int:
        """The number of lanes, L."""
        ...

    def reset(self, seeds: Sequence[int] | None = None) -> AnyArray:
        """Begins a new episode in every lane; returns the first observations, [L, *O].

        The first call seeds each lane with its own stream; later ones go on with it, or begin
        anew from `seeds`, one a lane.
        """
        ...

    def step(self, action: AnyArray) -> Step:
        """Applies action[i] ([L, *A], or [L] when discrete) to lane i."""
        ...

    def close(self) -> None:
        """Frees what the lanes hold."""
        ...
