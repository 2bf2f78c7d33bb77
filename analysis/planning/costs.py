"""Costs of the parts of a round, and the machines over which it may be spread."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Seconds for each sampler of a machine, measured with 64 samplers' pipes and slots in one process
# (AMD EPYC): reading and copying a rollout; waking a sampler; looking after all samplers each time
# that the agent wakes.
RECEIVE_S, PUBLISH_S, WAKE_S = 35e-6, 3e-6, 4.5e-6
COPY_BYTES_S = 4e9  # of one core, for what other machines send: copying 32 to 128 MB took 3 to 8e9
# A call for one lane and for K lanes more costs as (C + 1) to (C + 1 + K) with these C, the lanes
# that the call itself is worth: `python benchmarks/lanes.py --tasks HalfCheetah` (64x64 nets).
ACT_CALL_LANES, ENV_CALL_LANES = 36.0, 2.3
# The same for a sampler's bookkeeping of a rollout: `env=slow` in 64 lanes, one sampler (1.26 ms)
# and 64 (0.61 ms each).
ROLLOUT_LANES = 60.0
LEARN_DIVISIBLE = 0.75  # of learning in minibatches of 1,024 and more (docs/scaling.md)


@dataclass(frozen=True)
class Network:
    """What lies between the machines; times in seconds, sizes in bytes.

    Attributes:
        bandwidth: bytes a second of the agent's link.
        latency_s: the time of an empty message, one way.
        exchange_s: what the software adds to a message and its answer, whatever their size.
        step_bytes: experience of one environment step.
        policy_bytes: one policy.
    """

    bandwidth: float = 1.25e9
    latency_s: float = 0.5e-3
    exchange_s: float = 10e-3
    step_bytes: float = 200.0
    policy_bytes: float = 100e3


@dataclass(frozen=True)
class Setup:
    """The processes of a run and their machines.

    Attributes:
        samplers: N, dealt to the machines evenly.
        learners: L, all on the first machine, as the agent is.
        machines: M.
        cores: of each machine; None: as many as there are processes.
        max_lag: as `sampler.max_lag`; None: free-running.
        network: what lies between the machines.
    """

    samplers: int
    learners: int = 1
    machines: int = 1
    cores: int | None = None
    max_lag: int | None = 0
    network: Network = Network()

    @property
    def dealt(self) -> tuple[int, ...]:
        """The samplers of each machine that has any, the most first."""
        used = min(self.machines, self.samplers)
        share, more = divmod(self.samplers, used)
        return (share + 1,) * more + (share,) * (used - more)

    @property
    def paid_cores(self) -> int:
        """Cores that the run occupies: in lock-step samplers and learners use them in turn."""
        first, *others = self.dealt
        own = max(first, self.learners) if self.max_lag == 0 else first + self.learners
        most = self.cores or own
        return min(own, most) + sum(min(n, self.cores or n) for n in others)


@dataclass(frozen=True)
class Costs:
    """Mean costs of a round of `steps` steps in each of `lanes` lanes, in seconds.

    A sampler with l lanes calls the policy and steps its lanes `steps` times. Each call takes
    `act_call_s + l act_lane_s` and `env_call_s + l (env_cpu_s + env_wait_s)`.

    Attributes:
        steps: T.
        lanes: over all samplers.
        env_cpu_s: of a core, for a step of one lane.
        env_wait_s: that a step of one lane waits for something other than a core.
        env_var: variance of the seconds of a step of one lane, independent of all other steps.
        env_call_s: of a call that steps lanes, besides the lanes.
        act_call_s: of a call of the policy, besides the lanes.
        act_lane_s: of a call of the policy, for each lane.
        rollout_s: of a sampler for each rollout, besides all calls.
        send_lane_s: of a sampler to record a lane of a rollout and to hand it over.
        learn_s: of one learner for the round.
        divisible: the share of `learn_s` that learners divide.
        most_learners: learners beyond this number have nothing to do.
        serial_s: of the agent from a round's arrival to the new policy, besides learning and what
            grows with the samplers.
        after_s: of the agent after publishing, before it waits for the next round.
        receive_s: of the agent for each sampler and round.
        publish_s: of the agent to wake each sampler.
        wake_s: of the agent for each sampler, each time that a rollout wakes it.
    """

    steps: int
    lanes: int
    env_cpu_s: float = 0.0
    env_wait_s: float = 0.0
    env_var: float = 0.0
    env_call_s: float = 0.0
    act_call_s: float = 0.0
    act_lane_s: float = 0.0
    rollout_s: float = 0.0
    send_lane_s: float = 0.0
    learn_s: float = 0.0
    divisible: float = LEARN_DIVISIBLE
    most_learners: int = 1
    serial_s: float = 0.0
    after_s: float = 0.0
    receive_s: float = RECEIVE_S
    publish_s: float = PUBLISH_S
    wake_s: float = WAKE_S

    def for_samplers(self, samplers: int) -> Costs:
        """The costs of a round for so many samplers, each of which needs a lane.

        More samplers than lanes add lanes that are shorter, so that the round keeps its steps; it
        has at least a step a lane.
        """
        if samplers <= self.lanes:
            return self
        return self.reshaped(max(1, round(self.round_steps / samplers)), samplers)

    def reshaped(self, steps: int, lanes: int) -> Costs:
        """The costs of a round of another shape; learning costs as much for each step."""
        scale = steps * lanes / self.round_steps
        return replace(self, steps=steps, lanes=lanes, learn_s=self.learn_s * scale)

    @property
    def round_steps(self) -> int:
        """Environment steps of a round."""
        return self.steps * self.lanes

    def own_lanes(self, samplers: int) -> int:
        """The lanes of the sampler that has most."""
        return math.ceil(self.lanes / samplers)

    def learning_s(self, learners: int) -> float:
        """Seconds of learning from a round with so many learners."""
        useful = min(learners, self.most_learners)
        return self.learn_s * (1 - self.divisible + self.divisible / useful)

    def cpu_s(self, samplers: int) -> float:
        """Seconds of a core that the sampler with the most lanes needs for its rollout."""
        own = self.own_lanes(samplers)
        calls = self.act_call_s + self.env_call_s + own * (self.act_lane_s + self.env_cpu_s)
        return self.rollout_s + own * self.send_lane_s + self.steps * calls

    def wait_s(self, samplers: int) -> float:
        """Seconds of its rollout in which the same sampler needs no core."""
        return self.steps * self.own_lanes(samplers) * self.env_wait_s

    def alone_s(self, samplers: int) -> float:
        """Seconds of its rollout with a core of its own."""
        return self.cpu_s(samplers) + self.wait_s(samplers)

    def deviation_s(self, samplers: int) -> float:
        """The standard deviation of the seconds of its rollout."""
        return math.sqrt(self.steps * self.own_lanes(samplers) * self.env_var)

    def taking_s(self, setup: Setup) -> float:
        """Seconds of the agent to take a complete round: its samplers, then other machines'."""
        first, *others = setup.dealt
        local = (self.receive_s + 1.5 * self.wake_s) * first
        remote = sum(others) / setup.samplers * self.round_steps * setup.network.step_bytes
        return local + self.receive_s * len(others) + remote / COPY_BYTES_S
