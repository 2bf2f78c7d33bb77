"""The recorder writes the reports of a run: CSV files, trace, TensorBoard or W&B, progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from walle.agent.csv_file import CsvFile, Value
from walle.agent.episode_tracker import EPISODE_COLUMNS, Episode, EpisodeTracker, spread
from walle.agent.evaluation import Evaluation
from walle.agent.iteration_rows import Collection, dropped, durations, lags, timing_row
from walle.agent.progress import Progress
from walle.agent.provenance import add_nodes
from walle.agent.sinks import Sink
from walle.sampling.rounds import Round
from walle.sampling.sampling import Event, NodesInUse
from walle.system.run_files import read_status, update_status
from walle.system.signals import Signals
from walle.timing import Span, TraceFile
from walle.types import IntArray, PolicySnapshot


class Filming(NamedTuple):
    """Videos of the policy while it learns.

    Attributes:
        is_due: whether to film an episode after so many environment steps.
        film: films an episode of a snapshot after so many environment steps; returns the file.
    """

    is_due: Callable[[int], bool]
    film: Callable[[PolicySnapshot, int], Path]


class Outputs(NamedTuple):
    """The destinations of a run's reports.

    Attributes:
        directory: the run's directory.
        start_ns: the run's start on the monotonic clock, the zero of `wall_s`.
        sinks: TensorBoard or W&B; may be empty.
        progress: the display on the terminal.
        trace: the file of spans; None without a trace.
        filming: makes videos; None for a run without them.
    """

    directory: Path
    start_ns: int
    sinks: Sequence[Sink]
    progress: Progress
    trace: TraceFile | None
    filming: Filming | None = None


class Iteration(NamedTuple):
    """The facts about one iteration.

    Attributes:
        number: the iteration's number, from 1.
        env_steps: environment steps learned from so far, including this iteration.
        round: the experience.
        version: the policy's version before the update.
        lag: [L] the lag of each lane's policy behind `version`.
        collection: seconds of collection.
        seconds: seconds of each of the agent's sections.
        metrics: the algorithm's metrics.
    """

    number: int
    env_steps: int
    round: Round
    version: int
    lag: IntArray
    collection: Collection
    seconds: dict[str, float]
    metrics: dict[str, float]


class Recorder:
    """A recorder writes iterations and evaluations into all outputs.

    Attributes:
        eval_mean: mean return of the last evaluation; None before the first one.
    """

    def __init__(
        self,
        outputs: Outputs,
        tracker: EpisodeTracker,
        *,
        lock_step: bool,
        earlier: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates the files, or goes on with those of an earlier process.

        Args:
            outputs: where to write.
            tracker: finds the episodes.
            lock_step: whether collecting and learning take turns.
            earlier: the `state_dict` to resume from; None for a new run.
        """
        self._out, self._tracker, self._lock_step = outputs, tracker, lock_step
        columns = {"iterations": None, "episodes": EPISODE_COLUMNS, "timing": None, "eval": None}
        lengths = earlier["lengths"] if earlier else {}
        self.eval_mean: float | None = earlier["eval_mean"] if earlier else None
        self._files = {
            name: CsvFile(outputs.directory / f"{name}.csv", known, lengths.get(name))
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
        """Seconds since the run began."""
        return (time.monotonic_ns() - self._out.start_ns) * 1e-9

    def say(self, line: str) -> None:
        """Prints a line."""
        self._out.progress.say(line)

    def news(self, found: Event) -> None:
        """Prints what happened to samplers; replacements and nodes go into the run's files too."""
        if isinstance(found, str):
            self.say(found)
            return
        self.say(found.line)
        if isinstance(found, NodesInUse):
            add_nodes(self._out.directory, found._asdict())
            return
        before = read_status(self._out.directory).get("replacements") or []
        update_status(self._out.directory, replacements=[*before, found._asdict()])

    def iteration(self, found: Iteration, spans: list[Span]) -> None:
        """Writes an iteration's rows, and the agent's `spans` into the trace."""
        wall_s = self.wall_s
        episodes = self._episodes(found, wall_s)
        self._files["episodes"].append([episode.row() for episode in episodes])
        row: dict[str, Value] = {
            "iteration": found.number,
            "env_steps": found.env_steps,
            "episodes": self._tracker.count,
            "wall_s": wall_s,
            **durations(found.seconds, found.collection, lock_step=self._lock_step),
            "env_steps_per_s": found.round.rollout.env_steps / sum(found.seconds.values()),
            **lags(found.version, found.lag),
            **dropped(found.round.dropped),
            **self._returns(episodes),
            **found.metrics,
        }
        self._files["iterations"].append([row])
        timings = [("agent", found.seconds), *found.round.sections_s]
        self._files["timing"].append(
            [timing_row(process, found.number, seconds) for process, seconds in timings]
        )
        if self._out.trace:
            self._out.trace.write(spans)
        for sink in self._out.sinks:
            sink.iteration(row)
        self._out.progress.show(row, self.eval_mean)

    def _episodes(self, found: Iteration, wall_s: float) -> list[Episode]:
        """The episodes that ended in the round."""
        steps_before = found.env_steps - found.round.rollout.env_steps
        episodes: list[Episode] = []
        for rollout in found.round.dropped or ():  # each is older than its lanes in the round
            episodes += self._tracker.add(rollout, steps_before, wall_s)
        for lanes in found.round.lanes:
            episodes += self._tracker.add(lanes, steps_before, wall_s)
            steps_before += lanes.env_steps
        return episodes

    def _returns(self, episodes: list[Episode]) -> dict[str, Value]:
        in_round = spread([episode.episode_return for episode in episodes], "return_round")
        order = ("mean", "min", "max", "std")
        return {
            "return_mean": self._tracker.return_mean,
            **{f"return_round_{name}": in_round[f"return_round_{name}"] for name in order},
            "length_mean": self._tracker.length_mean,
        }

    def evaluation(self, env_steps: int, found: Evaluation) -> None:
        """Writes an evaluation's row."""
        self.eval_mean = float(np.mean(found.returns))
        row: dict[str, Value] = {
            "env_steps": env_steps,
            "wall_s": self.wall_s,
            "episodes": len(found.returns),
            **_of_episodes(found),
        }
        if found.stochastic is not None:
            drawn = _of_episodes(found.stochastic)
            row |= {f"stochastic_{name}": value for name, value in drawn.items()}
        self._files["eval"].append([row])
        for sink in self._out.sinks:
            sink.evaluation(row)

    def video_is_due(self, env_steps: int) -> bool:
        """Whether an episode is to be filmed after so many environment steps."""
        return self._out.filming is not None and self._out.filming.is_due(env_steps)

    def film(self, policy: PolicySnapshot, env_steps: int, signals: Signals) -> None:
        """Films an episode of the policy; a run does not end because it cannot be drawn."""
        assert self._out.filming is not None
        try:
            with signals.breaking_off():
                video = self._out.filming.film(policy, env_steps)
            for sink in self._out.sinks:
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
        for sink in self._out.sinks:
            sink.close(summary)
        for file in self._files.values():
            file.close()
        self._out.progress.close()


def _of_episodes(found: Evaluation) -> dict[str, Value]:
    """The columns of eval.csv about episodes of one kind."""
    lengths = float(np.mean(found.lengths))
    return {**spread(found.returns, "return", median=True), "length_mean": lengths}
