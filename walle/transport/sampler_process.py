"""The body of a sampler process, and what it is told."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from walle.collecting.actor import Actor
from walle.collecting.episodes import EpisodeSampler
from walle.collecting.sampler import LaneSampler, Sampler
from walle.envs import EnvSpec, make_lanes
from walle.errors import ConfigError, RolloutError
from walle.nets.policies import ActingPolicy
from walle.processes.workers import become_worker
from walle.timing import SAMPLER_SECTIONS, Timer, TraceFile
from walle.transport.experience_queue import SlotWriter
from walle.transport.messages import Closed
from walle.transport.policy_queue import PolicyReader
from walle.transport.slots import Slot
from walle.types import Lag, PolicySnapshot

PolicyFactory = Callable[[], ActingPolicy]


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
        lag: how many versions behind it may act.
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
    lag: Lag
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
    filler = SlotFiller(task)
    stack.callback(filler.close)
    experience.ready()
    round_ = 0
    while task.rounds is None or round_ < task.rounds:
        filler.timer.switch("wait_slot")
        number = experience.claim()
        filler.timer.switch("wait_policy")
        snapshot = policies.get(task.lag.oldest(round_), newest=task.lag.free_running)
        filler.fill(experience.slot(number), snapshot)
        experience.send(number)
        round_ += 1
    while True:  # the agent may still be learning; it says when to end
        experience.claim()


class SlotFiller:
    """A sampler that fills slots, and writes into each when it worked and where the time went."""

    def __init__(self, task: SamplerTask) -> None:
        """Makes the lanes and the actor."""
        self.timer = Timer(SAMPLER_SECTIONS, trace=task.trace is not None)
        self._trace = TraceFile(task.trace[0], task.name, task.trace[1]) if task.trace else None
        self._sampler = task.build()

    def fill(self, slot: Slot, snapshot: PolicySnapshot) -> None:
        """Collects one rollout under `snapshot`, ready to be handed over."""
        slot.began_ns[0] = self.timer.switch("other")
        filled = self._sampler.fill(slot.rollout, snapshot, self.timer)
        slot.steps[0], slot.lane_steps[:] = filled
        self.timer.switch("send")
        if self._trace:
            self._trace.write(self.timer.spans())
        slot.sections_s[:] = list(self.timer.take().values())
        slot.sent_ns[0] = time.monotonic_ns()

    def close(self) -> None:
        """Closes the lanes."""
        self._sampler.close()
