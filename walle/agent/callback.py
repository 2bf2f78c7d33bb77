"""The base class of callbacks, and what each hook receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Info:
    """The state of the run that every hook receives.

    Attributes:
        directory: the run's directory, in which a callback may write its own files.
        iteration: the number of the last round that was learned from, counted from 1.
        env_steps: environment steps learned from.
        wall_s: seconds since the run started.
    """

    directory: Path
    iteration: int
    env_steps: int
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class RoundInfo(Info):
    """The argument of `on_round`.

    Attributes:
        return_mean: mean return of the last training episodes; None before the first one ends.
        eval_mean: mean return of the last evaluation; None before the first one.
        metrics: the algorithm's metrics, as in iterations.csv.
    """

    return_mean: float | None
    eval_mean: float | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class EvaluationInfo(Info):
    """The argument of `on_evaluation`.

    Attributes:
        returns: the returns of the episodes.
        lengths: the lengths of the episodes, in steps.
        mean: mean of `returns`.
        is_best: whether no earlier evaluation had a higher mean; the policy is then in best.pt.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo(Info):
    """The argument of `on_checkpoint`.

    Attributes:
        path: checkpoints/last.pt, which has been written.
    """

    path: Path


@dataclass(frozen=True, kw_only=True)
class EndInfo(Info):
    """The argument of `on_end`.

    Attributes:
        reason: "completed", "stopped by callback NAME" or "interrupted".
        return_mean: mean return of the last training episodes; None if none ended.
        eval_mean: mean return of the last evaluation; None without one.
        best: the highest mean return of an evaluation; None without one.
    """

    reason: str
    return_mean: float | None
    eval_mean: float | None
    best: float | None


class Callback:
    """Hooks that the agent calls between two rounds; override the ones you need.

    The run waits for a hook; the hook's time counts as `callbacks` in timing.csv. A hook that
    returns True stops the run after the round: the run counts as completed, and status.json has
    the reason.
    After an exception in a hook the run writes a checkpoint and ends as failed.

    A callback is made without arguments, once in each process that runs or resumes the run.
    """

    def on_round(self, info: RoundInfo) -> bool | None:
        """Called after every round; its row is already in iterations.csv."""

    def on_evaluation(self, info: EvaluationInfo) -> bool | None:
        """Called after every evaluation; its row is already in eval.csv."""

    def on_checkpoint(self, info: CheckpointInfo) -> bool | None:
        """Called after last.pt has been written, but not after an error."""

    def on_end(self, info: EndInfo) -> None:
        """Called once at the end, after the last checkpoint.

        Not if the run fails, after a second Ctrl-C, or after a signal before the agent starts.
        """

    def state_dict(self) -> dict[str, Any]:
        """The state for checkpoints: numbers, texts, lists, mappings, arrays and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()` in a resumed run; arrays become tensors."""
