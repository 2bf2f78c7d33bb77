"""Lanes: batches of environments that step together inside one sampler."""

from __future__ import annotations

from collections.abc import Sequence
from signal import SIGINT

from gymnasium.spaces import Box

from walle.envs.lanes import EnvSpec, Lanes, Step
from walle.errors import ConfigError
from walle.streams import Role
from walle.system.signals import blocked_signals

__all__ = ["EnvSpec", "Lanes", "Step", "make_lanes"]


def make_lanes(spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role = "train") -> Lanes:
    """Builds the lanes numbered `lanes` of a run.

    A lane's number in the whole run, the seed and the role decide its random streams.

    Raises:
        ConfigError: the environment does not exist, or walle cannot simulate it as `spec` asks.
    """
    from walle.envs import transforms

    base = _simulation(spec, lanes, seed, role)
    if spec.reset_options and (base.moves or spec.backend == "envpool"):
        raise ConfigError(
            f"env.reset_options={spec.reset_options}: MuJoCo lanes and EnvPool take none; use "
            "env.kwargs, or env.backend=gymnasium"
        )
    if isinstance(actions := base.action_space, Box) and (actions.low == actions.high).all():
        base.close()
        raise ConfigError(
            f"{spec.id} has actions that cannot change, {actions}: give its action space other "
            "bounds, in MuJoCo by a ctrlrange of the actuators"
        )
    space = base.observation_space
    if spec.keys and not getattr(space, "keys", None):
        from walle.envs.observations import ObservationRows

        ObservationRows(space, spec.id, keys=spec.keys)  # refuses them
    map_ = transforms.action_map(base.action_space, spec)
    scale = spec.frame_skip / (base.episode_limit or 1000) if spec.time_feature else None
    offset = None if hasattr(space, "layout") else spec.offset  # rows with a layout subtract it
    unchanged = map_ is None and scale is None and offset is None
    return base if unchanged else transforms.MappedLanes(base, map_, scale, offset)


def _simulation(spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role) -> Lanes:
    """The simulation by `spec.backend`; "auto" is the fastest one with Gymnasium's results."""
    if spec.backend in ("mujoco", "auto"):
        with blocked_signals(SIGINT):  # MuJoCo, if interrupted, fails with an ImportError
            from walle.envs.mujoco.registry import make_mujoco_lanes, why_not

        if spec.backend == "mujoco" or why_not(spec) is None:
            return make_mujoco_lanes(spec, lanes, seed, role)
    if spec.backend == "envpool":
        from walle.envs.envpool_lanes import EnvpoolLanes

        return EnvpoolLanes(spec, lanes, seed, role)
    from walle.envs.gymnasium_lanes import GymnasiumLanes

    return GymnasiumLanes(spec, lanes, seed, role)
