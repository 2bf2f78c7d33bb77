"""The agent: receive a round, learn from it, publish the policy, write where the time went."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from walle.agent import checkpoint
from walle.agent.evaluation import Evaluator
from walle.agent.metrics import (
    EPISODE_COLUMNS,
    CsvFile,
    Episode,
    EpisodeTracker,
    Sink,
    Value,
    spread,
)
from walle.agent.progress import Progress
from walle.algos.base import Algorithm, warm_up
from walle.collecting.episodes import EpisodeQuota
from walle.errors import Interrupted
from walle.processes.signals import Signals
from walle.timing import AGENT_SECTIONS, SAMPLER_SECTIONS, Timer, TraceFile
from walle.transport.rounds import Round
from walle.transport.sampling import Sampling
from walle.types import PolicySnapshot

_ALL_SECTIONS = (*SAMPLER_SECTIONS[:-1], *AGENT_SECTIONS)


class Every:
    """A cadence in environment steps: true once for every `period` that passes; None is never."""

    def __init__(self, period: int | None) -> None:
        """The first time comes at `period`."""
        self._period = period
        self._next = period

    def __call__(self, env_steps: int) -> bool:
        """Whether a period has passed since the last true."""
        if self._period is None or self._next is None or env_steps < self._next:
            return False
        self._next = (env_steps // self._period + 1) * self._period
        return True


class Outputs(NamedTuple):
    """Where an agent writes.

    Attributes:
        directory: of the run.
        start_ns: the run's start on the monotonic clock; `wall_s` counts from it.
        config: plain values, kept in every checkpoint.
        sinks: TensorBoard, W&B, or none.
        progress: what a person sees.
        trace: the file of spans, if asked for.
    """

    directory: Path
    start_ns: int
    config: dict[str, Any]
    sinks: Sequence[Sink]
    progress: Progress
    trace: TraceFile | None


class Agent:
    """Owns the algorithm. An iteration lasts from one publishing of a policy to the next."""

    def __init__(
        self,
        algorithm: Algorithm,
        sampling: Sampling,
        tracker: EpisodeTracker,
        evaluator: Evaluator | None,
        outputs: Outputs,
        timer: Timer,
        *,
        lock_step: bool,
        quota: EpisodeQuota | None,
        should_evaluate: Every,
        should_save: Every,
    ) -> None:
        """`timer` has been running since the run began; start-up counts as `other`.

        `quota` decides how many episodes a round has, where it is made of whole ones.
        """
        self._algorithm = algorithm
        self._sampling = sampling
        self._tracker = tracker
        self._evaluator = evaluator
        self._out = outputs
        self._timer = timer
        self._lock_step = lock_step
        self._quota = quota
        self._should_evaluate = should_evaluate
        self._should_save = should_save
        columns = {"iterations": None, "episodes": EPISODE_COLUMNS, "timing": None, "eval": None}
        self._files = {
            name: CsvFile(outputs.directory / f"{name}.csv", known)
            for name, known in columns.items()
        }
        self._best: float | None = None
        self._published_ns = 0
        self._version = 0
        self.env_steps = 0
        self.iteration = 0

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last episodes."""
        return self._tracker.return_mean

    def run(self, total_steps: int, signals: Signals) -> None:
        """Iterates until `total_steps` environment steps have been learned from, or interrupted.

        Raises:
            Interrupted: a signal broke off a wait.
        """
        self._publish(self._snapshot())  # for the samplers to collect while this process compiles
        self._warm_up(signals)
        self._sampling.wait_ready()
        while self.env_steps < total_steps and not signals.arrived():
            self._iterate(total_steps, signals.arrived)
        self._save("last")

    def _warm_up(self, signals: Signals) -> None:
        """Compiles: a section of its own, never learning time."""
        with self._timer.section("compile"), self._sampling.busy():
            try:
                with signals.breaking_off():
                    self._out.progress.say(warm_up(self._algorithm))
            except Exception as error:
                if not signals.arrived():
                    raise
                raise Interrupted from error  # the compiler may have died of the same Ctrl-C

    def _iterate(self, total_steps: int, interrupted: Callable[[], bool]) -> None:
        self._timer.switch("wait_experience")
        experience = self._sampling.receive()
        self._timer.switch("update")
        version = self._version
        with self._sampling.busy():
            metrics = self._algorithm.update(experience.rollout)
        self._timer.switch("other")
        if self._quota is not None:
            self._quota.observe(experience.rollout)
        before, self.env_steps = self.env_steps, self.env_steps + experience.rollout.steps
        self.iteration += 1
        if self._should_evaluate(self.env_steps) or self.env_steps >= total_steps:
            self._evaluate(interrupted)
        collect_s = experience.busy_s
        if self._lock_step:  # the first policy was there before the samplers were
            began_ns = experience.began_ns if self.iteration == 1 else self._published_ns
            collect_s = (experience.last_sent_ns - began_ns) * 1e-9
        snapshot = self._snapshot()
        seconds = self._timer.collect()
        self._publish(snapshot)
        self._timer.switch("log")
        self._log(experience, seconds, collect_s, version, metrics, before)
        if self._should_save(self.env_steps):
            self._timer.switch("checkpoint")
            self._save("last")

    def _snapshot(self) -> PolicySnapshot:
        self._timer.switch("publish")
        snapshot = self._algorithm.snapshot()
        return snapshot if self._quota is None else self._quota(snapshot)

    def _publish(self, snapshot: PolicySnapshot) -> None:
        """The clock is read first: a sampler that this wakes may take the core at once."""
        self._published_ns = self._timer.switch("publish")
        self._sampling.publish(snapshot)
        self._version = snapshot.version
        self._timer.switch("other")

    def _log(
        self,
        experience: Round,
        seconds: dict[str, float],
        collect_s: float,
        version: int,
        metrics: dict[str, float],
        steps_before: int,
    ) -> None:
        wall_s = (time.monotonic_ns() - self._out.start_ns) * 1e-9
        episodes: list[Episode] = []
        for part in experience.parts:
            episodes += self._tracker.add(part, steps_before, wall_s)
            steps_before += part.steps
        self._files["episodes"].append([episode.row() for episode in episodes])
        row: dict[str, Value] = {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "episodes": self._tracker.count,
            "wall_s": wall_s,
            **durations(seconds, collect_s, lock_step=self._lock_step),
            "env_steps_per_s": experience.rollout.steps / sum(seconds.values()),
            **lags(version, experience.rollout.policy_version),
            **self._returns(episodes),
            **metrics,
        }
        self._files["iterations"].append([row])
        rows = [("agent", seconds), *experience.sections_s]
        self._files["timing"].append(
            [timing_row(process, self.iteration, found) for process, found in rows]
        )
        if self._out.trace:
            self._out.trace.write(self._timer.spans())
        for sink in self._out.sinks:
            sink.iteration(row)
        self._out.progress.show(row)

    def _returns(self, episodes: list[Episode]) -> dict[str, Value]:
        round_ = spread([episode.episode_return for episode in episodes], "return_round")
        order = ("mean", "min", "max", "std")
        return {
            "return_mean": self._tracker.return_mean,
            **{f"return_round_{name}": round_[f"return_round_{name}"] for name in order},
            "length_mean": self._tracker.length_mean,
        }

    def _evaluate(self, interrupted: Callable[[], bool]) -> None:
        if self._evaluator is None:
            return
        with self._timer.section("evaluate"), self._sampling.busy():
            found = self._evaluator.evaluate(self._algorithm.snapshot(), interrupted)
        if found is None:
            return
        row: dict[str, Value] = {
            "env_steps": self.env_steps,
            "wall_s": (time.monotonic_ns() - self._out.start_ns) * 1e-9,
            "episodes": len(found.returns),
            **spread(found.returns, "return", median=True),
            "length_mean": float(np.mean(found.lengths)),
        }
        self._files["eval"].append([row])
        for sink in self._out.sinks:
            sink.evaluation(row)
        self._keep_best(float(np.mean(found.returns)))

    def _keep_best(self, score: float) -> None:
        if self._best is None or score > self._best:
            self._best = score
            with self._timer.section("checkpoint"):
                self._save("best")

    def _save(self, name: str) -> None:
        learned = self._algorithm.state_dict()
        if name == "best":  # to be looked at, not to go on from: without a replay buffer
            learned.pop("replay", None)
        state = {
            "config": self._out.config,
            "algorithm": learned,
            "snapshot": self._algorithm.snapshot(),
            "env_steps": self.env_steps,
            "iteration": self.iteration,
            "return_mean": self.return_mean,
        }
        checkpoint.save(self._out.directory / "checkpoints" / f"{name}.pt", state)

    def save_last(self) -> None:
        """Writes checkpoints/last.pt; for an interrupted run."""
        self._save("last")

    def close(self) -> None:
        """Closes the files, the sinks and the evaluation's lanes."""
        summary: dict[str, Value] = {
            "env_steps": self.env_steps,
            "return_mean": self.return_mean,
            "wall_s": (time.monotonic_ns() - self._out.start_ns) * 1e-9,
        }
        for sink in self._out.sinks:
            sink.close(summary)
        for file in self._files.values():
            file.close()
        self._out.progress.close()
        if self._evaluator is not None:
            self._evaluator.close()


def durations(seconds: dict[str, float], collect_s: float, *, lock_step: bool) -> dict[str, Value]:
    """iteration_s, collect_s, learn_s, other_s and shares from an agent's sections.

    In lock-step `other_s` is what neither collecting nor learning took, so the three sum to
    `iteration_s`. With overlap they may sum to more; `other_s` is what the agent did besides
    learning and waiting.
    """
    iteration_s = sum(seconds.values())
    learn_s = seconds["update"]
    besides = collect_s if lock_step else seconds["wait_experience"]
    return {
        "iteration_s": iteration_s,
        "collect_s": collect_s,
        "learn_s": learn_s,
        "other_s": iteration_s - learn_s - besides,
        "collect_share": collect_s / iteration_s,
        "learn_share": learn_s / iteration_s,
    }


def lags(version: int, policy_version: Any) -> dict[str, Value]:
    """How many versions behind `version`, the learning policy's, the round's lanes acted."""
    lag = version - policy_version
    return {
        "policy_version": version,
        "lag_mean": float(lag.mean()),
        "lag_max": int(lag.max()),
    }


def timing_row(process: str, iteration: int, seconds: dict[str, float]) -> dict[str, Value]:
    """A row of timing.csv; sections that the process does not have stay empty."""
    cells = {f"{name}_s": seconds.get(name) for name in _ALL_SECTIONS}
    total_s = sum(seconds.values())
    return {"process": process, "iteration": iteration, **cells, "total_s": total_s}
