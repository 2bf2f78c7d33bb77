"""Prepares this process for pictures: where MuJoCo draws them, and from which camera."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

from walle.errors import ConfigError

FOLLOWING = "track"  # the name of the camera that follows the robot, in Gymnasium's models
_BACKENDS = {"egl": "libegl1 (EGL)", "osmesa": "libosmesa6 (OSMesa)"}
_TRIAL = "import mujoco.{0} as gl; gl.GLContext(8, 8).make_current()"


def has_display() -> bool:
    """Whether a window can be opened."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def prepare_drawing(env: gym.Env[Any, Any]) -> None:
    """Lets an environment draw off screen, from a camera that follows a robot.

    Raises:
        ConfigError: MuJoCo cannot draw here; the message says what to install.
    """
    inner = env.unwrapped
    if hasattr(inner, "model") and hasattr(inner, "data"):
        choose_mujoco_backend()
        from gymnasium.envs.mujoco import MujocoEnv

        if isinstance(inner, MujocoEnv) and inner.camera_id is None and inner.camera_name is None:
            _follow(inner)


def _follow(env: Any) -> None:
    """Looks through the model's camera that follows the robot, over a floor that does not end.

    Gymnasium's own view stands still, so a robot that runs leaves the picture; and the floor that
    it draws ends after 20 or 40 m, though the simulation's does not.
    """
    names = [env.model.camera(i).name for i in range(env.model.ncam)]
    if FOLLOWING in names:
        env.mujoco_renderer.camera_id = names.index(FOLLOWING)
        _draw_endless_floors(env.model)


def _draw_endless_floors(model: mujoco.MjModel) -> None:
    """Draws planes without an end, their texture as large as before; collisions know no end."""
    for floor in np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE):
        size, material = model.geom_size[floor, :2], model.geom_matid[floor]
        if not size.all():
            continue
        if material >= 0 and not model.mat_texuniform[material]:
            model.mat_texrepeat[material] /= 2 * size  # from a plane's length to metres
            model.mat_texuniform[material] = True
        size[:] = 0.0


def choose_mujoco_backend() -> None:
    """Sets MUJOCO_GL to what draws off screen here, unless it is set.

    Each way is tried in a process of its own, since a library that fails cannot be unloaded.

    Raises:
        ConfigError: none works; the message says what to install.
    """
    if "MUJOCO_GL" in os.environ:
        return
    for name in _BACKENDS:
        trial = [sys.executable, "-c", _TRIAL.format(name)]
        if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            os.environ["MUJOCO_GL"] = name
            return
    raise ConfigError(
        f"MuJoCo cannot draw off screen here: install {' or '.join(_BACKENDS.values())}, on Debian "
        "and Ubuntu with `apt-get install libegl1 libgl1-mesa-dri libopengl0`; where there is a "
        "display, set MUJOCO_GL=glfw"
    )
