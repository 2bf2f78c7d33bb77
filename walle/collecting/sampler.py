"""A sampler acts in its lanes under a frozen policy and fills rollouts with what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from walle.collecting.actor import Actor
from walle.collecting.finite import check_finite
from walle.envs import Lanes
from walle.streams import action_noise
from walle.timing import Timer
from walle.types import AnyArray, IntArray, PolicySnapshot, Rollout

SIDE_BY_SIDE: IntArray = np.zeros(0, np.int64)


class Filled(NamedTuple):
    """How much of a rollout's arrays a sampler has filled.

    Attributes:
        steps: T, the steps of every column.
        lane_steps: the steps of each lane, where the lanes are packed one after the other into one
            column; empty where they lie side by side.
    """

    steps: int
    lane_steps: IntArray


class Sampler(Protocol):
    """The work of one sampler, in whichever process."""

    def fill(self, out: Rollout, snapshot: PolicySnapshot, timer: Timer) -> Filled:
        """Collects one rollout under `snapshot` into the arrays of `out`."""
        ...

    def close(self) -> None:
        """Closes the lanes."""
        ...


class LaneSampler:
    """The lanes of one sampler, which run for a fixed number of steps."""

    def __init__(self, lanes: Lanes, actor: Actor, numbers: Sequence[int], seed: int) -> None:
        """`numbers` are the lanes' numbers in the whole run; they decide the noise."""
        self._lanes, self._actor = lanes, actor
        self._numbers = np.asarray(numbers, np.int64)
        self._noise = [action_noise(seed, number) for number in numbers]
        self._obs = lanes.reset()

    def fill(self, out: Rollout, snapshot: PolicySnapshot, timer: Timer) -> Filled:
        """Collects as many steps as `snapshot` asks for, or as `out` has room for."""
        steps = snapshot.rollout_steps or len(out.reward)
        rollout = out.between(0, steps)
        self._actor.load(snapshot)
        rollout.obs[0] = self._obs
        rollout.lane[:] = self._numbers
        rollout.policy_version[:] = snapshot.version
        rollout.state[:] = self._actor.state
        draws = [self._actor.policy.noise(rng, steps) for rng in self._noise]
        collect(self._lanes, self._actor, np.stack(draws, 1), rollout, timer)
        self._obs = rollout.obs[-1].copy()
        return Filled(steps, SIDE_BY_SIDE)

    def close(self) -> None:
        """Closes the lanes."""
        self._lanes.close()


@torch.inference_mode()
def collect(lanes: Lanes, actor: Actor, noise: AnyArray, out: Rollout, timer: Timer) -> None:
    """Fills `out` with T steps of all lanes; `out.obs[0]` holds where they stand.

    Args:
        lanes: L lanes.
        actor: the policy they act under.
        noise: [T, L, *N] what the policy's draws need.
        out: every array but `lane`, `policy_version` and `state` is written.
        timer: charged with `act` and `env_step`.

    Raises:
        RolloutError: an observation, a reward or the policy's output is not finite.
    """
    policy, actions = actor.policy, torch.from_numpy(out.action)
    dist_params = torch.empty(*out.reward.shape, policy.dist_params_size)
    scaled = policy.scale_noise(actor.params, torch.from_numpy(noise))
    steps = zip(scaled, dist_params, actions, strict=True)
    for t, (noise_t, dist_params_t, action) in enumerate(steps):
        timer.switch("act")
        policy.sample(dist_params_t.copy_(actor.dist_params(out.obs[t])), noise_t, action)
        timer.switch("env_step")
        step = lanes.step(out.action[t])
        out.obs[t + 1] = step.obs
        out.reward[t] = step.reward
        out.terminated[t] = step.terminated
        out.truncated[t] = step.truncated
        if step.final_obs is not None:
            ended = step.terminated | step.truncated
            out.final_obs[t, ended] = step.final_obs[ended]
            actor.forget(ended)
    timer.switch("act")
    dist = policy.distribution(actor.params, dist_params)
    out.log_prob[:] = policy.log_prob(dist, actions).numpy()
    timer.switch("other")
    check_finite(out)
