"""Shows a policy in a window: MuJoCo's viewer, or the environment's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from walle.agent.evaluation import LONGEST
from walle.envs.single import RobotEnv
from walle.errors import ConfigError
from walle.policy.acting import Policy
from walle.policy.drawing import has_display
from walle.streams import afterwards_seed


def watch(policy: Policy, *, seed: int = 0, deterministic: bool = True) -> None:
    """Runs episodes in real time until the window is closed.

    Environments that open their own window run a single episode.

    Args:
        policy: the policy that acts.
        seed: as for `walle.evaluate`: these are its episodes, in their order.
        deterministic: take the likeliest actions.

    Raises:
        ConfigError: there is no display.
    """
    if not has_display():
        raise ConfigError(
            "--watch needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set; use "
            "video=FILE.mp4 here"
        )
    env = policy.env()
    inner: Any = env.unwrapped
    if not (hasattr(inner, "model") and hasattr(inner, "data")):
        env.close()
        _run(policy, policy.env("human"), seed, 1, deterministic, lambda: True, 0.0)
        return
    import mujoco.viewer

    sync = inner.sync if isinstance(inner, RobotEnv) else lambda: None
    with mujoco.viewer.launch_passive(inner.model, inner.data) as viewer:

        def show() -> bool:
            with viewer.lock():
                sync()
            viewer.sync()
            return bool(viewer.is_running())

        fps = env.metadata.get("render_fps", 30)
        _run(policy, env, seed, LONGEST, deterministic, show, policy.spec.frame_skip / fps)


def _run(
    policy: Policy,
    env: gym.Env[Any, Any],
    seed: int,
    episodes: int,
    deterministic: bool,
    show: Callable[[], bool],
    step_s: float,
) -> None:
    """Runs episodes until `show` returns False; a step takes `step_s` seconds at least."""
    for episode in range(episodes):
        obs, _ = env.reset(seed=afterwards_seed(seed, episode))
        state, ended = policy.initial_state(), False
        while not ended:
            start = time.monotonic()
            if not show():
                env.close()
                return
            action, state = policy.act(obs, state, deterministic)
            obs, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            time.sleep(max(0.0, step_s - (time.monotonic() - start)))
    env.close()
