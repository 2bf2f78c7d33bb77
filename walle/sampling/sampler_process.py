"""The body of a sampler process, and the task that describes it."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from walle.envs import EnvSpec, make_lanes
from walle.errors import ConfigError, RestoreError, RolloutError
from walle.nets.policies import ActingPolicy
from walle.sampling.actor import Actor
from walle.sampling.arena import Arena
from walle.sampling.episodes import EpisodeSampler
from walle.sampling.experience_queue import SlotWriter
from walle.sampling.lane_block import LaneBlock, joined, settled
from walle.sampling.lane_group import LaneGroup, LaneStates, Lender
from walle.sampling.lending import Borrower, Field, Owner, Records
from walle.sampling.messages import Closed
from walle.sampling.policy_queue import PolicyReader
from walle.sampling.sampler import LaneSampler, Sampler
from walle.sampling.slots import Ring, Slot
from walle.streams import seed_anew
from walle.system.workers import become_worker
from walle.timing import SAMPLER_SECTIONS, Timer, TraceFile
from walle.types import IntArray, Lag, PolicySnapshot

_BORROWED_GROUPS = 16  # groups of lanes that are kept for the next time
PolicyFactory = Callable[[], ActingPolicy]


@dataclass(frozen=True)
class SamplerTask:
    """The description from which a sampler starts. Picklable.

    Attributes:
        index: the sampler's number.
        env: description of the environment.
        lanes: the numbers of the sampler's lanes.
        policy: makes the policy network.
        obs_dim: O.
        clip: bound of normalised observations; None for no bound.
        seed: the run's seed.
        lag: the allowed lag in policy versions.
        rounds: number of rollouts to collect; None to collect until the agent ends.
        core: the core to run on; None for any core.
        trace: the file for spans and the zero of its clock in ns; None for no file.
        episodes_over: number of lanes of the run if rounds have whole episodes; else None.
        start: the lanes before their next round, one block or several.
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
    start: tuple[LaneBlock, ...] = ()

    @property
    def blocks(self) -> tuple[LaneBlock, ...]:
        """The lanes before their next round."""
        return self.start or (LaneBlock.first(self.lanes),)

    @property
    def first_round(self) -> int:
        """The round that the sampler collects first."""
        return max(block.round for block in self.blocks)

    @property
    def begins_anew(self) -> bool:
        """Whether nothing saves the lanes' states, so that they cannot go on."""
        return self.env.saving == "none" and self.episodes_over is None

    @property
    def name(self) -> str:
        """The name in files and messages."""
        return f"sampler-{self.index}"

    def build(self, *, anew: bool, lender: Lender | None = None) -> Sampler:
        """Makes the lanes and the actor, in the process in which the sampler runs.

        Args:
            anew: whether the lanes begin new episodes instead of going on from `start`.
            lender: lends lanes to other samplers; None if nobody may borrow.

        Raises:
            RestoreError: the environment does not go on from `start`.
        """
        if self.episodes_over is not None:
            lanes = make_lanes(self.env, self.lanes, self.seed)
            actor = Actor(self.policy(), self.obs_dim, len(self.lanes), self.clip)
            return EpisodeSampler(lanes, actor, self.lanes, self.seed, self.episodes_over)
        if anew:
            env_seed = seed_anew(self.seed, self.first_round)
            return LaneSampler(partial(self.group, env_seed), self.lanes)
        start = None
        if self.first_round:
            start = joined([settled(block, self.env, self.seed) for block in self.start])
        return LaneSampler(partial(self.group, self.seed), self.lanes, start, lender)

    def group(self, env_seed: int, numbers: Sequence[int]) -> LaneGroup:
        """Makes lanes with these numbers, and an actor for them."""
        actor = Actor(self.policy(), self.obs_dim, len(numbers), self.clip)
        return LaneGroup(make_lanes(self.env, numbers, env_seed), actor, numbers, self.seed)


def run_sampler(
    task: SamplerTask,
    experience: SlotWriter,
    policies: PolicyReader,
    boards: Arena,
    rings: Sequence[Ring],
    records: Records | None,
) -> None:
    """The body of a sampler process.

    Args:
        task: describes the sampler.
        experience: its end of the experience queue.
        policies: its end of the policy queue.
        boards: in its row it shows the section of its timer.
        rings: the slots of all samplers, into which it steps borrowed lanes.
        records: what samplers lend to each other; None if they lend nothing.
    """
    become_worker(threads=1)
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    with ExitStack() as stack:
        try:
            ends = (experience, policies, boards.arrays()[task.index])
            _sample(task, *ends, Lending(task, policies, rings, records), stack)
        except Closed:
            return
        except (RolloutError, ConfigError) as error:  # the message and its notes say everything
            experience.fail("\n".join([str(error), *getattr(error, "__notes__", [])]))
            sys.exit(1)
        except BaseException:  # noqa: BLE001 - the agent reports every error
            experience.fail(traceback.format_exc())
            sys.exit(1)


def _sample(
    task: SamplerTask,
    experience: SlotWriter,
    policies: PolicyReader,
    board: IntArray,
    lending: Lending,
    stack: ExitStack,
) -> None:
    """Collects until the agent asks this process to end; `stack` closes the lanes."""
    filler = SlotFiller(task, board, lending.owner)
    stack.callback(filler.close)
    experience.ready(anew=filler.anew)
    round_ = task.first_round
    while task.rounds is None or round_ < task.rounds:
        lending.borrow_until(task.lag.oldest(round_), filler.timer)
        filler.timer.switch("wait_slot")
        number = experience.claim()
        filler.timer.switch("wait_policy")
        snapshot = policies.get(task.lag.oldest(round_), newest=task.lag.free_running)
        with lending.round(round_, number, snapshot.rollout_steps):
            filler.fill(experience.slot(number), snapshot, round_)
        experience.send(number)
        round_ += 1
    while True:  # the agent may still learn; `claim` raises Closed when it ends
        experience.claim()


class Lending:
    """A sampler's part in lending lanes, as owner and as borrower; does nothing without records.

    Attributes:
        owner: this sampler's end as an owner; None without records.
    """

    def __init__(
        self,
        task: SamplerTask,
        policies: PolicyReader,
        rings: Sequence[Ring],
        records: Records | None,
    ) -> None:
        """Takes part with the lanes of `task`; see `run_sampler`."""
        self._task, self._policies, self._rings = task, policies, rings
        self._records = records.all() if records else []
        self._borrower = Borrower(self._records, task.index)
        self.owner = Owner(self._records[task.index]) if records else None
        self._speed = 0.0
        self._group = lru_cache(_BORROWED_GROUPS)(partial(task.group, task.seed))

    @contextmanager
    def round(self, round_: int, slot: int, steps: int | None) -> Iterator[None]:
        """Shows others, while the body collects a round, how far it is."""
        if self.owner is None:
            yield
            return
        self.owner.begin(round_, slot, steps or self._rings[self._task.index].steps)
        yield
        self._speed = self.owner.end()

    def borrow_until(self, version: int, timer: Timer) -> None:
        """Steps lanes of samplers that are behind, until that version of the policy is there."""

        def idle() -> bool:
            return not self._policies.there(version)

        if not self._records or not self._speed:
            return
        while idle() and (owner := self._borrower.find(self._speed, idle)) is not None:
            timer.switch("other")
            self._borrower.give_back(owner, self._stepped(owner, timer))
            timer.switch("wait_policy")

    def _stepped(self, owner: int, timer: Timer) -> LaneStates | None:
        """Steps the lanes that `owner` lends to the end of its round."""
        record, lag = self._records[owner], self._task.lag
        round_, slot, steps, begin, kept = (
            record.ints[field]
            for field in (Field.ROUND, Field.SLOT, Field.STEPS, Field.BEGIN, Field.KEPT)
        )
        rollout = self._rings[owner].views()[slot].rollout.between(0, steps)
        part = rollout.columns(kept, record.lanes)
        return self._group(tuple(part.lane.tolist())).go_on(
            record.read(kept),
            self._policies.get(lag.oldest(round_), newest=False),
            part,
            round_,
            begin,
            timer,
            lambda _: self._borrower.cancelled(owner),
        )


class SlotFiller:
    """A sampler that fills slots with rollouts and with the times of its work.

    Attributes:
        timer: measures the sections.
        anew: whether the lanes began new episodes, because they could not go on.
    """

    def __init__(
        self, task: SamplerTask, board: IntArray | None = None, lender: Lender | None = None
    ) -> None:
        """Makes the lanes and the actor.

        Args:
            task: describes the sampler.
            board: [2] shows the timer's section, see `Timer`.
            lender: lends lanes to other samplers; None if nobody may borrow.
        """
        self._trace = TraceFile(task.trace[0], task.name, task.trace[1]) if task.trace else None
        self.anew = task.first_round > 0 and task.begins_anew
        try:
            self._sampler = task.build(anew=self.anew, lender=lender)
        except RestoreError:
            self.anew = True
            self._sampler = task.build(anew=True)
        self.timer = Timer(SAMPLER_SECTIONS, trace=task.trace is not None, board=board)

    def fill(self, slot: Slot, snapshot: PolicySnapshot, round_: int) -> None:
        """Collects the rollout of a round under `snapshot` into `slot`."""
        slot.began_ns[0] = self.timer.switch("other")
        filled = self._sampler.fill(slot.rollout, snapshot, round_, self.timer)
        slot.steps[0], slot.lane_steps[:] = filled
        self.timer.switch("send")
        slot.round[0] = round_
        slot.state_bytes[0] = self._sampler.hand_over(slot.lane_states, slot.memory)
        if self._trace:
            self._trace.write(self.timer.spans())
        slot.sections_s[:] = list(self.timer.take().values())
        slot.sent_ns[0] = time.monotonic_ns()

    def close(self) -> None:
        """Closes the lanes."""
        self._sampler.close()
