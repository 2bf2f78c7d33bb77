"""The agent receives a round, learns from it, publishes the policy and records the iteration."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from walle.agent.callback import CheckpointInfo, EndInfo, EvaluationInfo, Info, RoundInfo
from walle.agent.callbacks import Callbacks, stop_reason
from walle.agent.checkpoint import CheckpointFiles, as_data
from walle.agent.evaluation import Evaluator
from walle.agent.recorder import Iteration, Recorder
from walle.algos.base import Algorithm
from walle.errors import Interrupted, RolloutError
from walle.sampling.episodes import EpisodeQuota
from walle.sampling.sampling import Sampling
from walle.system.signals import Signals
from walle.system.supervision import Watchdog
from walle.timing import Every, Timer
from walle.types import Lag, PolicySnapshot


@dataclass(kw_only=True, eq=False)
class Agent:
    """Owns the algorithm and counts the policy's versions, from 0.

    An iteration lasts from the publication of a policy to the publication of the next one.
    """

    algorithm: Algorithm
    sampling: Sampling
    recorder: Recorder
    evaluator: Evaluator | None
    evaluation_is_due: Every
    watchdog: Watchdog  # limits the time of an evaluation
    checkpoints: CheckpointFiles
    callbacks: Callbacks
    timer: Timer  # runs since the run started; start-up counts as `other`
    lag: Lag
    quota: EpisodeQuota | None  # decides the number of episodes of rounds with whole episodes
    # whether to keep the state before each update, so that an update can be undone if a signal or
    # the death of a worker interrupts it
    undo: bool
    env_steps: int = 0  # environment steps learned from
    iteration: int = 0  # number of the last round that was learned from

    def __post_init__(self) -> None:
        """Starts with version 0 of the policy; each iteration makes the next."""
        self._published_ns = 0
        self._live: deque[PolicySnapshot] = deque(maxlen=self.lag.depth)
        self._first_iteration = 1
        self._state_to_save: Callable[[], dict[str, Any] | None] = self.state_dict
        self._evaluations = 0
        self._evaluated_at = 0  # environment steps of the last evaluation, or of the resume
        self.best: float | None = None  # the highest mean return of an evaluation
        self._is_unfinished = False  # whether an evaluation must still be made or repeated
        self._is_long = True  # whether updates may last over a second; if so, signals undo them
        self.sampling.events.listen(self.recorder.news)
        self._at = "starting"
        self.recorder.progress.doing = lambda: f"{self._at}: {self.timer}"

    def run(self, total_steps: int, signals: Signals) -> None:
        """Returns after `total_steps`, or after the iteration in which a signal arrives.

        However the run ends, the state between two iterations is saved, unless an update failed and
        the state before it was not kept.

        Raises:
            Interrupted: a signal arrived while the agent compiled, waited or took a long update.
        """
        try:
            # Version 0 or, after a resume, all versions that samplers may still use. Samplers
            # collect during the warm-up.
            for snapshot in list(self._live) or [self._next_snapshot()]:
                self._publish(snapshot)
            self._warm_up(signals)
            self.sampling.wait_ready()
            if self._is_unfinished:  # the run was interrupted in an evaluation
                self._evaluate(signals)
            while self.env_steps < total_steps:
                if signals.arrived() or self.callbacks.stopped_by is not None:
                    break
                self._iterate(total_steps, signals)
                if signals.take_save_request():
                    with self.timer.section("checkpoint"):
                        self.save_last()
            if self._is_unfinished and not signals.arrived():  # a callback stopped the run
                self._evaluate(signals)
        except BaseException as error:
            path = None
            try:
                # An error within `receive` may leave lanes ahead of what was learned.
                if (state := self._state_to_save()) is not None and (
                    self.lag.free_running
                    or all(block["round"] == state["iteration"] for block in state["lanes"])
                ):
                    path = self._write(state)
            except Exception as other:  # noqa: BLE001 - of a device, for example
                error.add_note(f"no checkpoint could be written: {other}")
            if isinstance(error, Interrupted):
                if path is not None:
                    self._call("on_checkpoint", CheckpointInfo, path=path)
                self._call("on_end", EndInfo, reason="interrupted", best=self.best)
            raise
        self.save_last()
        stopped = stop_reason(self.callbacks.stopped_by)
        reason = "interrupted" if signals.arrived() else stopped or "completed"
        self._call("on_end", EndInfo, reason=reason, best=self.best)

    def _warm_up(self, signals: Signals) -> None:
        """Compiles in the section `compile`, so that it never counts as learning time."""
        with self.timer.section("compile"), self.sampling.busy():
            try:
                with signals.breaking_off():
                    line = self.algorithm.warm_up()
            except Exception as error:
                if not signals.arrived():
                    raise
                raise Interrupted from error  # the same Ctrl-C may have ended the compiler
        self.recorder.say(line)

    def _iterate(self, total_steps: int, signals: Signals) -> None:
        self._at = f"round {self.iteration + 1}"
        self.timer.switch("wait_experience")
        can_undo = self.undo or self._is_long
        before = self.state_dict() if can_undo else None
        before = as_data(before) if self._is_long else before  # an update may change its tensors
        round_ = self.sampling.receive()
        failed: Exception | None = None
        # An iteration counts completely or not at all. After an error `run` saves the state from
        # before the iteration, or nothing if that was not kept; the last checkpoint then remains.
        self._state_to_save = lambda: before
        lag = self.iteration - round_.rollout.policy_version
        start_ns = self.timer.switch("update")
        with self.sampling.busy(), signals.breaking_off() if can_undo else nullcontext():
            for rollout in round_.dropped or ():
                self.algorithm.skip(rollout)
            metrics = self.algorithm.update(round_.rollout._replace(lag=lag))
        took_ns, learned = self.timer.switch("other") - start_ns, metrics.get("gradient_steps", 1)
        self._is_long = took_ns > 1e9 or not learned  # the first gradient steps may take long
        if self.quota is not None:
            self.quota.observe(round_.rollout)
        self.env_steps += round_.rollout.env_steps
        self.iteration += 1
        try:
            last = self.env_steps >= total_steps
            if self.evaluation_is_due(self.env_steps) or last:
                self._at = "last evaluation" if last else self._at
                self._evaluate(signals)
        except Exception as error:  # noqa: BLE001 - raised when the iteration is complete
            failed = error
        if self.recorder.video_is_due(self.env_steps):
            with suppress(Interrupted), self.timer.section("evaluate"), self.sampling.busy():
                self.recorder.film(self.algorithm.snapshot(), self.env_steps, signals)
        collect_s = round_.busy_s
        if self.lag.lock_step:  # from publication to the last rollout
            # The first policy of a process is published before the samplers are ready.
            first = self.iteration == self._first_iteration
            start_ns = round_.began_ns if first else self._published_ns
            collect_s = [(round_.last_sent_ns - start_ns) * 1e-9]
        snapshot = self._next_snapshot()
        seconds = self.timer.take()
        self._publish(snapshot)
        self.timer.switch("log")
        iteration = Iteration(
            self.iteration, self.env_steps, round_, lag, collect_s, seconds, metrics
        )
        self.recorder.iteration(iteration, self.timer.spans())
        self._state_to_save = self.state_dict
        self.timer.switch("other")
        if failed is not None:
            raise failed
        faults, episodes = self.recorder.tracker.faults, self.recorder.tracker.count
        if round_.faults and faults > max(10, episodes / 1000):
            raise RolloutError(
                f"{faults} faults of the environment in {episodes:,} episodes: env.on_error=reset "
                "is for 10, or for 1 in 1,000 episodes; mend the environment"
            )
        self._call("on_round", RoundInfo, metrics=metrics)
        if self.checkpoints.are_due(self.env_steps):
            self.timer.switch("checkpoint")
            self.save_last()

    def _next_snapshot(self) -> PolicySnapshot:
        self.timer.switch("publish")
        snapshot = self.algorithm.snapshot()._replace(version=self.iteration)
        return snapshot if self.quota is None else self.quota(snapshot)

    def _publish(self, snapshot: PolicySnapshot) -> None:
        """Reads the clock first, because a sampler that wakes may take the core at once."""
        self._published_ns = self.timer.switch("publish")
        self.sampling.publish(snapshot)
        self._live.append(snapshot)
        self.timer.switch("other")

    def _evaluate(self, signals: Signals) -> None:
        if self.evaluator is None:
            return
        with self.timer.section("evaluate"), suppress(Interrupted):
            self._is_unfinished = True
            self.recorder.progress.look(self.env_steps)
            snapshot, stepped_at = self.algorithm.snapshot(), 0.0

            def interrupted() -> bool:  # called before every step
                nonlocal stepped_at
                stepped_at = time.monotonic()
                return signals.arrived()

            watched = self.watchdog.over("the evaluation has made no step for", lambda: stepped_at)
            with self.sampling.busy(), signals.breaking_off(), watched:
                evaluation = self.evaluator.evaluate(snapshot, self._evaluations, interrupted)
            if evaluation is None:
                return
            self._is_unfinished = False
            self._evaluated_at = self.env_steps
            self._evaluations += 1
            self.recorder.evaluation(self.env_steps, evaluation)
            mean = evaluation.mean
            is_best = not math.isnan(mean) and (self.best is None or mean > self.best)
            if is_best:
                with self.timer.section("checkpoint"):
                    self.checkpoints.save_best(self._policy_state())
                self.best = mean
            self._call(
                "on_evaluation",
                EvaluationInfo,
                returns=tuple(evaluation.returns),
                lengths=tuple(evaluation.lengths),
                mean=mean,
                is_best=is_best,
            )

    def save_last(self) -> None:
        """Writes checkpoints/last.pt, and the new rows of a replay buffer next to it."""
        path = self._write(self.state_dict())
        self._call("on_checkpoint", CheckpointInfo, path=path)

    def _write(self, state: dict[str, Any]) -> Path:
        self.recorder.sync()  # after a crash the files must have the rows that the state counts
        return self.checkpoints.save_last(state)

    def _call(self, hook: str, kind: type[Info], **facts: Any) -> None:
        self.callbacks.call(hook, kind, self.iteration, self.env_steps, **facts)
        if self.callbacks.stopped_by is not None and self._evaluated_at < self.env_steps:
            self._is_unfinished = True  # until the evaluation at the end

    def _policy_state(self) -> dict[str, Any]:
        """The part of the state that acting needs; both kinds of checkpoint have it."""
        return {
            "algorithm": self.algorithm.state_dict(),
            "snapshot": self.algorithm.snapshot()._replace(version=self.iteration),
            "env_steps": self.env_steps,
            "iteration": self.iteration,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of the run between two iterations."""
        return {
            **self._policy_state(),
            "best": self.best,
            "evaluations": self._evaluations,
            "evaluation_is_due": self._is_unfinished,
            "live": list(self._live),
            "lanes": self.sampling.lanes.state_dict(),
            "quota": self.quota and self.quota.state_dict(),
            "recorder": self.recorder.state_dict(),
            "replay": self.checkpoints.replay_size(),
            "callbacks": self.callbacks.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`, except for the recorder and the samplers' lanes."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.checkpoints.load_replay(state)
        self.callbacks.load_state_dict(state["callbacks"])
        if self.quota is not None:
            self.quota.load_state_dict(state["quota"])
        self.best, self._evaluations = state["best"], state["evaluations"]
        self._is_unfinished = state["evaluation_is_due"]
        live = (PolicySnapshot.loaded(fields) for fields in state["live"])
        self._live.extend(sorted(live, key=attrgetter("version")))
        self.env_steps, self.iteration = state["env_steps"], state["iteration"]
        self._evaluated_at = self.env_steps
        self._first_iteration = self.iteration + 1
