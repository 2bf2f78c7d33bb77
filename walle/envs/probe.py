"""Trying an environment before anything starts."""

from __future__ import annotations

import numpy as np

from walle.envs import EnvSpec, Lanes, make_lanes
from walle.errors import ConfigError, RolloutError, what_went_wrong


def probe_lane(env: EnvSpec, seed: int) -> Lanes:
    """A lane that has been built, reset, stepped and closed.

    Raises:
        ConfigError: the environment, or what it was given, breaks on the way.
    """
    try:
        lane = make_lanes(env, [0], seed)
        lane.action_space.seed(seed)
        lane.reset()
        lane.step(np.asarray(lane.action_space.sample())[None])
        lane.close()
    except ConfigError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, RolloutError) else what_went_wrong(error)
        raise ConfigError(f"env.id={env.id} with env.kwargs={env.kwargs}: {what}") from error
    return lane
