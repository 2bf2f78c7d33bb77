"""Sampling by N processes, which an experience queue and a policy queue connect to the agent."""

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
from walle.transport.sampling import OtherProcesses
from walle.transport.slots import RolloutShape
from walle.types import PolicySnapshot

_GRACE_S = 2.0
_FILES, _FILES_A_SAMPLER = 128, 8  # open at once while the samplers start


class ProcessSampling:
    """The agent's end of N sampler processes; implements `Sampling`."""

    def __init__(
        self,
        tasks: Sequence[SamplerTask],
        shapes: Sequence[RolloutShape],
        *,
        vector_length: int,
        slots: int,
        enough: int,
        signals: Signals,
        others: OtherProcesses | None = None,
    ) -> None:
        """Starts the samplers, which build their lanes while the caller continues.

        Args:
            tasks: a task for each sampler.
            shapes: the rollouts' shape of each sampler.
            vector_length: length of a snapshot's vector.
            slots: places for rollouts of each sampler, with the one that it is filling.
            enough: environment steps that make a free-running round.
            signals: signals that interrupt a wait.
            others: further processes whose death ends a wait.
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
        """See `Sampling`."""
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
        """See `Sampling`."""
        assert self._watch is not None
        return self._watch.busy()

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Sampling`."""
        self._policies.put(snapshot)

    def receive(self) -> Round:
        """The oldest rollout of every sampler; in free-running mode the first `enough` steps."""
        return self._first_to_arrive() if self._lag.free_running else self._next_round()

    def _next_round(self) -> Round:
        while (received := self._experience.take_round()) is None:
            self._wait()
        round_ = assemble_round(received, self._tasks)
        for item in received:
            self._experience.release(item)
        return round_

    def _first_to_arrive(self) -> Round:
        """Copies each slot when it arrives, so that fast samplers do not wait for slow ones."""
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
        ready = self._read_messages([*self._sentinels, self._signals.waitable])
        if self._signals.waitable in ready:
            raise Interrupted
        for process in self._processes:
            if process.sentinel in ready:
                self._read_messages([], timeout_s=0.1)  # the sampler's traceback may arrive late
                raise WorkerError(how_it_ended(process))
        if ready and self._others:
            self._others.report()

    def _read_messages(self, others: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """`ExperienceQueue.wait`, with a sampler's traceback as a WorkerError."""
        try:
            return self._experience.wait(others, timeout_s)
        except Failed as failed:
            name = self._tasks[failed.sampler].name
            raise WorkerError(f"{name} failed:\n{failed.report}") from None

    def close(self) -> None:
        """Asks the samplers to end; kills each that still runs after two seconds."""
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
