"""A sampler: acts in its lanes under a frozen policy and hands over what it saw."""

from __future__ import annotations

import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from walle.envs import EnvSpec, Lanes, make_lanes
from walle.errors import ConfigError, RolloutError
from walle.nets.mlp import ACTING_ROWS, Forward
from walle.nets.normalize import normalize_into
from walle.nets.policies import ActingPolicy
from walle.nets.recurrent import memory_of
from walle.processes.workers import become_worker
from walle.streams import action_noise
from walle.timing import SAMPLER_SECTIONS, Timer, TraceFile
from walle.transport.queues import Closed, PolicyReader, SlotWriter
from walle.transport.slots import Slot
from walle.types import AnyArray, BoolArray, FloatArray, PolicySnapshot, Rollout

PolicyFactory = Callable[[], ActingPolicy]


class Actor:
    """A policy with the parameters and the frozen normaliser of one snapshot.

    Rows are padded to a multiple of `ACTING_ROWS`, so that a lane acts the same in whichever
    sampler it lives.

    Attributes:
        state: [L, S] what the policy remembers; S = 0 where it has no memory.
    """

    def __init__(self, policy: ActingPolicy, obs_dim: int, lanes: int, clip: float | None) -> None:
        """Acts for `lanes` lanes; normalised observations are clipped to [-clip, clip]."""
        self.policy = policy
        self.params: dict[str, Tensor] = {}
        self._clip = clip
        self._lanes = lanes
        self._padded = torch.zeros(-(-lanes // ACTING_ROWS) * ACTING_ROWS, obs_dim)
        self._x: FloatArray = self._padded.numpy()[:lanes]
        self._memory = memory_of(policy)
        units = self._memory.units if self._memory else 0
        self._state = torch.zeros(len(self._padded), units)
        self.state: FloatArray = self._state.numpy()[:lanes]
        self._mean: FloatArray = np.zeros(obs_dim, np.float32)
        self._inv_std = self._mean
        self._forward: Forward = lambda x: x

    def load(self, snapshot: PolicySnapshot) -> None:
        """Takes over the snapshot's parameters and normaliser."""
        vector = snapshot.vector.copy()
        size = self.policy.layout.size
        self.params = self.policy.layout.unflatten(torch.from_numpy(vector[:size]))
        self._mean, self._inv_std = vector[size:].reshape(2, -1)
        self._forward = forward = self.policy.acting(self.params, len(self._padded))
        if self._memory:
            remember = self._memory.acting(self.params, self._state)
            self._forward = lambda x: forward(remember(x))

    def forget(self, lanes: BoolArray) -> None:
        """Clears the memory of the marked lanes ([L]), where an episode begins."""
        self.state[lanes] = 0

    def dist_params(self, obs: FloatArray) -> Tensor:
        """[L, O] raw observations -> [L, H]; overwritten by the next call."""
        normalize_into(self._x, obs, self._mean, self._inv_std, self._clip)
        return self._forward(self._padded)[: self._lanes]


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
    _check_finite(out)


def _check_finite(rollout: Rollout) -> None:
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


class Sampler(Protocol):
    """Everything a sampler is, but its process."""

    def fill(self, slot: Slot, snapshot: PolicySnapshot, timer: Timer) -> None:
        """Collects one rollout under `snapshot` into `slot`."""
        ...

    def close(self) -> None:
        """Closes the lanes."""
        ...


class LaneSampler:
    """The lanes of one sampler with their noise, which run for a fixed number of steps."""

    def __init__(self, lanes: Lanes, actor: Actor, numbers: Sequence[int], seed: int) -> None:
        """`numbers` are the lanes' numbers in the whole run; they decide the noise."""
        self._lanes, self._actor = lanes, actor
        self._numbers = np.asarray(numbers, np.int64)
        self._noise = [action_noise(seed, number) for number in numbers]
        self._obs = lanes.reset()

    def fill(self, slot: Slot, snapshot: PolicySnapshot, timer: Timer) -> None:
        """Collects one rollout under `snapshot` into `slot`."""
        slot.rows[0] = snapshot.rows or len(slot.rollout.reward)
        rollout = slot.filled
        self._actor.load(snapshot)
        rollout.obs[0] = self._obs
        rollout.lane[:] = self._numbers
        rollout.policy_version[:] = snapshot.version
        rollout.state[:] = self._actor.state
        draws = [self._actor.policy.noise(rng, len(rollout.reward)) for rng in self._noise]
        collect(self._lanes, self._actor, np.stack(draws, 1), rollout, timer)
        self._obs = rollout.obs[-1].copy()

    def close(self) -> None:
        """Closes the lanes."""
        self._lanes.close()


@dataclass(frozen=True)
class SamplerTask:
    """What a sampler process needs to begin. Picklable.

    Attributes:
        index: the sampler's number.
        env: what its lanes are.
        lanes: the numbers of its lanes.
        policy: makes the policy network.
        obs_dim: O.
        clip: bound of normalised observations.
        seed: the run's seed.
        max_lag: how many versions behind it may act; None for the newest there is.
        rounds: how many rollouts it owes; None for until it is told to end.
        core: the core to be pinned to, if any.
        trace: file to append spans to, if any, and the clock's zero.
        episodes_over: where rounds are made of whole episodes, the lanes of the run; else None.
    """

    index: int
    env: EnvSpec
    lanes: tuple[int, ...]
    policy: PolicyFactory
    obs_dim: int
    clip: float | None
    seed: int
    max_lag: int | None
    rounds: int | None
    core: int | None
    trace: tuple[Path, int] | None
    episodes_over: int | None = None

    @property
    def name(self) -> str:
        """As it appears in files and messages."""
        return f"sampler-{self.index}"

    def build(self) -> Sampler:
        """Makes the lanes and the actor; in a sampler process, or in the agent's when serial."""
        lanes = make_lanes(self.env, self.lanes, self.seed)
        actor = Actor(self.policy(), self.obs_dim, len(self.lanes), self.clip)
        if self.episodes_over is None:
            return LaneSampler(lanes, actor, self.lanes, self.seed)
        from walle.collecting.episodes import EpisodeSampler

        return EpisodeSampler(lanes, actor, self.lanes, self.seed, self.episodes_over)


def run_sampler(task: SamplerTask, experience: SlotWriter, policies: PolicyReader) -> None:
    """The body of a sampler process."""
    become_worker(threads=1)
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    with ExitStack() as stack:
        try:
            _sample(task, experience, policies, stack)
        except Closed:
            return
        except (RolloutError, ConfigError) as error:  # all there is to say, but for its notes
            experience.fail("\n".join([str(error), *getattr(error, "__notes__", [])]))
            sys.exit(1)
        except BaseException:  # noqa: BLE001 - whatever it was, the agent hears of it
            experience.fail(traceback.format_exc())
            sys.exit(1)


def _sample(
    task: SamplerTask, experience: SlotWriter, policies: PolicyReader, stack: ExitStack
) -> None:
    """Collects until told to end; what is to be closed after that goes to `stack`."""
    timer = Timer(SAMPLER_SECTIONS, trace=task.trace is not None)
    trace = TraceFile(task.trace[0], task.name, task.trace[1]) if task.trace else None
    sampler = task.build()
    stack.callback(sampler.close)
    experience.ready()
    round_ = 0
    while task.rounds is None or round_ < task.rounds:
        timer.switch("wait_slot")
        number = experience.claim()
        timer.switch("wait_policy")
        oldest = 0 if task.max_lag is None else max(0, round_ - task.max_lag)
        snapshot = policies.get(oldest, newest=task.max_lag is None)
        slot = experience.slot(number)
        slot.began_ns[0] = timer.switch("other")
        sampler.fill(slot, snapshot, timer)
        timer.switch("send")
        if trace:
            trace.write(timer.spans())
        slot.sections_s[:] = list(timer.collect().values())
        experience.send(number)
        round_ += 1
    while True:  # the agent may still be learning; it says when to end
        experience.claim()
