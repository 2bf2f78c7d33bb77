"""The check that all numbers of a rollout are finite."""

from __future__ import annotations

import math

import numpy as np
import torch

from walle.errors import RolloutError
from walle.types import AnyArray, Rollout


def check_finite(rollout: Rollout, first_step: int = 0) -> None:
    """Checks every number of a rollout that learning uses; its first step has that number.

    Raises:
        RolloutError: a number is not finite; the message names the first, with its lane and step.
    """
    used = (rollout.reward, rollout.obs, rollout.final_obs[rollout.ended], rollout.log_prob)
    if not all(map(_sum_is_finite, used)):
        _raise_for_first(rollout, first_step)


def _raise_for_first(rollout: Rollout, first_step: int) -> None:
    """Raises RolloutError for the first number that is not finite.

    It returns if all numbers are finite, and only their sum overflowed.
    """
    checked = {  # in the order of a step
        "an observation": rollout.obs,
        "the policy": rollout.log_prob,
        "a reward": rollout.reward,
        "a last observation of an episode": np.where(
            rollout.ended[..., None], rollout.final_obs, 0
        ),
    }
    found = []
    for name, values in checked.items():
        finite = np.isfinite(values)
        if not finite.all():
            place = tuple(np.argwhere(~finite.reshape(*finite.shape[:2], -1).all(-1))[0])
            found.append((int(place[0]), int(rollout.lane[place[1]]), name, values[place]))
    if not found:
        return
    step, lane, name, value = min(found, key=lambda each: each[0])
    if name == "the policy":
        raise RolloutError(
            "the policy has diverged: its actions have a log-probability that is not finite; "
            "lower algo.learning_rate, or bound the gradient with algo.max_grad_norm"
        )
    raise RolloutError(
        f"the environment gave {name} of {value} in lane {lane} at step {first_step + step} of the "
        "rollout; a policy cannot learn from it: clip or mask it in the environment"
    )


def _sum_is_finite(values: AnyArray) -> bool:
    """A quick test: False if any value is not finite, and seldom also if the sum overflows."""
    return math.isfinite(torch.from_numpy(values).sum())
