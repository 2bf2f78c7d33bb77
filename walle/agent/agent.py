"""The agent receives a round, learns from it, publishes the policy and records the iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from walle.agent.callbacks.calling import Callbacks
from walle.agent.checkpoint import CheckpointFiles
from walle.agent.evaluation import Evaluations
from walle.agent.recorder import Collection, Iteration, Recorder
from walle.algos.base import Algorithm
from walle.errors import Interrupted
from walle.learning.sharing.learners import draw_ahead
from walle.sampling.episodes import EpisodeQuota
from walle.sampling.rounds import Round
from walle.sampling.sampling import Sampling
from walle.system.signals import Signals
from walle.timing import Timer
from walle.types import Lag, PolicySnapshot


class Agent:
    """The agent owns the algorithm and counts the policy's versions.

    An iteration lasts from the publication of a policy to the publication of the next one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        sampling: Sampling,
        recorder: Recorder,
        evaluations: Evaluations,
        checkpoints: CheckpointFiles,
        callbacks: Callbacks,
        timer: Timer,
        *,
        lag: Lag,
        quota: EpisodeQuota | None,
        undo: bool,
    ) -> None:
        """Starts with version 0 of the policy.

        `timer` runs since the run started; start-up counts as `other`. `quota` decides the number
        of episodes of a round, if rounds have whole episodes. `undo` keeps the state before each
        update, so that an update which the death of a worker interrupts can be undone.
        """
        self._algorithm, self._sampling, self.recorder = algorithm, sampling, recorder
        self._evaluations, self._checkpoints, self.callbacks = evaluations, checkpoints, callbacks
        self._timer, self._lag, self._quota, self._undo = timer, lag, quota, undo
        self._published_ns = 0
        self._version = 0
        self._live: deque[PolicySnapshot] = deque(maxlen=lag.depth)
        self._first_iteration = 1
        self._state_to_save: Callable[[], dict[str, Any] | None] = self.state_dict
        self.env_steps = self.iteration = 0  # learned from; an iteration is a round
        sampling.events.listen(recorder.news)

    @property
    def returns(self) -> tuple[float | None, float | None, float | None]:
        """Mean returns: of the last and of the best evaluation, and of the last episodes."""
        return self.recorder.eval_mean, self._evaluations.best, self.recorder.return_mean

    def run(self, total_steps: int, signals: Signals) -> None:
        """Returns after `total_steps`, or after the iteration in which a signal arrives.

        However it ends, the state between two iterations is saved.

        Raises:
            Interrupted: a signal arrived while the agent compiled or waited for a round.
        """
        try:
            # Version 0, or those that samplers may still act under; they collect during warm-up.
            for snapshot in list(self._live) or [self._next_snapshot()]:
                self._publish(snapshot)
            self._warm_up(signals)
            self._sampling.wait_ready()
            if self._evaluations.unfinished:  # an earlier process was interrupted in it
                self._evaluate(signals)
            while self.env_steps < total_steps:
                if signals.arrived() or self.callbacks.stopped_by is not None:
                    break
                self._iterate(total_steps, signals)
                if signals.take_save_request():
                    with self._timer.section("checkpoint"):
                        self.save_last()
        except BaseException as error:
            self._save_after(error)
            raise
        self.save_last()
        self.callbacks.end(self._evaluations.best, interrupted=signals.arrived())

    def _warm_up(self, signals: Signals) -> None:
        """Compiles in the section `compile`, so that it never counts as learning time."""
        with self._timer.section("compile"), self._sampling.busy():
            try:
                with signals.breaking_off():
                    line = self._algorithm.warm_up()
            except Exception as error:
                if not signals.arrived():
                    raise
                raise Interrupted from error  # the same Ctrl-C may have ended the compiler
        self.recorder.say(line)

    def _iterate(self, total_steps: int, signals: Signals) -> None:
        self._timer.switch("wait_experience")
        before = self.state_dict() if self._undo else None
        round_ = self._sampling.receive()
        failed: Exception | None = None
        with self._transaction(before):
            lag = self._version - round_.rollout.policy_version
            self._timer.switch("update")
            with self._sampling.busy():
                for rollout in round_.dropped or ():
                    self._algorithm.skip(rollout)
                metrics = self._algorithm.update(round_.rollout._replace(lag=lag))
            self._timer.switch("other")
            if self._quota is not None:
                self._quota.observe(round_.rollout)
            self.env_steps += round_.rollout.env_steps
            self.iteration += 1
            try:
                if self._evaluations.are_due(self.env_steps) or self.env_steps >= total_steps:
                    self._evaluate(signals)
            except Exception as error:  # noqa: BLE001 - raised when the iteration is complete
                failed = error
            if self.recorder.video_is_due(self.env_steps):
                with suppress(Interrupted), self._timer.section("evaluate"), self._sampling.busy():
                    self.recorder.film(self._algorithm.snapshot(), self.env_steps, signals)
            version, collection = self._version, self._collection(round_)
            self._version += 1
            snapshot = self._next_snapshot()
            seconds = self._timer.take()
            self._publish(snapshot)
            self._timer.switch("log")
            iteration = Iteration(
                self.iteration, self.env_steps, round_, version, lag, collection, seconds, metrics
            )
            self.recorder.iteration(iteration, self._timer.spans())
        self._timer.switch("other")
        if failed is not None:
            raise failed
        draw_ahead(self._algorithm)
        self.callbacks.round(iteration)
        if self._checkpoints.are_due(self.env_steps):
            self._timer.switch("checkpoint")
            self.save_last()

    @contextmanager
    def _transaction(self, before: dict[str, Any] | None) -> Iterator[None]:
        """Makes an iteration count completely or not at all.

        If the body raises, `_save_after` writes `before`, the state in which the iteration had not
        started. If that is None it writes nothing, and the checkpoint on the disk remains.
        """
        self._state_to_save = lambda: before
        yield
        self._state_to_save = self.state_dict

    def _save_after(self, error: BaseException) -> None:
        """Writes a checkpoint of the last complete iteration after an error."""
        try:
            if (state := self._state_to_save()) is not None:
                self._checkpoints.save_last(state)
        except OSError as disk:
            error.add_note(f"no checkpoint could be written: {disk}")

    def _collection(self, round_: Round) -> Collection:
        """In lock-step seconds from publication to the last rollout, else the busy times."""
        if not self._lag.lock_step:
            return Collection.of(round_.busy_s)
        # A process's first policy was published before the samplers were ready.
        first = self.iteration == self._first_iteration
        start_ns = round_.began_ns if first else self._published_ns
        return Collection.of([(round_.last_sent_ns - start_ns) * 1e-9])

    def _next_snapshot(self) -> PolicySnapshot:
        self._timer.switch("publish")
        snapshot = self._algorithm.snapshot()._replace(version=self._version)
        return snapshot if self._quota is None else self._quota(snapshot)

    def _publish(self, snapshot: PolicySnapshot) -> None:
        """Reads the clock first, because a sampler that wakes may take the core at once."""
        self._published_ns = self._timer.switch("publish")
        self._sampling.publish(snapshot)
        self._live.append(snapshot)
        self._timer.switch("other")

    def _evaluate(self, signals: Signals) -> None:
        with self._timer.section("evaluate"), self._sampling.busy(), suppress(Interrupted):
            evaluation = self._evaluations.run(self._algorithm.snapshot(), signals)
            if evaluation is None:
                return
            self.recorder.evaluation(self.env_steps, evaluation)
            is_best = self._evaluations.improved(evaluation.mean)
            if is_best:
                with self._timer.section("checkpoint"):
                    self._checkpoints.save_best(self._policy_state())
            self.callbacks.at(self.iteration, self.env_steps)
            self.callbacks.evaluation(evaluation, is_best=is_best)

    def save_last(self) -> None:
        """Writes checkpoints/last.pt, and the new rows of a replay buffer beside it."""
        self._checkpoints.save_last(self.state_dict())
        self.callbacks.checkpoint()

    def _policy_state(self) -> dict[str, Any]:
        """The state without what only training needs; both kinds of checkpoint have it."""
        return {
            "algorithm": self._algorithm.state_dict(),
            "snapshot": self._algorithm.snapshot()._replace(version=self._version),
            "env_steps": self.env_steps,
            "iteration": self.iteration,
            "return_mean": self.recorder.return_mean,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of the run between two iterations."""
        return {
            **self._policy_state(),
            **self._evaluations.state_dict(),
            "version": self._version,
            "live": list(self._live),
            "lanes": self._sampling.lanes.state_dict(),
            "quota": self._quota and self._quota.state_dict(),
            "recorder": self.recorder.state_dict(),
            "replay": self._checkpoints.replay_size(),
            "callbacks": self.callbacks.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`, except for the recorder and the samplers' lanes."""
        self._algorithm.load_state_dict(state["algorithm"])
        self._checkpoints.load_replay(state["replay"])
        self.callbacks.load_state_dict(state.get("callbacks", {"states": {}, "stopped_by": None}))
        if self._quota is not None:
            self._quota.load_state_dict(state["quota"])
        self._evaluations.load_state_dict(state)
        self._version = state["version"]
        self._live.extend(PolicySnapshot.loaded(fields) for fields in state["live"])
        self.env_steps, self.iteration = state["env_steps"], state["iteration"]
        self._first_iteration = self.iteration + 1

    def close(self) -> None:
        """Closes the files, the sinks and the evaluation's lanes."""
        self.recorder.close(self.env_steps)
        self._evaluations.close()
