"""Decides which environments MuJoCo lanes can simulate, and builds those lanes."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import gymnasium as gym

from walle.envs.lanes import EnvSpec
from walle.envs.mujoco import tasks
from walle.envs.mujoco.lanes import MujocoLanes
from walle.envs.mujoco.robot import Robot, RobotTask
from walle.envs.mujoco.task import GymnasiumTask
from walle.errors import ConfigError, nearest
from walle.streams import Role, env_seed

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
    """The reason why MuJoCo lanes would have other results for `spec`; None if they have not."""
    if find_robot(spec.id) is not None:
        return None
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
    """The class or function that an id of the form "module:Name" names, or None."""
    maker: Callable[..., gym.Env[Any, Any]] | None = _named(env_id)
    if isinstance(maker, Robot) or not callable(maker):
        return None
    if isinstance(maker, type) and not issubclass(maker, gym.Env):
        needs = ("reset", "step", "observation_space", "action_space", "close")
        lacks = [attribute for attribute in needs if not hasattr(maker, attribute)]
        more = f" (it lacks {', '.join(lacks)})" if lacks else ""
        name = env_id.rpartition(":")[2]
        raise ConfigError(f"env.id={env_id!r}: derive {name} from gymnasium.Env{more}")
    return maker


def missing_class(env_id: str) -> str | None:
    """The error that the module of "module:Name" has no such environment, and those that it has.

    None for an id that Gymnasium should know, such as "module:Name-v0" or "Name-v0".
    """
    module, _, name = env_id.rpartition(":")
    if not module or re.search(r"-v\d+$", name):
        return None
    names = [
        attribute
        for attribute, value in vars(_imported(module, env_id)).items()
        if isinstance(value, Robot)
        or (isinstance(value, type) and issubclass(value, gym.Env) and value is not gym.Env)
    ]
    near = nearest(name, names) if names else "it has no environment"
    return f"{module} has no {name}; {near}"


def _named(env_id: str) -> Any:
    """What "module:NAME" names; None for another id, or where the module has no such name."""
    module, _, name = env_id.rpartition(":")
    return getattr(_imported(module, env_id), name, None) if module else None


def _registered(env_id: str) -> gym.envs.registration.EnvSpec:
    module, _, name = env_id.rpartition(":")
    if module:
        _imported(module, env_id)
    return gym.spec(name)


def _imported(module: str, env_id: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"env.id={env_id!r}: {error}; is the module importable here?") from error
