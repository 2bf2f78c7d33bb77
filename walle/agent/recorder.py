"""Writes the reports of a run: CSV files, trace, TensorBoard or W&B, progress."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from walle.agent.csv_file import CsvFile, Row, Value
from walle.agent.evaluation import Evaluation, means
from walle.agent.run_directory import add_nodes
from walle.agent.sinks import Sink, Speed
from walle.algos.episodes import LaneReturns
from walle.errors import WalleError
from walle.sampling.rounds import Round
from walle.sampling.sampling import Event, NodesInUse
from walle.system.format import return_text
from walle.system.run_files import read_status, update_status
from walle.system.signals import Signals, terminal_may_vanish
from walle.timing import AGENT_SECTIONS, SAMPLER_SECTIONS, Every, Span, Timer, TraceFile
from walle.types import InfoColumn, IntArray, PolicySnapshot, Rollout

_ALL_SECTIONS = (*SAMPLER_SECTIONS[:-1], *AGENT_SECTIONS)
_NUMBER = (int, float, np.integer, np.floating, type(None))
_BESIDE = 24  # columns of the terminal for a short bar, the percentage and the time left


class Episode(NamedTuple):
    """A finished episode, with the fields of a row of episodes.csv."""

    env_steps: int
    wall_s: float
    sampler: int
    lane: int
    policy_version: int
    episode_return: float
    length: int
    end: str
    info: Sequence[float] = ()  # one value for each `InfoColumn`


EPISODE_COLUMNS = tuple(name.removeprefix("episode_") for name in Episode._fields[:-1])


class EpisodeTracker:
    """Finds the episodes that end in rollouts; keeps returns and lengths of the last ones."""

    def __init__(
        self, sampler_of_lane: Sequence[int], window: int, info: Sequence[str] = ()
    ) -> None:
        """`sampler_of_lane` has each lane's sampler; means cover the last `window` episodes."""
        self._sampler = sampler_of_lane
        self._lanes = LaneReturns(len(sampler_of_lane))
        window = min(window, sys.maxsize)
        self._recent: deque[float] = deque(maxlen=window)
        self._recent_lengths: deque[int] = deque(maxlen=window)
        self._columns = [InfoColumn.of(entry) for entry in info]
        self._sums = {c.column: LaneReturns(len(sampler_of_lane)) for c in self._columns}
        # the values of the info's columns in the last episodes
        self.recent_info = {c.column: deque[float](maxlen=window) for c in self._columns}
        self.count = self.faults = 0

    def add(self, rollout: Rollout, steps_before: int, wall_s: float) -> list[Episode]:
        """Adds a rollout; returns the episodes that ended in it, by step and then by lane."""
        episodes = []
        ended = self._lanes.add(rollout)
        infos = self._info_of(rollout) or [()] * len(ended)
        for finished, info in zip(ended, infos, strict=True):
            step, column = finished.step, finished.column
            lane = int(rollout.lane[column])
            episode = Episode(
                env_steps=steps_before + (step + 1) * rollout.reward.shape[1],
                wall_s=wall_s,
                sampler=self._sampler[lane],
                lane=lane,
                policy_version=int(rollout.policy_version[column]),
                episode_return=finished.episode_return,
                length=finished.length,
                end="terminated" if rollout.terminated[step, column] else "truncated",
                info=info,
            )
            episodes.append(episode)
        self._recent.extend(episode.episode_return for episode in episodes)
        self._recent_lengths.extend(episode.length for episode in episodes)
        for k, recent in enumerate(self.recent_info.values()):
            recent.extend(episode.info[k] for episode in episodes)
        self.count += len(episodes)
        return episodes

    def _info_of(self, rollout: Rollout) -> list[tuple[float, ...]]:
        """The values of the info's columns for the episodes that ended, in their order."""
        values = []
        for k, column in enumerate(self._columns):
            numbers: Any = rollout.info[..., k]
            ended = self._sums[column.column].add(rollout._replace(reward=numbers))
            values.append([column.value(float(numbers[x[:2]]), *x[2:]) for x in ended])
        return list(zip(*values, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        sums = {name: lanes.state_dict() for name, lanes in self._sums.items()}
        info = {name: sums[name] | {"recent": list(x)} for name, x in self.recent_info.items()}
        return {
            "lanes": self._lanes.state_dict(),
            "returns": list(self._recent),
            "lengths": list(self._recent_lengths),
            "count": self.count,
            "faults": self.faults,
            **({"info": info} if info else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._lanes.load_state_dict(state["lanes"])
        self._recent.extend(state["returns"])
        self._recent_lengths.extend(state["lengths"])
        self.count, self.faults = state["count"], state["faults"]
        for name, earlier in state.get("info", {}).items():
            self._sums[name].load_state_dict(earlier)
            self.recent_info[name].extend(earlier["recent"])

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last episodes; None before the first."""
        return float(np.mean(self._recent)) if self._recent else None

    @property
    def length_mean(self) -> float | None:
        """Mean length of the last episodes in steps; None before the first."""
        return float(np.mean(self._recent_lengths)) if self._recent_lengths else None


class Iteration(NamedTuple):
    """The facts about one iteration."""

    number: int  # the iteration's number, from 1
    env_steps: int  # environment steps learned from so far, including this iteration
    round: Round  # the experience
    lag: IntArray  # [L] the lag of each lane's policy behind the one that the update began with
    # seconds of collection: in lock-step, from publication to the last rollout; else each rollout's
    collect_s: Sequence[float]
    seconds: dict[str, float]  # seconds of each of the agent's sections
    metrics: dict[str, float]  # the algorithm's metrics


@dataclass(kw_only=True, eq=False)
class Recorder:
    """Writes iterations and evaluations to all outputs."""

    directory: Path
    timer: Timer
    tracker: EpisodeTracker
    lock_step: bool
    sinks: Sequence[Sink]
    progress: Progress
    trace: TraceFile | None
    video_is_due: Every
    # films an episode of a snapshot after so many environment steps; returns the file
    film_snapshot: Callable[[PolicySnapshot, int], Path] | None
    env_steps: int  # environment steps of the recorded iterations
    earlier: InitVar[Mapping[str, Any] | None]  # the state of an earlier process

    def __post_init__(self, earlier: Mapping[str, Any] | None) -> None:
        """Creates the files, or continues those of the earlier process."""
        self.say, self.speed = self.progress.say, Speed()
        episodes = self._episode_columns = (*EPISODE_COLUMNS, *self.tracker.recent_info)
        columns = {"iterations": None, "episodes": episodes, "timing": None, "eval": None}
        lengths = earlier["lengths"] if earlier else {}
        self.eval_mean: float | None = earlier["eval_mean"] if earlier else None
        self._files = {
            name: CsvFile(self.directory / f"{name}.csv", known, lengths.get(name))
            for name, known in columns.items()
        }
        if earlier:
            self.tracker.load_state_dict(earlier["tracker"])
        if self.tracker.recent_info:
            update_status(self.directory, info=[*self.tracker.recent_info])

    def sync(self) -> None:
        """Waits until the rows are on the disk."""
        for file in self._files.values():
            file.sync()

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume: episodes, the files' lengths, the run's wall clock so far."""
        return {
            "tracker": self.tracker.state_dict(),
            "eval_mean": self.eval_mean,
            "lengths": {name: file.length for name, file in self._files.items()},
            "wall_s": self.timer.wall_s,
        }

    def news(self, event: Event) -> None:
        """Prints what happened to samplers; replacements and nodes go into the run's files too."""
        if isinstance(event, str):
            self.say(event)
            return
        self.say(event.line)
        if isinstance(event, NodesInUse):
            add_nodes(self.directory, event._asdict())
        else:
            before = read_status(self.directory).get("replacements") or []
            update_status(self.directory, replacements=[*before, event._asdict()])

    def iteration(self, iteration: Iteration, spans: list[Span]) -> None:
        """Writes an iteration's rows, and the agent's `spans` into the trace."""
        wall_s, seconds, round_ = self.timer.wall_s, iteration.seconds, iteration.round
        steps_before = iteration.env_steps - round_.rollout.env_steps
        self.env_steps = iteration.env_steps
        episodes: list[Episode] = []
        for rollout in round_.dropped or ():  # older than the lanes' rollouts in the round
            episodes += self.tracker.add(rollout, steps_before, wall_s)
        for rollout in round_.lanes:
            episodes += self.tracker.add(rollout, steps_before, wall_s)
            steps_before += rollout.env_steps
        rows: list[dict[str, Value]] = [
            dict(zip(self._episode_columns, (*episode[:-1], *episode.info), strict=True))
            for episode in episodes
        ]
        self._files["episodes"].append(rows)
        if round_.faults:
            self.tracker.faults += round_.faults
            update_status(self.directory, faults=self.tracker.faults)
        row: dict[str, Value] = {
            "iteration": iteration.number,
            "env_steps": iteration.env_steps,
            "episodes": self.tracker.count,
            "wall_s": wall_s,
            **durations(seconds, iteration.collect_s, lock_step=self.lock_step),
            "env_steps_per_s": round_.rollout.env_steps / sum(seconds.values()),
            "policy_version": iteration.number - 1,
            "lag_mean": float(iteration.lag.mean()),
            "lag_max": int(iteration.lag.max()),
            "faults": round_.faults,
        }
        if round_.dropped is not None:  # no cells where rollouts are never dropped
            row["dropped_rollouts"] = len(round_.dropped)
            row["dropped_steps"] = sum(rollout.env_steps for rollout in round_.dropped)
        returns = [episode.episode_return for episode in episodes]
        info = means(self.tracker.recent_info.items())
        row |= {
            "return_mean": self.tracker.return_mean,
            **statistics(returns, "return_round", "mean", "min", "max", "std"),
            "length_mean": self.tracker.length_mean,
            **info,
        }
        metrics: Mapping[str, Any] = iteration.metrics  # a user's algorithm may return anything
        for name, value in metrics.items():
            if name in row or set(name) & set(',"\r\n') or not isinstance(value, _NUMBER):
                raise WalleError(
                    f"the algorithm's metric {name!r} is {value!r}: give a number, under a name "
                    "without commas and quotes that is no column of iterations.csv"
                )
        row |= {name: int(x) if isinstance(x, bool) else x for name, x in metrics.items()}
        self._files["iterations"].append([row])
        self._files["timing"].append(
            [
                {
                    "process": process,
                    "iteration": iteration.number,
                    **{f"{name}_s": spent.get(name) for name in _ALL_SECTIONS},
                    "total_s": sum(spent.values()),
                }
                for process, spent in (("agent", seconds), *round_.sections_s)
            ]
        )
        if self.trace:
            self.trace.write(spans)
        self.speed.add(row)
        self._tell(lambda sink: sink.iteration(row, info))
        spent = {"start-up": seconds["other"]} if seconds["compile"] else {}
        spent |= {"compile": seconds["compile"], "evaluate": seconds["evaluate"]}
        self.progress.show(row, self.eval_mean, spent)

    def evaluation(self, env_steps: int, evaluation: Evaluation) -> None:
        """Writes an evaluation's row."""
        self.eval_mean = evaluation.mean
        row: dict[str, Value] = {
            "env_steps": env_steps,
            "wall_s": self.timer.wall_s,
            "episodes": len(evaluation.returns),
            **_of_episodes(evaluation),
        }
        if evaluation.stochastic is not None:
            drawn = _of_episodes(evaluation.stochastic)
            row |= {f"stochastic_{name}": value for name, value in drawn.items()}
        self._files["eval"].append([row])
        self._tell(lambda sink: sink.evaluation(row))

    def _tell(self, report: Callable[[Sink], None]) -> None:
        """Reports to every sink; drops one that fails: the CSV files have its numbers."""
        for sink in self.sinks:
            try:
                report(sink)
            except Exception as error:  # noqa: BLE001 - a service may raise anything
                self.sinks = [other for other in self.sinks if other is not sink]
                name = type(sink).__name__.removesuffix("Sink")
                line = f"{name} logging stopped: {error!r}; the run's CSV files are complete"
                print(line, file=sys.stderr, flush=True)

    def film(self, policy: PolicySnapshot, env_steps: int, signals: Signals) -> None:
        """Films an episode of the policy; a rendering error does not end the run."""
        assert self.film_snapshot is not None
        try:
            with signals.breaking_off():
                video = self.film_snapshot(policy, env_steps)
            for sink in self.sinks:
                sink.video(env_steps, video)
        except Exception as error:  # noqa: BLE001 - a driver of graphics may raise anything
            self.say(f"no video at {env_steps:,} steps: {error}")

    def close(self) -> None:
        """Closes the files, the sinks and the progress line."""
        summary: dict[str, Value] = {
            "env_steps": self.env_steps,
            "eval_mean": self.eval_mean,
            "return_mean": self.tracker.return_mean,
            "wall_s": self.timer.wall_s,
            **self.speed.means(),
        }
        self._tell(lambda sink: sink.close(summary))
        for file in self._files.values():
            file.close()
        self.progress.close()


class Progress:
    """The progress of a run on the terminal: a bar on stderr, lines on stdout, or nothing."""

    def __init__(self, kind: str, total_steps: int, every_s: float) -> None:
        """`kind` is `logger.progress`; `auto` is a bar on a terminal, else lines.

        A line with numbers appears every `every_s` seconds, first after the first iteration.
        """
        if kind == "auto":
            kind = "bar" if sys.stderr.isatty() else "lines"
        self._kind, self._total, self._every_s = kind, total_steps, every_s
        self._next = self._shown = time.monotonic()
        self._wait_s = min(1.0, every_s)  # until the first line; then `every_s`
        self.doing: Callable[[], str] = str  # describes what the agent does, and since when
        self._closed = threading.Event()
        if kind == "bar":
            from rich import progress
            from rich.console import Console

            self._bar: Any = progress.Progress(
                progress.TaskProgressColumn(),
                progress.BarColumn(bar_width=None),
                progress.TextColumn("{task.description}"),
                progress.TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                expand=True,
            )
            self._task = self._bar.add_task("starting", total=total_steps)
            self._bar.start()
        self._watcher = threading.Thread(target=self._watch, name="walle-progress", daemon=True)
        if kind != "quiet":
            self._watcher.start()

    def _watch(self) -> None:
        while not self._closed.wait(self._wait_s if self._kind == "bar" else self._every_s):
            with terminal_may_vanish():
                if self._kind == "bar" and time.monotonic() - self._shown > self._wait_s:
                    self._bar.update(self._task, description=self.doing())
                elif self._kind == "lines" and time.monotonic() - self._shown > self._every_s:
                    print(self.doing(), flush=True)

    @terminal_may_vanish()
    def look(self, env_steps: int) -> None:
        """Shows the steps and what the agent is doing on the bar, at once."""
        if self._kind == "bar":
            self._bar.update(self._task, completed=env_steps, description=self.doing())

    @terminal_may_vanish()
    def say(self, line: str) -> None:
        """Prints a line on stdout at once."""
        if self._kind in ("bar", "lines"):
            print(line, flush=True)

    @terminal_may_vanish()
    def show(self, row: Row, eval_mean: float | None, spent: Mapping[str, float]) -> None:
        """Shows a row of iterations.csv, the last evaluation, and seconds `spent` on other work."""
        self._shown, self._wait_s = time.monotonic(), self._every_s
        if self._kind == "bar":
            text = describe(row, eval_mean, spent, self._bar.console.width - _BESIDE)
            self._bar.update(self._task, completed=row["env_steps"], description=text)
        elif self._kind == "lines" and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every_s
            text = describe(row, eval_mean, spent)
            print(f"{row['env_steps']:>10,} / {self._total:,} steps  {text}", flush=True)

    @terminal_may_vanish()
    def close(self) -> None:
        """Stops the bar, which stays on the screen; the terminal then works as before."""
        self._closed.set()
        if self._kind != "quiet":
            self._watcher.join()
        if self._kind == "bar":
            self._bar.stop()


def describe(
    row: Row, eval_mean: float | None, spent: Mapping[str, float], width: float = math.inf
) -> str:
    """The returns, shares of `spent` from 1% on, the speed, the shares of collecting and learning.

    If `width` is too small for all parts, the last ones are left out; the first one stays.
    """
    means = {"eval": eval_mean, "return": row["return_mean"]}
    parts = [f"{name} {return_text(float(x))}" for name, x in means.items() if x is not None]
    shares = {name: seconds / float(row["iteration_s"] or 1) for name, seconds in spent.items()}
    parts += [f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.01]
    parts.append(f"{row['env_steps_per_s']:,.0f} steps/s")
    parts += [f"{name} {row[f'{name}_share']:.0%}" for name in ("collect", "learn")]
    while len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    return "  ".join(parts)


def statistics(values: Sequence[float], name: str, *kinds: str) -> dict[str, Value]:
    """Cells such as `name`_mean and `name`_std, computed by NumPy; None without values."""
    x = np.asarray(values, np.float64)
    return {f"{name}_{kind}": float(getattr(np, kind)(x)) if x.size else None for kind in kinds}


def durations(
    seconds: dict[str, float], collect_s: Sequence[float], *, lock_step: bool
) -> dict[str, Value]:
    """The cells of iteration_s and its parts, and the shares, from the agent's sections.

    `collect_max_s` differs from the mean if samplers are unequal. In lock-step `other_s` is the
    rest of the iteration, so collect_s + learn_s + other_s is `iteration_s`. With overlap the sum
    may be larger, and `other_s` is the agent's time spent neither learning nor waiting. `compile_s`
    is a part of `other_s`, above zero only in the first iteration of a process: a resumed run
    compiles again.
    """
    mean_s = sum(collect_s) / len(collect_s)
    iteration_s = sum(seconds.values())
    learn_s = seconds["update"]
    besides = mean_s if lock_step else seconds["wait_experience"]
    return {
        "iteration_s": iteration_s,
        "collect_s": mean_s,
        "collect_max_s": max(collect_s),
        "learn_s": learn_s,
        "other_s": iteration_s - learn_s - besides,
        "compile_s": seconds["compile"],
        "collect_share": mean_s / iteration_s,
        "learn_share": learn_s / iteration_s,
    }


def _of_episodes(evaluation: Evaluation) -> dict[str, Value]:
    """The columns of eval.csv about episodes of one kind."""
    lengths = float(np.mean(evaluation.lengths))
    kinds = ("mean", "median", "std", "min", "max")
    returns = statistics(evaluation.returns, "return", *kinds)
    return {**returns, "length_mean": lengths, **means(evaluation.info)}
