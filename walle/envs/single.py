"""One Gymnasium environment with a lane's results, for acting, rendering and viewing."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

from walle.envs.envpool_lanes import EnvpoolEnv
from walle.envs.gymnasium_lanes import flattened, make_env, real_number
from walle.envs.lanes import EnvSpec
from walle.envs.mujoco.lanes import MujocoLanes
from walle.envs.mujoco.registry import find_robot, make_mujoco_lanes
from walle.types import AnyArray

Env = gym.Env[Any, Any]
_DRAWING = ("render_mode", "width", "height")


def make_single(spec: EnvSpec, *, pack: bool = True, **kwargs: Any) -> Env:
    """The environment that `spec` describes, with its frame skip and its time feature.

    Actions are the environment's own: `spec.action` is not applied. With equal seeds its
    observations are those of a lane, bit for bit, and its rewards are equal up to rounding. With
    `env.backend=envpool` and `render_mode`, it is Gymnasium's task of that id if there is one, with
    other results. `kwargs` are further arguments, such as `render_mode`; `pack` turns images into
    rows of bytes as lanes do.

    Raises:
        ConfigError: the environment does not exist or refuses its arguments.
    """
    env: Env
    if spec.backend == "envpool" and not ("render_mode" in kwargs and spec.id in gym.registry):
        spec = replace(spec, kwargs={**spec.kwargs, **kwargs})
        env = flattened(EnvpoolEnv(spec), spec, pack=pack)
    elif find_robot(spec.id) is not None:
        drawing = {name: kwargs.pop(name) for name in _DRAWING if name in kwargs}
        spec = replace(spec, kwargs={**spec.kwargs, **kwargs}, on_error="stop")
        env = RobotEnv(make_mujoco_lanes(replace(spec, frame_skip=1), [0], 0), **drawing)
    else:
        env = make_env(spec, pack=pack, more=kwargs)
    limit = env.spec.max_episode_steps if env.spec else getattr(env, "episode_limit", None)
    if spec.frame_skip > 1:
        env = _RepeatedAction(env, spec.frame_skip)
    return _Clock(env, spec.frame_skip / (limit or 1000)) if spec.time_feature else env


class RobotEnv(gym.Env[Any, Any]):
    """A user's robot as a Gymnasium environment; it steps a single lane."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self,
        lanes: MujocoLanes,
        render_mode: str | None = None,
        width: int = 480,  # pixels of a picture, as in Gymnasium
        height: int = 480,
    ) -> None:
        self._lanes = lanes
        self.observation_space = lanes.observation_space
        self.action_space: gym.Space[Any] = lanes.action_space
        self.episode_limit, self.render_mode = lanes.episode_limit, render_mode
        self.model = lanes.model
        self.data = mujoco.MjData(self.model)  # as of the last call of `sync` or `render`
        fps = 1 / (self.model.opt.timestep * lanes.frame_skip)
        self.metadata = {**self.metadata, "render_fps": round(fps)}
        self._size = (width, height)
        # The first observation of the next episode, which the lane has started.
        self._next_obs: AnyArray | None = None
        self._renderer: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AnyArray, dict[str, Any]]:
        """Starts an episode, as a lane with this seed does."""
        if seed is None and self._np_random is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        super().reset(seed=seed, options=options)
        next_obs, self._next_obs = self._next_obs, None
        if seed is None and next_obs is not None:
            return next_obs, {}
        return self._lanes.reset(None if seed is None else [seed])[0].copy(), {}

    def step(self, action: AnyArray) -> tuple[AnyArray, float, bool, bool, dict[str, Any]]:
        """Applies the action [A]."""
        result = self._lanes.step(np.asarray(action)[None])
        obs = result.obs if result.final_obs is None else result.final_obs
        ends = bool(result.terminated[0]), bool(result.truncated[0])
        self._next_obs = result.obs[0].copy() if any(ends) else None
        return obs[0].copy(), float(result.reward[0]), *ends, {}

    def sync(self) -> None:
        """Puts the lane's state into `data`."""
        row = self._lanes.state()
        if row is None:
            raise NotImplementedError("a model with plugins or sleeping trees cannot be drawn")
        state = mujoco.mjtState.mjSTATE_INTEGRATION
        size = mujoco.mj_stateSize(self.model, state)
        mujoco.mj_setState(self.model, self.data, row[0].view(np.float64)[:size], state)
        mujoco.mj_forward(self.model, self.data)

    def render(self) -> Any:
        """The image, [height, width, 3] of bytes."""
        self.sync()
        if self._renderer is None:
            from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

            # Gymnasium's own choice is a view that stands still. This view follows the first body,
            # at a distance that shows the moving parts, unless the model has a camera "track".
            names = [self.model.camera(i).name for i in range(self.model.ncam)]
            track = names.index("track") if "track" in names else None
            moving = self.model.geom_rbound[self.model.geom_bodyid > 0]
            camera = {
                "type": int(mujoco.mjtCamera.mjCAMERA_TRACKING),
                "trackbodyid": 1,
                "distance": 6 * float(moving.max(initial=0.1)),
                "elevation": -20.0,
            }
            self._renderer = MujocoRenderer(
                self.model, self.data, camera if track is None else None, *self._size
            )
            self._renderer.camera_id = track
        return self._renderer.render(self.render_mode)

    def close(self) -> None:
        """Frees the renderer."""
        if self._renderer is not None:
            self._renderer.close()


class _RepeatedAction(gym.Wrapper[Any, Any, Any, Any]):
    """Applies every action for some steps and sums the rewards; an episode's end cuts them."""

    def __init__(self, env: Env, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(copy(action))
            total += real_number(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class _Clock(gym.Wrapper[Any, Any, Any, Any]):
    """Appends the elapsed share of the episode, as `walle.envs.transforms.MappedLanes` does."""

    def __init__(self, env: Env, scale: float) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        self.observation_space = gym.spaces.Box(
            np.append(space.low, 0), np.append(space.high, np.inf), dtype=np.float64
        )
        self._scale, self._t = scale, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        self._t = 0
        return np.append(obs, 0.0), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        self._t += 1
        return np.append(obs, self._t * self._scale), *rest
