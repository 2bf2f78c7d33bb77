"""The recorder writes the reports of a run: CSV files, trace, TensorBoard or W&B, progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from walle.agent.csv_file import CsvFile, Value
from walle.agent.episode_tracker import EPISODE_COLUMNS, Episode, EpisodeTracker, spread
from walle.agent.evaluation import Evaluation
from walle.agent.progress import Progress
from walle.agent.provenance import add_nodes
from walle.agent.sinks import Sink
from walle.sampling.rounds import Round
from walle.sampling.sampling import Event, NodesInUse
from walle.system.run_files import read_status, update_status
from walle.system.signals import Signals
from walle.timing import AGENT_SECTIONS, SAMPLER_SECTIONS, Span, Timer, TraceFile
from walle.types import IntArray, PolicySnapshot

_ALL_SECTIONS = (*SAMPLER_SECTIONS[:-1], *AGENT_SECTIONS)


class Filming(NamedTuple):
    """Videos of the policy while it learns."""

    is_due: Callable[[int], bool]  # whether to film an episode after so many environment steps
    # films an episode of a snapshot after so many environment steps; returns the file
    film: Callable[[PolicySnapshot, int], Path]


class Collection(NamedTuple):
    """The seconds in which a round was collected."""

    # in lock-step from publication to the last rollout, else the mean over the rollouts
    mean_s: float
    max_s: float  # the same in lock-step, else the longest rollout's: unequal samplers differ here

    @classmethod
    def of(cls, rollouts_s: Sequence[float]) -> Collection:
        """The mean and the maximum of the seconds of the rollouts."""
        return cls(sum(rollouts_s) / len(rollouts_s), max(rollouts_s))


class Iteration(NamedTuple):
    """The facts about one iteration."""

    number: int  # the iteration's number, from 1
    env_steps: int  # environment steps learned from so far, including this iteration
    round: Round  # the experience
    version: int  # the policy's version before the update
    lag: IntArray  # [L] the lag of each lane's policy behind `version`
    collection: Collection  # seconds of collection
    seconds: dict[str, float]  # seconds of each of the agent's sections
    metrics: dict[str, float]  # the algorithm's metrics


class Recorder:
    """A recorder writes iterations and evaluations into all outputs."""

    def __init__(
        self,
        directory: Path,
        timer: Timer,
        tracker: EpisodeTracker,
        *,
        lock_step: bool,
        sinks: Sequence[Sink],
        progress: Progress,
        trace: TraceFile | None = None,
        filming: Filming | None = None,
        earlier: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates the files; continues those of an earlier process whose state is `earlier`."""
        self._directory, self._timer, self._tracker = directory, timer, tracker
        self._lock_step, self._sinks, self._progress = lock_step, sinks, progress
        self._trace, self._filming = trace, filming
        columns = {"iterations": None, "episodes": EPISODE_COLUMNS, "timing": None, "eval": None}
        lengths = earlier["lengths"] if earlier else {}
        self.eval_mean: float | None = earlier["eval_mean"] if earlier else None
        self._files = {
            name: CsvFile(directory / f"{name}.csv", known, lengths.get(name))
            for name, known in columns.items()
        }
        if earlier:
            tracker.load_state_dict(earlier["tracker"])

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume: episodes, the files' lengths, the run's wall clock so far."""
        return {
            "tracker": self._tracker.state_dict(),
            "eval_mean": self.eval_mean,
            "lengths": {name: file.length for name, file in self._files.items()},
            "wall_s": self.wall_s,
        }

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last episodes."""
        return self._tracker.return_mean

    @property
    def wall_s(self) -> float:
        """Seconds since the run started."""
        return self._timer.wall_s

    def say(self, line: str) -> None:
        """Prints a line."""
        self._progress.say(line)

    def news(self, event: Event) -> None:
        """Prints what happened to samplers; replacements and nodes go into the run's files too."""
        if isinstance(event, str):
            self.say(event)
            return
        self.say(event.line)
        if isinstance(event, NodesInUse):
            add_nodes(self._directory, event._asdict())
        else:
            before = read_status(self._directory).get("replacements") or []
            update_status(self._directory, replacements=[*before, event._asdict()])

    def iteration(self, iteration: Iteration, spans: list[Span]) -> None:
        """Writes an iteration's rows, and the agent's `spans` into the trace."""
        wall_s, seconds, round_ = self.wall_s, iteration.seconds, iteration.round
        steps_before = iteration.env_steps - round_.rollout.env_steps
        episodes: list[Episode] = []
        for rollout in round_.dropped or ():  # older than their lanes in the round
            episodes += self._tracker.add(rollout, steps_before, wall_s)
        for rollout in round_.lanes:
            episodes += self._tracker.add(rollout, steps_before, wall_s)
            steps_before += rollout.env_steps
        self._files["episodes"].append([episode.row() for episode in episodes])
        row: dict[str, Value] = {
            "iteration": iteration.number,
            "env_steps": iteration.env_steps,
            "episodes": self._tracker.count,
            "wall_s": wall_s,
            **durations(seconds, iteration.collection, lock_step=self._lock_step),
            "env_steps_per_s": round_.rollout.env_steps / sum(seconds.values()),
            "policy_version": iteration.version,
            "lag_mean": float(iteration.lag.mean()),
            "lag_max": int(iteration.lag.max()),
        }
        if round_.dropped is not None:  # no cells where rollouts are never dropped
            row["dropped_rollouts"] = len(round_.dropped)
            row["dropped_steps"] = sum(rollout.env_steps for rollout in round_.dropped)
        in_round = spread([episode.episode_return for episode in episodes], "return_round")
        row["return_mean"] = self.return_mean
        for name in ("mean", "min", "max", "std"):
            row[f"return_round_{name}"] = in_round[f"return_round_{name}"]
        row |= {"length_mean": self._tracker.length_mean, **iteration.metrics}
        self._files["iterations"].append([row])
        timings = [("agent", seconds), *round_.sections_s]
        self._files["timing"].append(
            [_timing_row(name, iteration.number, s) for name, s in timings]
        )
        if self._trace:
            self._trace.write(spans)
        for sink in self._sinks:
            sink.iteration(row)
        self._progress.show(row, self.eval_mean)

    def evaluation(self, env_steps: int, evaluation: Evaluation) -> None:
        """Writes an evaluation's row."""
        self.eval_mean = evaluation.mean
        row: dict[str, Value] = {
            "env_steps": env_steps,
            "wall_s": self.wall_s,
            "episodes": len(evaluation.returns),
            **_of_episodes(evaluation),
        }
        if evaluation.stochastic is not None:
            drawn = _of_episodes(evaluation.stochastic)
            row |= {f"stochastic_{name}": value for name, value in drawn.items()}
        self._files["eval"].append([row])
        for sink in self._sinks:
            sink.evaluation(row)

    def video_is_due(self, env_steps: int) -> bool:
        """Whether an episode is to be filmed after so many environment steps."""
        return self._filming is not None and self._filming.is_due(env_steps)

    def film(self, policy: PolicySnapshot, env_steps: int, signals: Signals) -> None:
        """Films an episode of the policy; a run does not end because it cannot be drawn."""
        assert self._filming is not None
        try:
            with signals.breaking_off():
                video = self._filming.film(policy, env_steps)
            for sink in self._sinks:
                sink.video(env_steps, video)
        except Exception as error:  # noqa: BLE001 - a driver of graphics may raise anything
            self.say(f"no video at {env_steps:,} steps: {error}")

    def close(self, env_steps: int) -> None:
        """Closes the files, the sinks and the progress line."""
        summary: dict[str, Value] = {
            "env_steps": env_steps,
            "eval_mean": self.eval_mean,
            "return_mean": self.return_mean,
            "wall_s": self.wall_s,
        }
        for sink in self._sinks:
            sink.close(summary)
        for file in self._files.values():
            file.close()
        self._progress.close()


def durations(
    seconds: dict[str, float], collection: Collection, *, lock_step: bool
) -> dict[str, Value]:
    """The cells of iteration_s and its parts, and the shares, from the agent's sections.

    In lock-step `other_s` is the rest of the iteration, so collect_s + learn_s + other_s is
    `iteration_s`. With overlap the sum may be larger, and `other_s` is the agent's time without
    learning and waiting. `compile_s` is a part of `other_s`, above zero in the first iteration of
    a process and in no other: a run that is resumed compiles again.
    """
    collect_s, collect_max_s = collection
    iteration_s = sum(seconds.values())
    learn_s = seconds["update"]
    besides = collect_s if lock_step else seconds["wait_experience"]
    return {
        "iteration_s": iteration_s,
        "collect_s": collect_s,
        "collect_max_s": collect_max_s,
        "learn_s": learn_s,
        "other_s": iteration_s - learn_s - besides,
        "compile_s": seconds["compile"],
        "collect_share": collect_s / iteration_s,
        "learn_share": learn_s / iteration_s,
    }


def _timing_row(process: str, iteration: int, seconds: dict[str, float]) -> dict[str, Value]:
    """A row of timing.csv; sections of other kinds of processes are empty."""
    cells = {f"{name}_s": seconds.get(name) for name in _ALL_SECTIONS}
    total_s = sum(seconds.values())
    return {"process": process, "iteration": iteration, **cells, "total_s": total_s}


def _of_episodes(evaluation: Evaluation) -> dict[str, Value]:
    """The columns of eval.csv about episodes of one kind."""
    lengths = float(np.mean(evaluation.lengths))
    return {**spread(evaluation.returns, "return", median=True), "length_mean": lengths}
