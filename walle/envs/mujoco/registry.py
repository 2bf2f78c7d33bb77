"""Decides which environments MuJoCo lanes can simulate, and builds those lanes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from walle.envs.lanes import EnvSpec
from walle.envs.mujoco import tasks
from walle.envs.mujoco.lanes import MujocoLanes
from walle.envs.mujoco.robot import Robot, RobotTask
from walle.envs.mujoco.task import GymnasiumTask
from walle.envs.wrappers import checked_maker
from walle.errors import ConfigError, nearest
from walle.streams import Role, env_seed
from walle.system.importing import import_module_of, imported, with_module

# The keys are Gymnasium's entry points: another id registered for the same class is found too.
TASKS: Mapping[str, type[GymnasiumTask]] = {
    f"gymnasium.envs.mujoco.{module}_v5:{task.__name__}Env": task
    for module, task in (
        *(("ant", tasks.Ant), ("half_cheetah", tasks.HalfCheetah), ("hopper", tasks.Hopper)),
        *(("humanoid", tasks.Humanoid), ("humanoidstandup", tasks.HumanoidStandup)),
        ("inverted_double_pendulum", tasks.InvertedDoublePendulum),
        ("inverted_pendulum", tasks.InvertedPendulum),
        *(("pusher", tasks.Pusher), ("reacher", tasks.Reacher)),
        *(("swimmer", tasks.Swimmer), ("walker2d", tasks.Walker2d)),
    )
}

# Arguments of Gymnasium's classes that only change what is drawn.
_DRAWING = {"camera_id", "camera_name", "default_camera_config", "height", "max_geom"}
_DRAWING |= {"render_mode", "visual_options", "width"}


def why_not(spec: EnvSpec) -> str | None:
    """Why the results of MuJoCo lanes would differ from those of `spec`; None if they would not."""
    if find_robot(spec.id) is not None:
        if spec.wrappers:
            raise ConfigError(
                f"env.wrappers with the Robot {spec.id}: change its functions instead"
            )
        return None
    if spec.wrappers:
        return "env.wrappers need env.backend=gymnasium"
    if find_maker(spec.id) is not None:
        return "it is a class or a function of your own"
    try:
        entry = _registered(spec.id)
    except gym.error.Error as error:
        return str(error)
    if entry.entry_point not in TASKS:
        known = ", ".join(sorted(f"{task.__name__}-v5" for task in TASKS.values()))
        return f"it is neither a walle Robot nor one of {known}"
    if entry.additional_wrappers:
        return "it is registered with wrappers"
    drawing = sorted(_DRAWING & (entry.kwargs | spec.kwargs).keys())
    if drawing:
        return f"lanes simulate and do not draw, but the arguments have {', '.join(drawing)}"
    return None


def make_mujoco_lanes(
    spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role = "train"
) -> MujocoLanes:
    """Builds the lanes numbered `lanes` of a run.

    Raises:
        ConfigError: MuJoCo lanes cannot simulate this environment, an argument is unknown, or the
            model does not load.
    """
    if reason := why_not(spec):
        raise ConfigError(f"env.backend=mujoco cannot run env.id={spec.id!r}: {reason}")
    robot = find_robot(spec.id)
    described: Any = Robot
    if robot is None:
        entry = _registered(spec.id)
        described = TASKS[str(entry.entry_point)]
    names = [field.name for field in dataclasses.fields(described)]
    for name in spec.kwargs:
        if name not in names:
            hint = nearest(name, names)
            raise ConfigError(f"env.kwargs.{name}: {spec.id} has no such argument; {hint}")
    if robot is None:
        task, limit = described(**{**entry.kwargs, **spec.kwargs}), entry.max_episode_steps
    else:
        robot = dataclasses.replace(robot, **spec.kwargs)
        task, limit = RobotTask(robot), robot.episode_limit
    return MujocoLanes(
        task,
        [env_seed(seed, lane, role) for lane in lanes],
        episode_limit=limit if spec.episode_limit is None else spec.episode_limit,
        repeat=spec.frame_skip,
        numbers=lanes,
        on_error=spec.on_error,
    )


def find_robot(env_id: str) -> Robot | None:
    """The `Robot` that an id of the form "module:NAME" names, or None."""
    robot = _named(env_id)
    return robot if isinstance(robot, Robot) else None


def find_maker(env_id: str) -> Callable[..., gym.Env[Any, Any]] | None:
    """The class or function that an id of the form "module:Name" names, or None.

    Raises ConfigError, without calling it, if its result is not known to be an environment.
    """
    maker: Any = _named(env_id)
    if maker is None or isinstance(maker, Robot):
        return None
    return checked_maker("env.id", env_id, maker, gym.Env)


def _named(env_id: str) -> Any:
    """The object that "module:NAME" names; None for an id that Gymnasium knows, or should know."""
    env_id = env_id if env_id in gym.registry else with_module(env_id)
    module, _, name = env_id.rpartition(":")
    if ":" not in env_id:
        return None
    import_module_of("env.id", env_id)
    if name in gym.registry:
        return None
    if not re.search(r"-v\d+$", name):
        return imported("env.id", env_id)
    from importlib.metadata import entry_points

    for entry in entry_points(group="gymnasium.envs"):  # some packages register on demand: minatar
        if entry.module.partition(".")[0] == module.partition(".")[0]:
            entry.load()()
    return None


def _registered(env_id: str) -> gym.envs.registration.EnvSpec:
    _named(env_id)  # imports the module
    return gym.spec(env_id.rpartition(":")[2])
