"""Sampling on this machine: in N processes with queues to the agent, or in the agent's process.

Also decides how many lanes each process steps, in proportion to the samplers' recent speeds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from walle.errors import Interrupted, WorkerError
from walle.sampling.lane_book import LaneBook, deal
from walle.sampling.queues import ExperienceQueue, PolicyQueue, Received
from walle.sampling.rounds import Round, assemble_round
from walle.sampling.sampler_process import SamplerTask, SlotFiller, run_sampler
from walle.sampling.sampling import EventLog, OtherProcesses, Patience, Sampling
from walle.sampling.slots import Arena, RolloutShape, Slot
from walle.system.forkserver import end_orphans
from walle.system.signals import Signals
from walle.system.supervision import DeathWatch, Restarts, Silence, Watchdog
from walle.system.workers import Worker, allow_files, end_all
from walle.timing import SAMPLER_SECTIONS
from walle.types import Lag, PolicySnapshot

_GRACE_S = 2.0
_FILES, _FILES_A_SAMPLER = 128, 12  # open at once while the samplers start
UNEVEN = 1.15  # lanes move if the slowest sampler takes this many times as long as the quickest
WINDOW_S = 1.0  # seconds of work of each sampler from which its speed is measured
MOST = 2  # a sampler gets at most this multiple of its initial number of lanes


class Dealer:
    """Measures the samplers' speeds and decides on the numbers of their lanes."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = np.array(counts)
        self._most = MOST * self._counts
        self._steps = self._seconds = np.zeros(len(counts))
        self._speeds: npt.NDArray[np.float64] | None = None

    def note(self, steps: Sequence[int], seconds: Sequence[float]) -> None:
        """Records the environment steps of a round and the seconds of work, by sampler."""
        self._steps, self._seconds = self._steps + steps, self._seconds + seconds

    def deal(self) -> list[int] | None:
        """The new numbers of lanes, by sampler; None if they do not change.

        The round ends soonest if each lane in turn goes to the sampler that would finish it first.
        """
        if self._seconds.min() < WINDOW_S:
            return None
        speeds = self._steps / self._seconds
        # The mean with the earlier speeds: a sampler that is slow only for a moment keeps its lanes
        self._speeds = (speeds + (speeds if self._speeds is None else self._speeds)) / 2
        self._steps = self._seconds = np.zeros(len(speeds))
        times = self._counts / self._speeds
        if times.max() < UNEVEN * times.min():
            return None
        before, self._counts = self._counts, np.ones_like(self._counts)
        for _ in range(before.sum() - len(before)):
            ends = np.where(self._counts < self._most, (self._counts + 1) / self._speeds, np.inf)
            self._counts[ends.argmin()] += 1
        return self._counts.tolist() if (self._counts != before).any() else None


class ProcessSampling(Sampling):
    """The agent's end of N sampler processes."""

    def __init__(
        self,
        tasks: Sequence[SamplerTask],
        shapes: Sequence[RolloutShape],  # the rollouts' shape of each sampler
        *,
        lag: Lag,  # the allowed lag of the samplers
        vector_length: int,  # length of a snapshot's vector
        slots: int,  # rollouts that a sampler can hold, including the one that it is filling
        enough: int,  # environment steps that make a free-running round
        # how many versions old a rollout of a free-running round may be; None: any number
        max_staleness: int | None = None,
        signals: Signals,  # signals that interrupt a wait
        patience: Patience,  # when samplers are replaced
        others: OtherProcesses | None = None,  # further processes whose death ends a wait
    ) -> None:
        """Starts the samplers, which build their lanes while the caller continues."""
        self._tasks, self._slots, self._enough = list(tasks), slots, enough
        self._max_staleness = max_staleness
        self._lag, self._signals, self._others = lag, signals, others
        allow_files(_FILES + _FILES_A_SAMPLER * len(tasks))
        self._experience = ExperienceQueue(shapes, slots)
        self._policies = PolicyQueue(vector_length, self._lag.depth)
        self._boards = Arena([((2,), "int64")] * len(tasks))
        self._board_rows = self._boards.arrays()
        deals = patience.balance and len(tasks) > 1 and not self._lag.free_running
        self._dealer = Dealer([len(task.lanes) for task in tasks]) if deals else None
        self._next_deal: tuple[int, list[int]] | None = None  # its round, and counts of lanes
        self.owners = [task.index for task in tasks for _ in task.lanes]
        self._saved = shapes[0].lane_state > 0
        self.lanes = LaneBook([task.blocks for task in tasks], saved=self._saved)
        self.events = EventLog()
        self._restarts = Restarts(patience.restarts)
        self._silence = Silence(len(tasks), patience.timeout_s)
        self._workers: list[Worker] = []
        try:
            for task in tasks:
                self._workers.append(self._start(task))
                self._silence.update(task.index, owes=True)
            self._watch = DeathWatch(self._sentinels, self._notice_death)
        except BaseException:
            self.close()
            raise

    def _start(self, task: SamplerTask) -> Worker:
        writer, reader = self._experience.connect(task.index), self._policies.connect(task.index)
        if self._next_deal is not None:
            self._experience.announce_deal(task.index, self._next_deal[0])
        worker = Worker(task.name, run_sampler, (task, writer, reader, self._boards))
        writer.close()
        reader.close()
        return worker

    def wait_ready(self) -> None:
        """See `Sampling`."""
        while len(self._experience.ready) < len(self._tasks):
            self._wait()

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Sampling`."""
        self._policies.put(snapshot)

    def receive(self) -> Round:
        """The oldest rollout of every sampler; in free-running mode the first `enough` steps."""
        if self._lag.free_running:
            return self._first_to_arrive()
        received = self.wait_round()
        round_ = assemble_round(received, self._tasks)
        self.owners[:] = [task.index for task in self._tasks for _ in task.lanes]
        steps = [item.slot.filled.env_steps for item in received]
        for item in received:
            self.release(item)
        if self._dealer is not None:
            self._dealer.note(steps, round_.busy_s)
            self._balance(self._dealer)
        return round_

    def _balance(self, dealer: Dealer) -> None:
        """Redistributes lanes if samplers differ in speed.

        It takes effect in the first round that no sampler can have started yet; samplers wait for
        their lanes before that round. With a lag, the agent must first receive the earlier rounds.
        """
        samplers, next_round = range(len(self._tasks)), self.lanes.round(0)
        if self._next_deal is None and (counts := dealer.deal()):
            assert self._lag.most is not None
            self._next_deal = self._policies.newest + 1 + self._lag.most, counts
            for sampler in samplers:
                self._experience.announce_deal(sampler, self._next_deal[0])
        if self._next_deal is None or self._next_deal[0] != next_round:
            return
        (_, counts), self._next_deal = self._next_deal, None
        blocks, ends = self.lanes.all(), np.cumsum(counts).tolist()
        for sampler, count, end in zip(samplers, counts, ends, strict=True):
            lanes = deal(blocks, range(end - count, end))
            self._tasks[sampler] = self._tasks[sampler].dealt(lanes)
            self._experience.deal(sampler, next_round, lanes)
        self.lanes = LaneBook([task.blocks for task in self._tasks], saved=self._saved)

    def wait_round(self) -> list[Received]:
        """Waits for the oldest rollout of every sampler; see `Sampling` for the errors.

        The slots belong to the caller until they are released.
        """
        while (received := self._experience.take_round()) is None:
            self._wait()
        return received

    def _first_to_arrive(self) -> Round:
        """Copies each slot when it arrives, so that fast samplers do not wait for slow ones.

        New rollouts use the newest policy, so at least one is always fresh enough.
        """
        received: list[Received] = []
        dropped: list[Received] = []
        steps, most, before = 0, self._max_staleness, self.lanes.copied()
        while steps < self._enough:
            item = self._experience.take_first()
            if item is None:
                try:
                    self._wait()
                except BaseException:
                    self.lanes = before  # the agent never sees this round, so it is not saved
                    raise
                continue
            copy = item.copied()
            self.release(item)
            age = self._policies.newest - int(copy.slot.rollout.policy_version.min())
            if most is not None and age > most:
                dropped.append(copy)
            else:
                received.append(copy)
                steps += copy.slot.rollout.env_steps
        return assemble_round(received, self._tasks, None if most is None else dropped)

    def release(self, item: Received) -> None:
        """Records the lanes' state after a rollout, and returns the slot to the sampler."""
        self.lanes.advance(item.sampler, item.slot)
        self._experience.release(item)

    @property
    def _sentinels(self) -> list[int]:
        others = self._others.sentinels if self._others else []
        return [*(worker.sentinel for worker in self._workers), *others]

    def _wait(self) -> None:
        """Waits for a message, a death, a signal or a sampler that is silent for too long."""
        for sampler in range(len(self._tasks)):
            self._silence.update(sampler, owes=self._owes(sampler))
        ready = self._read_messages(
            [*self._sentinels, self._signals.waitable], self._silence.wait_s()
        )
        if self._signals.waitable in ready:
            raise Interrupted
        for task, worker in zip(self._tasks, self._workers, strict=True):
            if worker.sentinel in ready:
                self._read_messages([], timeout_s=0.1)  # raises a traceback that arrives late
                self._replace(task.index, worker.how_it_ended())
        if self._others:
            self._others.check()
        for sampler, board in enumerate(self._board_rows):
            self._silence.alive(sampler, int(board[1]) * 1e-9)
        for sampler, seconds, remedy in self._silence.overdue():
            name = self._tasks[sampler].name
            doing = f"has sent no rollout for {seconds:.0f} s; {self._doing(sampler)}"
            if remedy == "name":
                self.events.report(f"{name} {doing}; it is replaced after twice that time")
            else:
                self._workers[sampler].kill()
                self._replace(sampler, f"{name} {doing}")

    def _owes(self, sampler: int) -> bool:
        """Whether the sampler has what it needs for a rollout: a slot, a policy and its lanes."""
        round_ = self._round_owed(sampler)
        rounds = self._tasks[sampler].rounds
        unfinished = rounds is None or round_ < rounds
        has_policy = self._policies.newest >= self._lag.oldest(round_)
        has_lanes = self._next_deal is None or round_ < self._next_deal[0]
        starting = sampler not in self._experience.ready
        has_slot = len(self._experience.pending(sampler)) < self._slots
        return starting or (unfinished and has_policy and has_lanes and has_slot)

    def _round_owed(self, sampler: int) -> int:
        return self.lanes.round(sampler) + len(self._experience.pending(sampler))

    def _notice_death(self) -> None:
        """In the agent's work: raises WorkerError unless `_wait` may replace the dead process."""
        self._read_messages([], timeout_s=0.1)
        if self._others:
            self._others.check()
        for sampler, worker in enumerate(self._workers):
            round_ = self._round_owed(sampler)
            if worker.ended() and (reason := self._restarts.reason_against(sampler, round_)):
                raise WorkerError(f"{worker.how_it_ended()}; {reason}")

    def _doing(self, sampler: int) -> str:
        section, since_ns = self._board_rows[sampler].tolist()
        if not since_ns:
            return "it is still building its lanes"
        seconds = (time.monotonic_ns() - since_ns) * 1e-9
        return f"it is in {SAMPLER_SECTIONS[section]} for {seconds:.0f} s"

    def _replace(self, sampler: int, how: str) -> None:
        """Starts the sampler again before the round that it owes; WorkerError if it may not."""
        start = self.lanes.after(sampler, self._experience.pending(sampler))
        task = replace(self._tasks[sampler], start=start)
        refused = self._restarts.refusal(sampler, task.first_round)
        if refused:
            raise WorkerError(f"{how}; {refused}")
        exact = not self._lag.free_running
        self.events.replaced(task.name, task.first_round, how, exact=exact)
        self._board_rows[sampler][:] = 0
        self._silence.heard(sampler)
        dead, self._workers[sampler] = self._workers[sampler], self._start(task)
        if self._watch is not None:
            self._watch.watch(self._sentinels)
        dead.close()
        end_orphans()

    def _read_messages(self, others: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """`ExperienceQueue.wait`, which also notes who is alive and who started new episodes."""
        ready = self._experience.wait(others, timeout_s)
        while self._experience.heard:
            sampler = self._experience.heard.pop()
            slots = self._experience.pending(sampler)
            took_ns = int(slots[-1].sent_ns[0] - slots[-1].began_ns[0]) if slots else 0
            self._silence.heard(sampler, took_ns * 1e-9)
        while self._experience.anew:
            self.events.started_anew(self._tasks[self._experience.anew.pop()].name)
        return ready

    def close(self) -> None:
        """Asks the samplers to end; kills each that still runs after two seconds."""
        super().close()
        self._experience.close()
        self._policies.close()
        end_all(self._workers, _GRACE_S)
        self._workers = []


class SerialSampling(Sampling):
    """One sampler in the agent's process, without queues; its rounds are those of lock-step."""

    def __init__(
        self,
        task: SamplerTask,
        shape: RolloutShape,
        signals: Signals,  # signals that interrupt a round
        events: EventLog,
        watchdog: Watchdog,  # ends a round that hangs
        others: OtherProcesses | None = None,  # further processes whose death ends a round
    ) -> None:
        """Builds the lanes; if `task.core` is set, pins this process to it until `close`."""
        self._cores = os.sched_getaffinity(0) if task.core is not None else None
        if task.core is not None:
            os.sched_setaffinity(0, {task.core})
        self._signals, self._watchdog, self.events = signals, watchdog, events
        with ExitStack() as undone:
            undone.callback(self._unpin)
            self._filler = SlotFiller(task)
            undone.callback(self._filler.close)
            self._slot = Slot.empty(shape)
            if others:
                self._watch = DeathWatch(others.sentinels, others.check)
            undone.pop_all()
        self._task, self._round = task, task.first_round
        self.owners = [0] * len(task.lanes)
        self.lanes = LaneBook([task.blocks], saved=shape.lane_state > 0)
        if self._filler.anew:
            self.events.started_anew(task.name)
        self._snapshot: PolicySnapshot | None = None
        self._filler.timer.switch("wait_policy")

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Keeps the policy for the next round."""
        self._snapshot = snapshot

    def receive(self) -> Round:
        """Collects a round."""
        assert self._snapshot is not None
        with (
            self.busy(),
            self._signals.breaking_off(),
            self._watchdog.over(
                f"round {self._round} of the serial sampler has made no step for",
                lambda: self._filler.timer.since_ns * 1e-9,
            ),
        ):
            self._filler.fill(self._slot, self._snapshot, self._round)
        self._filler.timer.switch("wait_policy")
        self._round += 1
        self.lanes.advance(0, self._slot)
        return assemble_round([Received(0, 0, self._slot)], [self._task])

    def close(self) -> None:
        """Closes the lanes and removes the pinning."""
        super().close()
        self._filler.close()
        self._unpin()

    def _unpin(self) -> None:
        if self._cores is not None:
            os.sched_setaffinity(0, self._cores)
