"""The agent receives a round, learns from it, publishes the policy and records the iteration."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from walle.agent.cadence import Every
from walle.agent.callbacks.calling import Callbacks
from walle.agent.checkpoint import CheckpointFiles
from walle.agent.evaluation import Evaluator
from walle.agent.iteration_rows import Collection
from walle.agent.recorder import Iteration, Recorder
from walle.algos.base import Algorithm
from walle.errors import Interrupted
from walle.learning.optimizer import draw_ahead
from walle.sampling.episodes import EpisodeQuota
from walle.sampling.rounds import Round
from walle.sampling.sampling import Sampling
from walle.system.signals import Signals
from walle.system.supervision import Watchdog
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
        evaluator: Evaluator | None,
        timer: Timer,
        *,
        directory: Path,
        config: dict[str, Any],
        policy: dict[str, Any] | None,
        lag: Lag,
        quota: EpisodeQuota | None,
        should_evaluate: Every,
        should_save: Every,
        shared: bool,
        watchdog: Watchdog,
        callbacks: Callbacks,
    ) -> None:
        """Begins with version 0 of the policy.

        Args:
            algorithm: learns from rounds.
            sampling: the samplers, which collect rounds.
            recorder: writes the files of the run.
            evaluator: evaluates the policy without noise; None for no evaluation.
            timer: runs since the run began; start-up counts as `other`.
            directory: the run's directory, in which checkpoints are written.
            config: the configuration as plain values, stored in every checkpoint.
            policy: the policy as `walle.policy.loading` reads it, stored as well.
            lag: the allowed lag of the samplers.
            quota: decides the number of episodes of a round, if rounds have whole episodes.
            should_evaluate: whether to evaluate after so many environment steps.
            should_save: whether to write a checkpoint after so many environment steps.
            shared: whether other learners, which may die, take part in updates.
            watchdog: ends an evaluation that hangs.
            callbacks: the user's own hooks.
        """
        # A worker that ends breaks off such an update; the state before it is kept to be saved.
        self._breakable = shared or (not lag.lock_step and algorithm.replay is None)
        self._watchdog, self.callbacks = watchdog, callbacks
        self._algorithm, self._sampling, self._recorder = algorithm, sampling, recorder
        self._evaluator, self._timer = evaluator, timer
        self._files = CheckpointFiles(directory / "checkpoints", algorithm.replay)
        self._config, self._policy, self._lag, self._quota = config, policy, lag, quota
        self._should_evaluate, self._should_save = should_evaluate, should_save
        self._best: float | None = None
        self._evaluations = 0
        self._evaluation_is_due = False
        self._published_ns = 0
        self._version = 0
        self._live: deque[PolicySnapshot] = deque(maxlen=lag.depth)
        self._first_iteration = 1
        self._whole = True
        self._before_update: dict[str, Any] | None = None
        self.env_steps = 0
        self.iteration = 0
        sampling.events.listen(recorder.news)

    @property
    def returns(self) -> tuple[float | None, float | None, float | None]:
        """Mean returns: of the last and of the best evaluation, and of the last episodes."""
        return self._recorder.eval_mean, self._best, self._recorder.return_mean

    def run(self, total_steps: int, signals: Signals) -> None:
        """Returns after `total_steps`, or after the iteration in which a signal arrives.

        However it ends, the state between two iterations is saved.

        Raises:
            Interrupted: a signal arrived while the agent compiled or waited for a round.
        """
        try:
            self._run(total_steps, signals)
        except BaseException as error:
            self._save_after(error)
            raise
        self.save_last()
        self.callbacks.end(self._best, interrupted=signals.arrived())

    def _save_after(self, error: BaseException) -> None:
        """Saves what is whole: the present state, or that before an update with other learners."""
        state = self.state_dict() if self._whole else self._before_update
        try:
            if state is not None:
                self._files.save_last(state)
        except OSError as disk:
            error.add_note(f"no checkpoint could be written: {disk}")

    def _run(self, total_steps: int, signals: Signals) -> None:
        self._publish_first()  # samplers collect while this process compiles
        self._warm_up(signals)
        self._sampling.wait_ready()
        if self._evaluation_is_due:  # an earlier process was interrupted in it
            self._evaluate(signals)
        while self.env_steps < total_steps and not self._must_end(signals):
            self._iterate(total_steps, signals)
            if signals.take_save_request():
                with self._timer.section("checkpoint"):
                    self.save_last()

    def _must_end(self, signals: Signals) -> bool:
        return signals.arrived() or self.callbacks.stopped_by is not None

    def _publish_first(self) -> None:
        """Publishes version 0, or the versions that samplers may still act under."""
        live = list(self._live) or [self._next_snapshot()]
        for snapshot in live:
            self._publish(snapshot)

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
        self._recorder.say(line)

    def _iterate(self, total_steps: int, signals: Signals) -> None:
        self._timer.switch("wait_experience")
        if self._breakable:
            self._before_update = self.state_dict()
        round_ = self._sampling.receive()
        self._whole = False
        self._timer.switch("update")
        lag = self._version - round_.rollout.policy_version
        with self._sampling.busy():
            for rollout in round_.dropped or ():
                self._algorithm.skip(rollout)
            metrics = self._algorithm.update(round_.rollout._replace(lag=lag))
        self._timer.switch("other")
        if self._quota is not None:
            self._quota.observe(round_.rollout)
        self.env_steps += round_.rollout.env_steps
        self.iteration += 1
        failed: Exception | None = None
        if self._should_evaluate(self.env_steps) or self.env_steps >= total_steps:
            try:
                self._evaluate(signals)
            except Exception as error:  # noqa: BLE001 - raised when the iteration is whole
                failed = error
        if self._recorder.video_is_due(self.env_steps):
            with suppress(Interrupted), self._timer.section("evaluate"), self._sampling.busy():
                self._recorder.film(self._algorithm.snapshot(), self.env_steps, signals)
        version, collection = self._version, self._collection(round_)
        self._version += 1
        snapshot = self._next_snapshot()
        seconds = self._timer.take()
        self._publish(snapshot)
        self._timer.switch("log")
        found = Iteration(
            self.iteration, self.env_steps, round_, version, lag, collection, seconds, metrics
        )
        self._recorder.iteration(found, self._timer.spans())
        self._whole = True
        self._timer.switch("other")
        if failed is not None:
            raise failed
        draw_ahead(self._algorithm)
        self.callbacks.round(found)
        if self._should_save(self.env_steps):
            self._timer.switch("checkpoint")
            self.save_last()

    def _collection(self, round_: Round) -> Collection:
        """In lock-step seconds from publication to the last rollout, else the busy times."""
        if not self._lag.lock_step:
            return Collection.of(round_.busy_s)
        # A process's first policy was published before the samplers were ready.
        first = self.iteration == self._first_iteration
        began_ns = round_.began_ns if first else self._published_ns
        return Collection.of([(round_.last_sent_ns - began_ns) * 1e-9])

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
        if self._evaluator is None:
            return
        self._evaluation_is_due = True
        with self._timer.section("evaluate"), self._sampling.busy(), suppress(Interrupted):
            with signals.breaking_off(), self._watchdog.over("the evaluation"):
                found = self._evaluator.evaluate(
                    self._algorithm.snapshot(), self._evaluations, signals.arrived
                )
            if found is not None:
                self._evaluation_is_due = False
                self._evaluations += 1
                self._recorder.evaluation(self.env_steps, found)
                is_best = self._keep_best(float(np.mean(found.returns)))
                self.callbacks.at(self.iteration, self.env_steps)
                self.callbacks.evaluation(found, is_best=is_best)

    def _keep_best(self, score: float) -> bool:
        """Writes best.pt if no evaluation had a higher score; NaN is lower than any number."""
        if math.isnan(score) or (self._best is not None and score <= self._best):
            return False
        self._best = score
        with self._timer.section("checkpoint"):
            self._files.save_best(self._policy_state())
        return True

    def save_last(self) -> None:
        """Writes checkpoints/last.pt, and the new rows of a replay buffer beside it."""
        self._files.save_last(self.state_dict())
        self.callbacks.checkpoint()

    def _policy_state(self) -> dict[str, Any]:
        """The state without what only training needs; both kinds of checkpoint have it."""
        return {
            "config": self._config,
            "policy": self._policy,
            "algorithm": self._algorithm.state_dict(),
            "snapshot": self._algorithm.snapshot()._replace(version=self._version),
            "env_steps": self.env_steps,
            "iteration": self.iteration,
            "return_mean": self._recorder.return_mean,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of the run between two iterations."""
        return {
            **self._policy_state(),
            "version": self._version,
            "live": list(self._live),
            "lanes": self._sampling.lanes.state_dict(),
            "quota": self._quota and self._quota.state_dict(),
            "best": self._best,
            "evaluations": self._evaluations,
            "evaluation_is_due": self._evaluation_is_due,
            "recorder": self._recorder.state_dict(),
            "replay": self._files.replay_size(),
            "callbacks": self.callbacks.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`, except for the recorder and the samplers' lanes."""
        self._algorithm.load_state_dict(state["algorithm"])
        self._files.load_replay(state["replay"])
        self.callbacks.load_state_dict(state.get("callbacks", {"states": {}, "stopped_by": None}))
        if self._quota is not None:
            self._quota.load_state_dict(state["quota"])
        self._version, self._best = state["version"], state["best"]
        self._evaluations = state["evaluations"]
        self._evaluation_is_due = state["evaluation_is_due"]
        self._live.extend(PolicySnapshot.loaded(each) for each in state["live"])
        self.env_steps, self.iteration = state["env_steps"], state["iteration"]
        self._first_iteration = self.iteration + 1

    def close(self) -> None:
        """Closes the files, the sinks and the evaluation's lanes."""
        self._recorder.close(self.env_steps)
        if self._evaluator is not None:
            self._evaluator.close()
