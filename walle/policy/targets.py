"""Finds the policies at a path: a checkpoint file, a run's directory, or all runs of a sweep."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from walle.errors import ConfigError


class Target(NamedTuple):
    """A policy to evaluate.

    Attributes:
        name: how the table names it.
        path: a run's directory or a checkpoint file.
        settings: what was typed for its run and differs between the runs of the sweep.
        state: how its run ended; empty where nobody says.
        sweep: the directory of which all runs are evaluated; None for a policy named by itself.
        possible: the least and the greatest return of an episode, where the task tells them.
    """

    name: str
    path: Path
    settings: Mapping[str, str]
    state: str = ""
    sweep: Path | None = None
    possible: tuple[float, float] = (-math.inf, math.inf)

    @property
    def unfinished(self) -> bool:
        """Whether its run was broken off, or still runs."""
        return self.state not in ("", "completed")


def find_targets(path: Path, *, several: bool) -> list[Target]:
    """The policies at a path: a checkpoint file, a run's directory, or all runs below it.

    Raises:
        ConfigError: there is none.
    """
    from walle.analysis.measuring.possible import of_returns
    from walle.analysis.runs import BadInputError, load

    if path.is_file() or (path / "checkpoints").is_dir():
        return [Target(str(path), path, {})]
    try:
        sweep = load(path)
    except BadInputError as error:
        raise ConfigError(str(error)) from None
    for run, reason in sweep.left_out:
        print(f"walle eval: {run} is left out: {reason}", file=sys.stderr)
    place = f"{path}/" if several else ""
    typed = varying([run.provenance.get("overrides") or [] for run in sweep.runs])
    return [
        Target(f"{place}{run.name}", run.path, settings, run.state, path, of_returns([run]))
        for run, settings in zip(sweep.runs, typed, strict=True)
    ]


def varying(overrides: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """For each run the settings that were typed for it, without those that all runs share."""
    typed = [dict(word.lstrip("+~").partition("=")[::2] for word in run) for run in overrides]
    keys = dict.fromkeys(key for run in typed for key in run)
    differ = [key for key in keys if len({run.get(key, "default") for run in typed}) > 1]
    return [{key: run.get(key, "default") for key in differ} for run in typed]
