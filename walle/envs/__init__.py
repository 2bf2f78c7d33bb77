"""Lanes: batches of environments that step together inside one sampler."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym

from walle.envs.lanes import EnvSpec, Lanes, Step
from walle.streams import Role

__all__ = ["EnvSpec", "Lanes", "Step", "make_lanes"]


def make_lanes(spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role = "train") -> Lanes:
    """Builds the lanes numbered `lanes` of a run.

    A lane's number in the whole run, the seed and the role decide its random streams.

    Raises:
        ConfigError: the environment does not exist, or walle cannot simulate it as `spec` asks.
    """
    from walle.envs.transforms import RescaledActions, TimeFeature

    base = _simulation(spec, lanes, seed, role)
    if spec.keys and not getattr(base.observation_space, "keys", None):
        from walle.envs.observations import ObservationRows

        ObservationRows(base.observation_space, spec.id, spec.keys)  # refuses them
    if spec.action != "raw" and isinstance(base.action_space, gym.spaces.Box):
        base = RescaledActions(base, rescale=spec.action == "rescale")
    if spec.time_feature:
        base = TimeFeature(base, scale=spec.frame_skip / (base.episode_limit or 1000))
    return base


def _simulation(spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role) -> Lanes:
    """The simulation by `spec.backend`; "auto" is the fastest one with Gymnasium's results."""
    if spec.backend in ("mujoco", "auto"):
        from walle.envs.mujoco.registry import make_mujoco_lanes, why_not

        if spec.backend == "mujoco" or why_not(spec) is None:
            return make_mujoco_lanes(spec, lanes, seed, role)
    if spec.backend == "envpool":
        from walle.envs.envpool_lanes import EnvpoolLanes

        return EnvpoolLanes(spec, lanes, seed, role)
    from walle.envs.gymnasium_lanes import GymnasiumLanes

    return GymnasiumLanes(spec, lanes, seed, role)
