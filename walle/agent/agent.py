"""The agent receives a round, learns from it, publishes the policy and records the iteration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from walle.agent import checkpoint
from walle.agent.cadence import Every
from walle.agent.evaluation import Evaluator
from walle.agent.recorder import Iteration, Recorder
from walle.algos.base import Algorithm
from walle.collecting.episodes import EpisodeQuota
from walle.errors import Interrupted
from walle.learning.optimizer import warm_up
from walle.processes.signals import Signals
from walle.timing import Timer
from walle.transport.rounds import Round
from walle.transport.sampling import Sampling
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
        lag: Lag,
        quota: EpisodeQuota | None,
        should_evaluate: Every,
        should_save: Every,
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
            lag: the allowed lag of the samplers.
            quota: decides the number of episodes of a round, if rounds have whole episodes.
            should_evaluate: whether to evaluate after so many environment steps.
            should_save: whether to write a checkpoint after so many environment steps.
        """
        self._algorithm, self._sampling, self._recorder = algorithm, sampling, recorder
        self._evaluator, self._timer = evaluator, timer
        self._checkpoints, self._config = directory / "checkpoints", config
        self._lag, self._quota = lag, quota
        self._should_evaluate, self._should_save = should_evaluate, should_save
        self._best: float | None = None
        self._published_ns = 0
        self._version = 0
        self.env_steps = 0
        self.iteration = 0

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last episodes."""
        return self._recorder.return_mean

    def run(self, total_steps: int, signals: Signals) -> None:
        """Returns after `total_steps`, or after the iteration in which a signal arrives.

        Raises:
            Interrupted: a signal arrived while the agent compiled or waited for a round.
        """
        self._publish(self._next_snapshot())  # samplers collect while this process compiles
        self._warm_up(signals)
        self._sampling.wait_ready()
        while self.env_steps < total_steps and not signals.arrived():
            self._iterate(total_steps, signals.arrived)
        self.save_last()

    def _warm_up(self, signals: Signals) -> None:
        """Compiles in the section `compile`, so that it never counts as learning time."""
        with self._timer.section("compile"), self._sampling.busy():
            try:
                with signals.breaking_off():
                    line = warm_up(self._algorithm)
            except Exception as error:
                if not signals.arrived():
                    raise
                raise Interrupted from error  # the same Ctrl-C may have ended the compiler
        self._recorder.say(line)

    def _iterate(self, total_steps: int, interrupted: Callable[[], bool]) -> None:
        self._timer.switch("wait_experience")
        round_ = self._sampling.receive()
        self._timer.switch("update")
        lag = self._version - round_.rollout.policy_version
        with self._sampling.busy():
            metrics = self._algorithm.update(round_.rollout._replace(lag=lag))
        self._timer.switch("other")
        if self._quota is not None:
            self._quota.observe(round_.rollout)
        self.env_steps += round_.rollout.env_steps
        self.iteration += 1
        if self._should_evaluate(self.env_steps) or self.env_steps >= total_steps:
            self._evaluate(interrupted)
        version, collect_s = self._version, self._collect_s(round_)
        self._version += 1
        snapshot = self._next_snapshot()
        seconds = self._timer.take()
        self._publish(snapshot)
        self._timer.switch("log")
        found = Iteration(
            self.iteration, self.env_steps, round_, version, lag, collect_s, seconds, metrics
        )
        self._recorder.iteration(found, self._timer.spans())
        if self._should_save(self.env_steps):
            self._timer.switch("checkpoint")
            self.save_last()

    def _collect_s(self, round_: Round) -> float:
        """In lock-step seconds from publication to the last rollout, else the mean busy time."""
        if not self._lag.lock_step:
            return round_.busy_s
        # The first policy was published before the samplers were ready.
        began_ns = round_.began_ns if self.iteration == 1 else self._published_ns
        return (round_.last_sent_ns - began_ns) * 1e-9

    def _next_snapshot(self) -> PolicySnapshot:
        self._timer.switch("publish")
        snapshot = self._algorithm.snapshot()._replace(version=self._version)
        return snapshot if self._quota is None else self._quota(snapshot)

    def _publish(self, snapshot: PolicySnapshot) -> None:
        """Reads the clock first, because a sampler that wakes may take the core at once."""
        self._published_ns = self._timer.switch("publish")
        self._sampling.publish(snapshot)
        self._timer.switch("other")

    def _evaluate(self, interrupted: Callable[[], bool]) -> None:
        if self._evaluator is None:
            return
        with self._timer.section("evaluate"), self._sampling.busy():
            found = self._evaluator.evaluate(self._algorithm.snapshot(), interrupted)
        if found is not None:
            self._recorder.evaluation(self.env_steps, found)
            self._keep_best(float(np.mean(found.returns)))

    def _keep_best(self, score: float) -> None:
        if self._best is None or score > self._best:
            self._best = score
            with self._timer.section("checkpoint"):
                self._save("best", {})  # for evaluation, so without the replay buffer

    def save_last(self) -> None:
        """Writes checkpoints/last.pt, with the replay buffer if the algorithm has one."""
        replay = self._algorithm.replay
        self._save("last", {} if replay is None else {"replay": replay.state_dict()})

    def _save(self, name: str, more: dict[str, Any]) -> None:
        state = {
            "config": self._config,
            "algorithm": self._algorithm.state_dict(),
            "snapshot": self._algorithm.snapshot()._replace(version=self._version),
            "env_steps": self.env_steps,
            "iteration": self.iteration,
            "return_mean": self.return_mean,
            **more,
        }
        checkpoint.save(self._checkpoints / f"{name}.pt", state)

    def close(self) -> None:
        """Closes the files, the sinks and the evaluation's lanes."""
        self._recorder.close(self.env_steps)
        if self._evaluator is not None:
            self._evaluator.close()
