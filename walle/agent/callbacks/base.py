"""The base class of callbacks, and what each hook receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Info:
    """What every hook receives."""

    directory: Path  # the run's directory, in which a callback may write files of its own
    iteration: int  # the number of the last round that was learned from, from 1
    env_steps: int  # environment steps learned from
    wall_s: float  # seconds since the run started


@dataclass(frozen=True, kw_only=True)
class RoundInfo(Info):
    """What `on_round` receives."""

    # mean return of the last training episodes; None before the first one ends
    return_mean: float | None
    eval_mean: float | None  # mean return of the last evaluation; None before the first one
    metrics: Mapping[str, float]  # the algorithm's, as in iterations.csv


@dataclass(frozen=True, kw_only=True)
class EvaluationInfo(Info):
    """What `on_evaluation` receives."""

    returns: tuple[float, ...]  # of the episodes
    lengths: tuple[int, ...]  # of the episodes, in steps
    mean: float  # mean of `returns`
    is_best: bool  # whether no evaluation before had a higher mean; the policy is then in best.pt


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo(Info):
    """What `on_checkpoint` receives."""

    path: Path  # checkpoints/last.pt, which has been written


@dataclass(frozen=True, kw_only=True)
class EndInfo(Info):
    """What `on_end` receives."""

    reason: str  # "completed", "stopped by callback NAME" or "interrupted"
    return_mean: float | None  # mean return of the last training episodes; None if none ended
    eval_mean: float | None  # mean return of the last evaluation; None without one
    best: float | None  # the highest mean return of an evaluation; None without one


class Callback:
    """Hooks that the agent calls between two rounds; override those that you need.

    The run waits for a hook; its time is the section `callbacks` in timing.csv. A hook that returns
    True stops the run after the round: the run counts as completed, and status.json has the reason.
    An exception in a hook ends the run, after a checkpoint, as failed.

    A callback is made without arguments, once in each process that runs or resumes the run.
    """

    def on_round(self, info: RoundInfo) -> bool | None:
        """Called after every round; its row is in iterations.csv already."""

    def on_evaluation(self, info: EvaluationInfo) -> bool | None:
        """Called after every evaluation; its row is in eval.csv already."""

    def on_checkpoint(self, info: CheckpointInfo) -> bool | None:
        """Called after last.pt was written."""

    def on_end(self, info: EndInfo) -> None:
        """Called once at the end, after the last checkpoint; not if the run fails."""

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep: numbers, texts, lists, mappings, arrays and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()` in a resumed run, arrays as tensors."""
