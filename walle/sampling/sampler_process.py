"""The body of a sampler process, and the task that describes it."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from walle.envs import EnvSpec, make_lanes
from walle.errors import ConfigError, RestoreError, RolloutError
from walle.nets.policies import ActingPolicy
from walle.sampling.actor import Actor
from walle.sampling.collect import LaneSampler
from walle.sampling.episodes import EpisodeSampler
from walle.sampling.lane_book import Blocks, LaneBlock, concatenated, replayed
from walle.sampling.queues import ANEW, READY, Closed, PolicyReader, SlotWriter
from walle.sampling.slots import Arena, Slot
from walle.streams import seed_anew, seed_globals
from walle.system.workers import become_worker
from walle.timing import SAMPLER_SECTIONS, Timer, TraceFile
from walle.types import IntArray, Lag, PolicySnapshot

PolicyFactory = Callable[[], ActingPolicy]


@dataclass(frozen=True)
class SamplerTask:
    """The description from which a sampler starts. Picklable."""

    index: int
    env: EnvSpec
    lanes: tuple[int, ...]  # the numbers of the sampler's lanes
    policy: PolicyFactory  # makes the policy network
    obs_dim: int
    clip: float | None  # bound of normalised observations; None for no bound
    seed: int
    lag: Lag  # the allowed lag in policy versions
    rounds: int | None  # number of rounds of the run; None to collect until the agent ends
    core: int | None  # the core to run on; None for any core
    # the file for spans and the zero of its clock in ns; None for no file
    trace: tuple[Path, int] | None
    # number of lanes of the run if rounds have whole episodes; else None
    episodes_over: int | None = None
    start: Blocks = ()  # the lanes before their next round, one block or several

    @property
    def blocks(self) -> Blocks:
        """The states from which the lanes start their next round."""
        return self.start or (LaneBlock.first(self.lanes),)

    @property
    def first_round(self) -> int:
        """The round that the sampler collects first."""
        return max(block.round for block in self.blocks)

    @property
    def name(self) -> str:
        """The name in files and messages."""
        return f"sampler-{self.index}"

    def dealt(self, blocks: Blocks) -> SamplerTask:
        """The task with other lanes, which start from `blocks`."""
        numbers = sorted(int(number) for block in blocks for number in block.numbers)
        return replace(self, lanes=tuple(numbers), start=blocks)

    def build(self, *, anew: bool) -> LaneSampler | EpisodeSampler:
        """Makes the lanes and the actor: with new episodes if `anew`, else continuing from `start`.

        Raises RestoreError if the environment does not continue from there.
        """
        actor = Actor(self.policy(), self.obs_dim, len(self.lanes), self.clip)
        if self.episodes_over is not None:
            lanes = make_lanes(self.env, self.lanes, self.seed)
            return EpisodeSampler(lanes, actor, self.lanes, self.seed, self.episodes_over)
        start = None
        if self.first_round and not anew:
            start = concatenated([replayed(block, self.env, self.seed) for block in self.start])
        env_seed = seed_anew(self.seed, self.first_round) if anew else self.seed
        lanes = make_lanes(self.env, self.lanes, env_seed)
        return LaneSampler(lanes, actor, self.lanes, self.seed, start, self.env.exact)


def run_sampler(
    task: SamplerTask, experience: SlotWriter, policies: PolicyReader, boards: Arena
) -> None:
    """The body of a sampler process: collects until the agent asks it to end.

    In its row of `boards` it shows the current section of its timer.
    """
    become_worker(threads=1)
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    with ExitStack() as stack:
        try:
            filler = SlotFiller(task, boards.arrays()[task.index])
            stack.callback(filler.close)
            experience.send(ANEW if filler.anew else READY)
            round_ = task.first_round
            while task.rounds is None or round_ < task.rounds:
                filler.timer.switch("wait_slot")
                number = experience.claim()
                filler.timer.switch("wait_policy")
                snapshot = policies.get(task.lag.oldest(round_), newest=task.lag.free_running)
                if blocks := experience.dealt(round_):
                    filler.deal(blocks)
                filler.fill(experience.slot(number), snapshot, round_)
                experience.send(number)
                round_ += 1
            while True:  # the agent may still learn; `claim` raises Closed when it ends
                experience.claim()
        except Closed:
            pass  # the agent has ended, and so does this process
        except BaseException as error:  # noqa: BLE001 - the agent reports every error
            complete = isinstance(error, RolloutError | ConfigError)  # with its notes
            text = "\n".join([str(error), *getattr(error, "__notes__", [])])
            experience.fail(text if complete else traceback.format_exc())
            sys.exit(1)


class SlotFiller:
    """A sampler that fills slots with rollouts and with the times of its work."""

    def __init__(self, task: SamplerTask, board: IntArray | None = None) -> None:
        """Makes the lanes and the actor; `board`, [2], shows the timer's section, see `Timer`."""
        self._task = task
        self._trace = TraceFile(task.trace[0], task.name, task.trace[1]) if task.trace else None
        seed_globals(task.seed, "train", task.lanes[0], task.first_round, 0)
        unsaved = task.env.saving == "none" and task.episodes_over is None
        self.anew = task.first_round > 0 and unsaved  # whether lanes start new episodes instead
        try:
            self._sampler = task.build(anew=self.anew)
        except RestoreError:
            self.anew = True
            self._sampler = task.build(anew=True)
        self.timer = Timer(SAMPLER_SECTIONS, trace=task.trace is not None, board=board)

    def deal(self, blocks: Blocks) -> None:
        """Continues with other lanes; RestoreError if the environment cannot."""
        self.timer.switch("other")
        self._sampler.lanes.close()
        self._task = self._task.dealt(blocks)
        self._sampler = self._task.build(anew=False)

    def fill(self, slot: Slot, snapshot: PolicySnapshot, round_: int) -> None:
        """Collects the rollout of a round under `snapshot` into `slot`."""
        slot.began_ns[0] = self.timer.switch("other")
        # No two samplers have the same first lane, not even on different nodes.
        seed_globals(self._task.seed, "train", self._task.lanes[0], round_)
        filled = self._sampler.fill(slot.rollout, snapshot, round_, self.timer)
        slot.steps[0], slot.lane_steps[:], slot.faults[0] = filled
        self.timer.switch("send")
        slot.round[0] = round_
        slot.state_bytes[0] = self._sampler.export_states(slot.lane_states, slot.memory)
        if self._trace:
            self._trace.write(self.timer.spans())
        slot.sections_s[:] = list(self.timer.take().values())
        slot.sent_ns[0] = time.monotonic_ns()

    def close(self) -> None:
        """Closes the lanes."""
        self._sampler.lanes.close()
