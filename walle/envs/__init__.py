"""Lanes: batches of environments that step together inside one sampler."""

from __future__ import annotations

from collections.abc import Sequence

from walle.envs.lanes import EnvSpec, Lanes, Step
from walle.streams import Role

__all__ = ["EnvSpec", "Lanes", "Step", "make_lanes"]


def make_lanes(spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role = "train") -> Lanes:
    """Builds the lanes numbered `lanes` of a run.

    Args:
        spec: what to build.
        lanes: the lanes' numbers in the whole run; a lane's number decides its random streams.
        seed: the run's seed.
        role: training and evaluation draw from disjoint streams.

    Raises:
        ConfigError: the environment does not exist, or asks for what walle cannot give.
    """
    from walle.envs.transforms import RescaledActions, TimeFeature

    base = _simulated(spec, lanes, seed, role)
    if spec.action != "raw":
        base = RescaledActions(base, rescale=spec.action == "rescale")
    if spec.time_feature:
        base = TimeFeature(base, scale=spec.frame_skip / (base.episode_limit or 1000))
    return base


def _simulated(spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role) -> Lanes:
    """The environments themselves, by the backend asked for or the fastest with equal results."""
    if spec.backend == "mujoco" or (spec.backend == "auto" and _fits_mujoco(spec)):
        from walle.envs.mujoco.registry import make_mujoco_lanes

        return make_mujoco_lanes(spec, lanes, seed, role)
    if spec.backend == "envpool":
        from walle.envs.envpool_lanes import EnvpoolLanes

        return EnvpoolLanes(spec, lanes, seed, role)
    from walle.envs.gymnasium_lanes import GymnasiumLanes

    return GymnasiumLanes(spec, lanes, seed, role)


def _fits_mujoco(spec: EnvSpec) -> bool:
    from walle.envs.mujoco.registry import why_not

    return why_not(spec) is None
