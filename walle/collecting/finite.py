"""Refusing a rollout that holds a number nobody can learn from."""

from __future__ import annotations

import math

import numpy as np
import torch

from walle.errors import RolloutError
from walle.types import AnyArray, BoolArray, Rollout


def check_finite(rollout: Rollout) -> None:
    """Checks every number of a rollout that learning will look at.

    Raises:
        RolloutError: one is not finite; the message names the first, with its lane and step.
    """
    ended = rollout.terminated | rollout.truncated
    looked_at = (rollout.reward, rollout.obs, rollout.final_obs[ended], rollout.log_prob)
    if not all(map(_sum_is_finite, looked_at)):
        _blame(rollout, ended)


def _blame(rollout: Rollout, ended: BoolArray) -> None:
    """Raises for the first number that is not finite, from which the others may follow.

    There is none if large ones only added up.
    """
    checked = {  # in the order of a step
        "an observation": rollout.obs,
        "the policy": rollout.log_prob,
        "a reward": rollout.reward,
        "a last observation of an episode": np.where(ended[..., None], rollout.final_obs, 0),
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
        f"the environment gave {name} of {value} in lane {lane} at step {step} of the rollout; "
        "a policy cannot learn from it: clip or mask it in the environment"
    )


def _sum_is_finite(values: AnyArray) -> bool:
    """False if any value is not finite; seldom also when large ones overflow. One quick pass."""
    return math.isfinite(torch.from_numpy(values).sum())
