"""Which environments the MuJoCo lanes can stand in for, and how to build them."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from walle.envs.lanes import EnvSpec
from walle.envs.mujoco.arms import Pusher, Reacher
from walle.envs.mujoco.humanoids import Ant, Humanoid, HumanoidStandup
from walle.envs.mujoco.lanes import MujocoLanes
from walle.envs.mujoco.locomotion import HalfCheetah, Hopper, Swimmer, Walker2d
from walle.envs.mujoco.pendulums import InvertedDoublePendulum, InvertedPendulum
from walle.envs.mujoco.task import Task

# Gymnasium's classes, by entry point: an id registered anew for one of them is recognised too.
TASKS: Mapping[str, type[Task]] = {
    f"gymnasium.envs.mujoco.{module}:{task.__name__}Env": task
    for module, task in {
        "ant_v5": Ant,
        "half_cheetah_v5": HalfCheetah,
        "hopper_v5": Hopper,
        "humanoid_v5": Humanoid,
        "humanoidstandup_v5": HumanoidStandup,
        "inverted_double_pendulum_v5": InvertedDoublePendulum,
        "inverted_pendulum_v5": InvertedPendulum,
        "pusher_v5": Pusher,
        "reacher_v5": Reacher,
        "swimmer_v5": Swimmer,
        "walker2d_v5": Walker2d,
    }.items()
}

# Arguments of Gymnasium's classes that only say what to draw.
_DRAWING = frozenset(
    {
        "camera_id",
        "camera_name",
        "default_camera_config",
        "height",
        "max_geom",
        "render_mode",
        "visual_options",
        "width",
    }
)


class Match(NamedTuple):
    """What an EnvSpec asks for, found.

    Attributes:
        task: its class.
        kwargs: the registered arguments, then the user's.
        episode_limit: the user's, else the registered one.
    """

    task: type[Task]
    kwargs: dict[str, Any]
    episode_limit: int | None


def why_not(spec: EnvSpec) -> str | None:
    """The reason why MuJoCo lanes would not give the same results for `spec`; None if they do."""
    entry = _registered(spec.id)
    if entry.entry_point not in TASKS:
        return f"{spec.id} is not one of {', '.join(sorted(t.__name__ for t in TASKS.values()))}"
    if entry.additional_wrappers:
        return f"{spec.id} is registered with wrappers"
    drawing = sorted(_DRAWING & (entry.kwargs | spec.kwargs).keys())
    if drawing:
        return f"{', '.join(drawing)}: lanes simulate, they do not draw"
    return None


def make_mujoco_lanes(
    spec: EnvSpec, seeds: Sequence[int], numbers: Sequence[int] | None = None
) -> MujocoLanes:
    """Builds the lanes of `spec`, one a seed; `numbers` is what messages call them.

    Raises:
        ValueError: MuJoCo lanes cannot stand in for this environment, an argument is unknown, or
            the model does not load.
    """
    reason = why_not(spec)
    if reason is not None:
        raise ValueError(f"env.backend=mujoco cannot run {spec.id}: {reason}")
    match = _match(spec)
    check_arguments(match.task, match.kwargs)
    return MujocoLanes(
        match.task(**match.kwargs),
        seeds,
        episode_limit=match.episode_limit,
        repeat=spec.frame_skip,
        numbers=numbers,
    )


def check_arguments(task: type[Task], kwargs: Mapping[str, Any]) -> None:
    """Raises a ValueError that names the nearest real argument if one does not exist."""
    names = [field.name for field in dataclasses.fields(task)]
    for name in kwargs:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
            raise ValueError(
                f"{task.__name__} has no argument {name!r}; the nearest is {close[0]!r}. "
                f"All: {', '.join(names)}"
            )


def _match(spec: EnvSpec) -> Match:
    entry = _registered(spec.id)
    limit = entry.max_episode_steps if spec.episode_limit is None else spec.episode_limit
    return Match(TASKS[str(entry.entry_point)], {**entry.kwargs, **spec.kwargs}, limit)


def _registered(env_id: str) -> gym.envs.registration.EnvSpec:
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.spec(name)
