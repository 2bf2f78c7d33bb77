"""Sampling in the agent's process, without queues."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from walle.sampling.lane_book import LaneBook
from walle.sampling.queues import Received
from walle.sampling.rounds import Round, assemble_round
from walle.sampling.sampler_process import SamplerTask, SlotFiller
from walle.sampling.sampling import EventLog, OtherProcesses
from walle.sampling.slots import RolloutShape, Slot
from walle.system.signals import Signals
from walle.system.supervision import DeathWatch, Watchdog
from walle.types import PolicySnapshot


class SerialSampling:
    """One sampler in the agent's process; its rounds are those of lock-step, bit for bit."""

    def __init__(
        self,
        task: SamplerTask,
        shape: RolloutShape,
        signals: Signals,  # signals that interrupt a round
        events: EventLog,  # reports what happens to the sampler
        watchdog: Watchdog,  # ends a round that hangs
        others: OtherProcesses | None = None,  # further processes whose death ends a round
    ) -> None:
        """Builds the lanes; if `task.core` is set, pins this process to it until `close`."""
        self._cores = os.sched_getaffinity(0) if task.core is not None else None
        if task.core is not None:
            os.sched_setaffinity(0, {task.core})
        self._signals = signals
        self._filler = SlotFiller(task)
        self._slot = Slot.empty(shape)
        self._watch = DeathWatch(others.sentinels, others.report) if others else None
        self._task = task
        self._round = task.first_round
        self.owners = [0] * len(task.lanes)
        self.lanes = LaneBook([task.blocks], saved=shape.lane_state > 0)
        self.events, self._watchdog = events, watchdog
        if self._filler.anew:
            self.events.started_anew(task.name)
        self._snapshot: PolicySnapshot | None = None
        self._filler.timer.switch("wait_policy")

    def wait_ready(self) -> None:
        """Returns at once, because the lanes are built."""

    def busy(self) -> AbstractContextManager[None]:
        """See `Sampling`."""
        return self._watch.busy() if self._watch else nullcontext()

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Keeps the policy for the next round."""
        self._snapshot = snapshot

    def receive(self) -> Round:
        """Collects a round."""
        assert self._snapshot is not None
        with (
            self.busy(),
            self._signals.breaking_off(),
            self._watchdog.over(f"round {self._round} of the serial sampler"),
        ):
            self._filler.fill(self._slot, self._snapshot, self._round)
        self._filler.timer.switch("wait_policy")
        self._round += 1
        self.lanes.advance(0, self._slot)
        return assemble_round([Received(0, 0, self._slot)], [self._task])

    def close(self) -> None:
        """Closes the lanes and removes the pinning."""
        if self._watch is not None:
            self._watch.close()
        self._filler.close()
        if self._cores is not None:
            os.sched_setaffinity(0, self._cores)
