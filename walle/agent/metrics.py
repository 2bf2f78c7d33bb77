"""What a run reports: append-only CSV files, and the sinks that iterations go to."""

from __future__ import annotations

import errno
import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from walle.types import Rollout, unique_lane_groups

Value = float | int | str | None
Row = Mapping[str, Value]


class CsvFile:
    """A CSV file that holds complete rows at every moment.

    Rows are appended in one write each time, so neither a crash nor a full disk cuts one in half.
    Unless the columns are given, the first row decides them.
    """

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        """The file is created as soon as its columns are known; it begins with them."""
        self._path = path
        self._columns: tuple[str, ...] | None = None
        self._descriptor = -1
        if columns is not None:
            self._create(columns)

    def _create(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._descriptor = os.open(self._path, flags, 0o644)
        self._write(",".join(self._columns) + "\n")

    def append(self, rows: Sequence[Row]) -> None:
        """Adds the rows; an absent value and NaN are empty cells.

        Raises:
            ValueError: a row has other columns than the first one had.
        """
        if not rows:
            return
        if self._columns is None:
            self._create(tuple(rows[0]))
        text = ""
        for row in rows:
            if tuple(row) != self._columns:
                raise ValueError(f"{self._path.name} has columns {self._columns}, got {tuple(row)}")
            text += ",".join(map(_cell, row.values())) + "\n"
        self._write(text)

    def _write(self, text: str) -> None:
        """Writes all of `text`, or nothing where the disk is full."""
        data = text.encode()
        size = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, data) < len(data):
            os.ftruncate(self._descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _cell(value: Value) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


class Episode(NamedTuple):
    """One finished episode, as a row of episodes.csv."""

    env_steps: int
    wall_s: float
    sampler: int
    lane: int
    policy_version: int
    episode_return: float
    length: int
    end: str

    def row(self) -> dict[str, Value]:
        """The row, under the file's names."""
        return dict(zip(EPISODE_COLUMNS, self, strict=True))


EPISODE_COLUMNS = tuple(name.removeprefix("episode_") for name in Episode._fields)


class EpisodeTracker:
    """Adds up rewards lane by lane across rollouts, and remembers the last episodes."""

    def __init__(self, sampler_of_lane: Sequence[int], window: int) -> None:
        """`sampler_of_lane` one entry a lane; `window` episodes make `return_mean`."""
        self._sampler = sampler_of_lane
        self._return = np.zeros(len(sampler_of_lane))
        self._length = np.zeros(len(sampler_of_lane), np.int64)
        self._recent: deque[float] = deque(maxlen=window)
        self._recent_lengths: deque[int] = deque(maxlen=window)
        self.count = 0

    def add(self, rollout: Rollout, steps_before: int, wall_s: float) -> list[Episode]:
        """The episodes that ended in `rollout`, by step and then by lane."""
        finished = []
        ended = rollout.terminated | rollout.truncated
        for columns in unique_lane_groups(rollout.lane):
            lanes = rollout.lane[columns]
            for t in range(len(ended)):
                self._return[lanes] += rollout.reward[t, columns]
                self._length[lanes] += 1
                for column in columns[ended[t, columns]]:
                    env_steps = steps_before + (t + 1) * ended.shape[1]
                    finished.append(self._finish(rollout, t, int(column), env_steps, wall_s))
        self._recent.extend(episode.episode_return for episode in finished)
        self._recent_lengths.extend(episode.length for episode in finished)
        self.count += len(finished)
        return finished

    def _finish(
        self, rollout: Rollout, t: int, column: int, env_steps: int, wall_s: float
    ) -> Episode:
        lane = int(rollout.lane[column])
        episode = Episode(
            env_steps=env_steps,
            wall_s=wall_s,
            sampler=self._sampler[lane],
            lane=lane,
            policy_version=int(rollout.policy_version[column]),
            episode_return=float(self._return[lane]),
            length=int(self._length[lane]),
            end="terminated" if rollout.terminated[t, column] else "truncated",
        )
        self._return[lane] = 0.0
        self._length[lane] = 0
        return episode

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last episodes; None before the first."""
        return float(np.mean(self._recent)) if self._recent else None

    @property
    def length_mean(self) -> float | None:
        """Mean length of the last episodes in steps; None before the first."""
        return float(np.mean(self._recent_lengths)) if self._recent_lengths else None


def spread(values: Sequence[float], name: str, *, median: bool = False) -> dict[str, Value]:
    """`name`_mean, _median on request, _std, _min and _max; empty cells when there are none."""
    x = np.asarray(values, np.float64)
    kinds = ("mean", "median", "std", "min", "max") if median else ("mean", "std", "min", "max")
    return {f"{name}_{kind}": float(getattr(np, kind)(x)) if x.size else None for kind in kinds}


class Sink(Protocol):
    """A place that iterations and evaluations are reported to, besides the files."""

    def iteration(self, row: Row) -> None:
        """Takes a row of iterations.csv."""
        ...

    def evaluation(self, row: Row) -> None:
        """Takes a row of eval.csv."""
        ...

    def close(self, summary: Row) -> None:
        """Takes the run's last word."""
        ...


class TensorBoardSink:
    """Scalars over environment steps, for TensorBoard."""

    def __init__(self, directory: Path) -> None:
        """Event files go to `directory`."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory))

    def iteration(self, row: Row) -> None:
        """Under their own names."""
        self._add(row, "")

    def evaluation(self, row: Row) -> None:
        """Under eval/."""
        self._add(row, "eval/")

    def _add(self, row: Row, prefix: str) -> None:
        for name, value in _numbers(row).items():
            self._writer.add_scalar(prefix + name, value, row["env_steps"])

    def close(self, summary: Row) -> None:  # noqa: ARG002 - the scalars already tell it
        """Flushes."""
        self._writer.close()


class WandbSink:
    """A W&B run; works offline too."""

    def __init__(self, directory: Path, config: dict[str, Any], options: dict[str, Any]) -> None:
        """`options` are passed to `wandb.init`; `config` is the run's."""
        import wandb

        self._run = wandb.init(dir=str(directory), config=config, **options)
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def iteration(self, row: Row) -> None:
        """Under their own names."""
        self._run.log(_numbers(row))

    def evaluation(self, row: Row) -> None:
        """Under eval/."""
        values = {f"eval/{name}": value for name, value in _numbers(row).items()}
        self._run.log({**values, "env_steps": row["env_steps"]})

    def close(self, summary: Row) -> None:
        """Writes the summary and ends the run."""
        self._run.summary.update(_numbers(summary))
        self._run.finish()


def _numbers(row: Row) -> dict[str, float | int]:
    return {name: value for name, value in row.items() if isinstance(value, int | float)}
