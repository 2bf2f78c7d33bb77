"""Lanes that step together under one policy, and go on from any states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from walle.envs import Lanes
from walle.envs.lanes import StateArray
from walle.sampling.actor import Actor
from walle.sampling.finite import check_finite
from walle.streams import ActionNoise
from walle.timing import Timer
from walle.types import AnyArray, FloatArray, PolicySnapshot, Rollout

Stop = Callable[[int], bool]


class LaneStates(NamedTuple):
    """The states of L lanes: [L, W] as `Lanes.state` gives them, and the policy's memory [L, S]."""

    state: StateArray
    memory: FloatArray

    def of(self, lanes: slice) -> LaneStates:
        """The states of some of the lanes."""
        return LaneStates(self.state[lanes], self.memory[lanes])


class Lender(Protocol):
    """The end of a sampler that may lend lanes to one that has nothing to do."""

    def asked(self, step: int) -> bool:
        """Notes that the round is at `step`; returns whether somebody asks, and it is worth it."""
        ...

    def lend(self, states: LaneStates, step: int) -> int:
        """Lends the last of the lanes from `step` on; returns how many lanes are kept."""
        ...

    def take_back(self, lanes: int) -> LaneStates | None:
        """Waits for the `lanes` that were lent; returns None if nobody steps them."""
        ...


class LaneGroup:
    """Lanes with an actor and streams of noise."""

    def __init__(self, lanes: Lanes, actor: Actor, numbers: Sequence[int], seed: int) -> None:
        """`numbers` are the lanes' numbers in the run, which decide the streams of noise."""
        self.lanes, self.actor = lanes, actor
        self._noise = [ActionNoise(seed, number) for number in numbers]

    def collect(
        self, out: Rollout, round_: int, begin: int, timer: Timer, stop: Stop | None = None
    ) -> int:
        """Fills `out` from the step `begin` on; returns the step at which `stop` held, else T.

        The lanes must be where that step begins, and `out.obs[begin]` must hold what they show.
        """
        steps = len(out.reward)
        noise = self.actor.policy.noise
        draws = [noise(stream.of_round(round_), steps)[begin:] for stream in self._noise]
        part = out.between(begin, steps)
        return begin + collect(self.lanes, self.actor, np.stack(draws, 1), part, timer, stop, begin)

    def go_on(
        self,
        states: LaneStates,
        snapshot: PolicySnapshot,
        out: Rollout,
        round_: int,
        begin: int,
        timer: Timer,
        stop: Stop | None = None,
    ) -> LaneStates | None:
        """Fills `out` from the step `begin` on; returns the states after it, None if stopped."""
        self.actor.load(snapshot)
        self.lanes.restore(states.state)
        self.actor.state[:] = states.memory
        finished = self.collect(out, round_, begin, timer, stop) == len(out.reward)
        return self.states() if finished else None

    def states(self) -> LaneStates:
        """The states of the lanes."""
        state = self.lanes.state()
        assert state is not None
        return LaneStates(state, self.actor.state.copy())


@torch.inference_mode()
def collect(
    lanes: Lanes,
    actor: Actor,
    noise: AnyArray,
    out: Rollout,
    timer: Timer,
    stop: Stop | None = None,
    first_step: int = 0,
) -> int:
    """Fills `out` with T steps of all lanes; `out.obs[0]` must hold the current observations.

    Args:
        lanes: L lanes.
        actor: the policy.
        noise: [T, L, *N] the noise for the policy's draws.
        out: receives the steps; `lane`, `policy_version` and `state` are not written.
        timer: measures the sections `act` and `env_step`.
        stop: gets a step's number before the step; if it returns True, the steps end there.
        first_step: the number of the first step.

    Returns:
        the number of steps taken.

    Raises:
        RolloutError: an observation, a reward or the policy's output is not finite.
    """
    policy, actions = actor.policy, torch.from_numpy(out.action)
    dist_params = torch.empty(*out.reward.shape, policy.dist_params_size)
    scaled = policy.scale_noise(actor.params, torch.from_numpy(noise))
    steps = len(out.reward)
    for t, (noise_t, dist_params_t, action) in enumerate(
        zip(scaled, dist_params, actions, strict=True)
    ):
        if stop is not None and stop(first_step + t):
            steps = t
            break
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
    if steps:
        dist = policy.distribution(actor.params, dist_params[:steps])
        out.log_prob[:steps] = policy.log_prob(dist, actions[:steps]).numpy()
    timer.switch("other")
    check_finite(out.between(0, steps), first_step)
    return steps
