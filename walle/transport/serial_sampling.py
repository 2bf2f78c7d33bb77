"""One sampler in the agent's own process, without queues."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from walle.processes.signals import Signals
from walle.processes.workers import Watch
from walle.transport.experience_queue import Received
from walle.transport.rounds import Round, assemble_round
from walle.transport.sampler_process import SamplerTask, SlotFiller
from walle.transport.sampling import Others
from walle.transport.slots import RolloutShape, Slot
from walle.types import PolicySnapshot


class SerialSampling:
    """One sampler in the agent's own process: no queues, the same results."""

    def __init__(
        self,
        task: SamplerTask,
        shape: RolloutShape,
        signals: Signals,
        others: Others | None = None,
    ) -> None:
        """Builds the lanes here; pinned when asked, until closed. See `ProcessSampling`."""
        self._cores = os.sched_getaffinity(0) if task.core is not None else None
        if task.core is not None:
            os.sched_setaffinity(0, {task.core})
        self._signals = signals
        self._filler = SlotFiller(task)
        self._slot = Slot.empty(shape)
        self._watch = Watch(others.sentinels, others.report) if others else None
        self._task = task
        self._snapshot: PolicySnapshot | None = None
        self._filler.timer.switch("wait_policy")

    def wait_ready(self) -> None:
        """The lanes are there."""

    def busy(self) -> AbstractContextManager[None]:
        """Lets a death raise in the middle of the body."""
        return self._watch.busy() if self._watch else nullcontext()

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Keeps the policy for the next round."""
        self._snapshot = snapshot

    def receive(self) -> Round:
        """Collects a round, here and now."""
        assert self._snapshot is not None
        with self.busy(), self._signals.breaking_off():
            self._filler.fill(self._slot, self._snapshot)
        self._filler.timer.switch("wait_policy")
        return assemble_round([Received(0, 0, self._slot)], [self._task])

    def close(self) -> None:
        """Closes the lanes, and gives the cores back."""
        if self._watch is not None:
            self._watch.close()
        self._filler.close()
        if self._cores is not None:
            os.sched_setaffinity(0, self._cores)
