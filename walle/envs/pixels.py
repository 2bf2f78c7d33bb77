"""CartPole from images: a small task that a policy with convolutions learns in minutes.

Its id is `walle.envs.pixels:CartPolePixels-v0`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from walle.types import AnyArray

HEIGHT, WIDTH = 40, 60
_BASE, _TOP = 34, 3  # rows of the pole's foot and of its tip when it stands upright
_PIXELS_PER_UNIT = WIDTH / 4.8  # an episode ends 2.4 from the middle


class CartPolePixels(CartPoleEnv):
    """Gymnasium's CartPole, whose observation is its last images, [frames, 40, 60] of bytes.

    An image is grey, and the pole is drawn longer than to scale. Edges are smooth, so that pixel
    brightness shows a position with subpixel precision. An episode starts with copies of one image.
    Rewards, actions and ends are CartPole-v1's.
    """

    def __init__(self, frames: int = 2, **kwargs: Any) -> None:
        """`frames` images form an observation: two show speeds. `kwargs` are CartPole's."""
        super().__init__(**kwargs)
        shape = (frames, HEIGHT, WIDTH)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self._pictures: AnyArray = np.zeros(shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AnyArray, dict[str, Any]]:
        """Starts an episode as CartPole does."""
        obs, info = super().reset(seed=seed, options=options)
        self._pictures[:] = picture(float(obs[0]), float(obs[2]))
        return self._pictures.copy(), info

    def step(self, action: Any) -> tuple[AnyArray, float, bool, bool, dict[str, Any]]:
        """Pushes the cart to the left (0) or to the right (1)."""
        obs, reward, terminated, truncated, info = super().step(int(action))  # type: ignore[no-untyped-call]
        self._pictures[:-1] = self._pictures[1:]
        self._pictures[-1] = picture(float(obs[0]), float(obs[2]))
        return self._pictures.copy(), float(reward), terminated, truncated, info


def picture(position: float, angle: float) -> AnyArray:
    """The cart at `position` and the pole at `angle` (radians, to the right), [40, 60] of bytes."""
    x = np.arange(WIDTH, dtype=np.float32) + 0.5
    cart = WIDTH / 2 + position * _PIXELS_PER_UNIT
    rows = np.arange(_TOP, _BASE, dtype=np.float32)
    pole = cart + (_BASE - rows) * np.tan(angle)
    drawn = np.zeros((HEIGHT, WIDTH), np.float32)
    drawn[_TOP:_BASE] = np.clip(2 - np.abs(x - pole[:, None]), 0, 1)
    drawn[_BASE:-2] = np.clip(5 - np.abs(x - cart), 0, 1)
    return (255 * drawn).astype(np.uint8)


gym.register(
    "CartPolePixels-v0",
    entry_point="walle.envs.pixels:CartPolePixels",
    max_episode_steps=500,
    reward_threshold=475.0,
)
