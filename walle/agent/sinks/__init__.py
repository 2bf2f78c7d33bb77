"""Sinks for a run's reports: TensorBoard and W&B, in sections such as time/ and return/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.agent.sinks.describing import Description, describe
from walle.agent.sinks.tensorboard_sink import TensorBoardSink
from walle.agent.sinks.wandb_sink import WandbSink

__all__ = ["Description", "Sink", "TensorBoardSink", "WandbSink", "describe", "make_sinks"]

Sink = TensorBoardSink | WandbSink


def make_sinks(
    kind: str,
    directory: Path,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    resumed_at: int | None = None,
) -> list[Sink]:
    """The sinks of `logger.name`; `options` are arguments of `wandb.init`."""
    if kind == "tensorboard":
        return [TensorBoardSink(directory / "tensorboard", describe(directory, config), resumed_at)]
    if kind == "wandb":
        return [WandbSink(directory, describe(directory, config), options)]
    return []
