"""N sampler processes, connected to the agent by an experience queue and a policy queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from walle.errors import Interrupted, WorkerError
from walle.processes.signals import Signals
from walle.processes.workers import Watch, allow_files, forkserver_context, how_it_ended
from walle.transport.experience_queue import ExperienceQueue, Received
from walle.transport.messages import Failed
from walle.transport.policy_queue import PolicyQueue
from walle.transport.rounds import Round, assemble_round
from walle.transport.sampler_process import SamplerTask, run_sampler
from walle.transport.sampling import Others
from walle.transport.slots import RolloutShape
from walle.types import PolicySnapshot

_GRACE_S = 2.0
_FILES, _FILES_A_SAMPLER = 128, 8  # open at once while the samplers start


class ProcessSampling:
    """N sampler processes, an experience queue and a policy queue."""

    def __init__(
        self,
        tasks: Sequence[SamplerTask],
        shapes: Sequence[RolloutShape],
        *,
        vector_length: int,
        slots: int,
        enough: int,
        signals: Signals,
        others: Others | None = None,
    ) -> None:
        """Starts the samplers; they build their environments meanwhile.

        Args:
            tasks: one a sampler.
            shapes: of each sampler's rollouts.
            vector_length: of a snapshot.
            slots: rollouts a sampler may hand over before the agent takes one.
            enough: environment steps that make a free-running round.
            signals: what may interrupt a wait.
            others: what may end a wait too, by dying.
        """
        self._tasks = tasks
        self._lag = tasks[0].lag
        self._enough = enough
        self._signals = signals
        allow_files(_FILES + _FILES_A_SAMPLER * len(tasks))
        context = forkserver_context()
        self._experience = ExperienceQueue(context, shapes, slots)
        self._policies = PolicyQueue(context, len(tasks), vector_length, self._lag.depth)
        self._others = others
        self._processes: list[Any] = []
        self._watch: Watch | None = None
        try:
            self._start(context)
            self._watch = Watch(self._sentinels, self._wait)
        except BaseException:
            self.close()
            raise

    def wait_ready(self) -> None:
        """Waits until every sampler has built its lanes."""
        while not self._experience.all_ready():
            self._wait()

    def _start(self, context: Any) -> None:
        for task in self._tasks:
            ends = (self._experience.writer(task.index), self._policies.reader(task.index))
            process = context.Process(
                target=run_sampler, args=(task, *ends), name=task.name, daemon=True
            )
            process.start()
            self._processes.append(process)
        self._experience.forget_sampler_ends()
        self._policies.forget_sampler_ends()

    def busy(self) -> AbstractContextManager[None]:
        """Lets a death raise in the middle of the body."""
        assert self._watch is not None
        return self._watch.busy()

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Puts the policy into the policy queue."""
        self._policies.put(snapshot)

    def receive(self) -> Round:
        """The oldest rollout of every sampler; free-running, the first that are enough."""
        return self._first_to_arrive() if self._lag.free_running else self._next_round()

    def _next_round(self) -> Round:
        while (received := self._experience.take_round()) is None:
            self._wait()
        round_ = assemble_round(received, self._tasks)
        for item in received:
            self._experience.release(item)
        return round_

    def _first_to_arrive(self) -> Round:
        """Empties each slot as it arrives, so that a fast sampler need not wait for a slow one."""
        received: list[Received] = []
        steps = 0
        while steps < self._enough:
            item = self._experience.take_first()
            if item is None:
                self._wait()
                continue
            received.append(item.copied())
            steps += received[-1].slot.rollout.env_steps
            self._experience.release(item)
        return assemble_round(received, self._tasks)

    @property
    def _sentinels(self) -> list[int]:
        others = self._others.sentinels if self._others else []
        return [*(process.sentinel for process in self._processes), *others]

    def _wait(self) -> None:
        try:
            ready = self._experience.wait([*self._sentinels, self._signals.waitable])
        except Failed as failed:
            raise WorkerError(
                f"{self._tasks[failed.sampler].name} failed:\n{failed.report}"
            ) from None
        if self._signals.waitable in ready:
            raise Interrupted
        for sampler, process in enumerate(self._processes):
            if process.sentinel in ready:
                self._report_death(sampler)
        if ready and self._others:
            self._others.report()

    def _report_death(self, sampler: int) -> None:
        try:
            self._experience.wait(timeout_s=0.1)  # its traceback may be on its way
        except Failed as failed:
            name = self._tasks[failed.sampler].name
            raise WorkerError(f"{name} failed:\n{failed.report}") from None
        raise WorkerError(how_it_ended(self._processes[sampler]))

    def close(self) -> None:
        """Asks the samplers to end, and ends those that do not within two seconds."""
        if self._watch is not None:
            self._watch.close()
        self._experience.close()
        self._policies.close()
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        self._processes = []
