"""Lanes: batches of environments that step together inside one sampler."""

from __future__ import annotations

from collections.abc import Sequence

from walle.envs.lanes import EnvSpec, Lanes, Role, Step, env_seed, noise_generator

__all__ = ["EnvSpec", "Lanes", "Role", "Step", "env_seed", "make_lanes", "noise_generator"]


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
    from walle.envs.gymnasium_lanes import GymnasiumLanes
    from walle.envs.transforms import RescaledActions, TimeFeature

    base: Lanes = GymnasiumLanes(spec, lanes, seed, role)
    if spec.action != "raw":
        base = RescaledActions(base, rescale=spec.action == "rescale")
    if spec.time_feature:
        base = TimeFeature(base, scale=spec.frame_skip / (base.episode_limit or 1000))
    return base
