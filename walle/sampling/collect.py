"""Collects rollouts, which depend only on the policy, the round and the states of the lanes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from walle.envs import Lanes
from walle.envs.lanes import restart, unusable
from walle.errors import RolloutError
from walle.sampling.actor import Actor
from walle.sampling.lane_book import LaneBlock
from walle.streams import ActionNoise
from walle.timing import Timer
from walle.types import SIDE_BY_SIDE, AnyArray, BoolArray, Filled, PolicySnapshot, Rollout

_SELDOM = 200  # exports of lanes' states are at least this many times their own duration apart
Fault = tuple[int, int]  # the step and the column of a lane that failed


@torch.inference_mode()
def collect(
    lanes: Lanes, actor: Actor, noise: AnyArray, out: Rollout, timer: Timer, first: int = 0
) -> list[Fault]:
    """Fills `out` from step `first` on; `out.obs[first]` must hold the current observations.

    The policy draws with `noise`, [T - first, L, *N]. The caller fills `lane`, `policy_version` and
    `state`; only a fault changes `state`. Returns the faults that `env.on_error=reset` tolerated.
    Raises RolloutError if an observation, a reward or the policy's output is not finite.
    """
    policy, actions = actor.policy, torch.from_numpy(out.action[first:])
    dist_params = torch.empty(*out.reward[first:].shape, policy.dist_params_size)
    scaled = policy.scale_noise(actor.params, torch.from_numpy(noise))
    faults: list[Fault] = []

    def conclude(end: int) -> None:
        timer.switch("act")
        dist = policy.distribution(actor.params, dist_params[: end - first])
        out.log_prob[first:end] = policy.log_prob(dist, actions[: end - first]).numpy()
        timer.switch("other")
        check_finite(out.between(first, end), first)

    if lanes.failed is not None:
        bad = unusable(lanes, out.obs[first])
        faults += [(first, i) for i in restart(lanes, bad, out.obs[first])]
    for t, (noise_t, dist_params_t, action) in enumerate(
        zip(scaled, dist_params, actions, strict=True), first
    ):
        timer.switch("act")
        policy.sample(dist_params_t.copy_(actor.dist_params(out.obs[t])), noise_t, action)
        timer.switch("env_step")
        try:
            step = lanes.step(out.action[t])
        except Exception:
            if not torch.isfinite(dist_params_t).all():  # the fault may be the action's
                conclude(t + 1)
            raise
        out.obs[t + 1] = step.obs
        out.reward[t] = step.reward
        out.terminated[t] = step.terminated
        out.truncated[t] = step.truncated
        if step.info is not None:
            out.info[t] = step.info
        if step.final_obs is not None:
            ended = step.terminated | step.truncated
            out.final_obs[t, ended] = step.final_obs[ended]
            actor.forget(ended)
        if lanes.failed is not None and (bad := _failed(lanes, out, t)).any():
            faults += _step_again(lanes, actor, out, t, bad, noise_t, dist_params_t)
    conclude(len(out.reward))
    return faults


def _failed(lanes: Lanes, out: Rollout, t: int) -> BoolArray:
    """The lanes, [L], whose step t, or the start of an episode after it, cannot be used."""
    bad = unusable(lanes, out.reward[t], out.obs[t + 1])
    bad |= out.ended[t] & unusable(lanes, out.final_obs[t])
    return bad


def _step_again(
    lanes: Lanes,
    actor: Actor,
    out: Rollout,
    t: int,
    bad: BoolArray,
    noise: Tensor,  # [L, *N] of step t
    dist_params: Tensor,  # [L, H] of step t; those of new steps are written here
) -> list[Fault]:
    """Replaces step t of the lanes `bad` by the first step of their next episodes.

    Their episodes are truncated after step t - 1, whose successor is the observation at which step
    t failed. If t = 0, step t - 1 belongs to the rollout before, and nothing must be marked: the
    last step of a rollout is bootstrapped from that observation anyway.
    """
    faults: list[Fault] = []
    while bad.any() and torch.isfinite(dist_params).all():  # else the policy has diverged
        cut = bad & ~out.ended[t - 1] if t else np.zeros_like(bad)
        if t:
            out.truncated[t - 1, cut] = True
            out.final_obs[t - 1, cut] = out.obs[t, cut]
        elif out.begins.size:
            out.begins[bad], out.state[bad] = True, 0
        faults += [(t - int(cut[i]), i) for i in restart(lanes, bad, out.obs[t], faults)]
        memory = actor.state.copy()
        actor.forget(bad)
        fresh = actor.dist_params(out.obs[t])
        actor.state[~bad] = memory[~bad]
        action = torch.from_numpy(out.action[t].copy())
        actor.policy.sample(fresh, noise, action)
        dist_params[bad] = fresh[bad]
        out.action[t, bad] = action.numpy()[bad]
        step = lanes.step(out.action[t], np.flatnonzero(bad))
        out.obs[t + 1, bad], out.reward[t, bad] = step.obs[bad], step.reward[bad]
        out.terminated[t, bad], out.truncated[t, bad] = step.terminated[bad], step.truncated[bad]
        if step.info is not None:
            out.info[t, bad] = step.info[bad]
        if step.final_obs is not None:
            out.final_obs[t, bad] = step.final_obs[bad]
            actor.forget(bad & out.ended[t])
        bad = bad & _failed(lanes, out, t)
    return faults


def check_finite(rollout: Rollout, first: int) -> None:
    """Raises RolloutError for the first non-finite number that learning uses.

    `first` is the number of the first of these steps in the whole rollout.
    """
    used = (rollout.reward, rollout.obs, rollout.final_obs[rollout.ended], rollout.log_prob)
    # A sum is quick. It is finite if all numbers are, unless it overflows.
    if all(math.isfinite(torch.from_numpy(values).sum()) for values in used):
        return
    finals = np.where(rollout.ended[..., None], rollout.final_obs, 0)
    checked = {  # in the order of a step
        "an observation": rollout.obs,
        "the policy": rollout.log_prob,
        "a reward": rollout.reward,
        "a last observation of an episode": finals,
    }
    faults = []
    for name, values in checked.items():
        finite = np.isfinite(values)
        if not finite.all():
            step, lane = np.argwhere(~finite.reshape(*finite.shape[:2], -1).all(-1))[0]
            faults.append((first + int(step), int(rollout.lane[lane]), name, values[step, lane]))
    if not faults:
        return
    step, lane, name, value = min(faults, key=lambda fault: fault[0])
    if name == "the policy":
        raise RolloutError(
            "the policy has diverged: its actions have a log-probability that is not finite; "
            "lower algo.learning_rate, or bound the gradient with algo.max_grad_norm"
        )
    raise RolloutError(
        f"the environment gave {name} of {value} in lane {lane} at step {step} of the rollout; a "
        "policy cannot learn from it: clip or mask it in the environment"
    )


class LaneSampler:
    """A sampler whose lanes run for a fixed number of steps."""

    def __init__(
        self,
        lanes: Lanes,
        actor: Actor,
        numbers: Sequence[int],  # the lanes' numbers in the run, which decide the streams of noise
        seed: int,
        start: LaneBlock | None = None,  # the lanes' states; None for new episodes
        exact: bool = True,  # whether the same state and actions lead to the same states again
    ) -> None:
        """Starts episodes in all lanes, or continues from `start`."""
        self.lanes, self._actor, self._numbers = lanes, actor, tuple(numbers)
        self._noise = [ActionNoise(seed, number) for number in numbers]
        self._taken_at, self._taking_s = -math.inf, 0.0
        self._seldom = _SELDOM if exact else 0
        self._begins = start is None
        if start is None:
            self._obs = lanes.reset()
        else:
            lanes.restore(start.state)
            self._obs, actor.state[:] = start.obs, start.memory

    def fill(self, out: Rollout, snapshot: PolicySnapshot, round_: int, timer: Timer) -> Filled:
        """Collects the rollout of a round under `snapshot` into the arrays of `out`.

        It has `snapshot.rollout_steps` steps, or as many as `out` can hold if that is None. The
        result depends only on the lanes' states before it, `snapshot` and `round_`.
        """
        steps = snapshot.rollout_steps or len(out.reward)
        rollout = out.between(0, steps)
        self._actor.load(snapshot)
        rollout.obs[0] = self._obs
        rollout.lane[:] = self._numbers
        rollout.policy_version[:] = snapshot.version
        rollout.state[:] = self._actor.state
        rollout.begins[:], self._begins = self._begins, False
        noise = self._actor.policy.noise
        draws = [noise(stream.of_round(round_), steps) for stream in self._noise]
        faults = collect(self.lanes, self._actor, np.stack(draws, 1), rollout, timer)
        if faults:  # a replay of the actions would not repeat the restarts: export states now
            self._taken_at = -math.inf
        self._obs = rollout.obs[-1].copy()
        return Filled(steps, SIDE_BY_SIDE, len(faults))

    def export_states(self, states: AnyArray, memory: AnyArray) -> int:
        """Writes what the lanes' future depends on, besides the last observation.

        `states`, [L, W], receives `Lanes.state`, and `memory`, [L, S], the policy's memory. Returns
        the number of bytes written per lane, 0 if the last export is too recent or the states
        cannot be written; whoever needs the states then replays the actions since the last
        export.
        """
        memory[:] = self._actor.state
        start = time.perf_counter()
        if not states.size or start - self._taken_at < self._seldom * self._taking_s:
            return 0
        try:
            taken = self.lanes.state()
        except Exception:  # noqa: BLE001 - since its trial it may hold what cannot be pickled
            taken = None
        self._taken_at = time.perf_counter()
        self._taking_s = self._taken_at - start
        if taken is None or taken.shape[1] > states.shape[1]:
            return 0
        width = int(taken.shape[1])
        states[:, :width] = taken
        return width
