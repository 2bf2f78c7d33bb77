"""Sinks for a run's reports: TensorBoard and W&B."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from walle.agent.csv_file import Row


class TensorBoardSink:
    """TensorBoard's scalars over environment steps."""

    def __init__(self, directory: Path) -> None:
        """Writes event files into `directory`."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory))

    def iteration(self, row: Row) -> None:
        """Logs the numbers under the names of their columns."""
        self._add(row, "")

    def evaluation(self, row: Row) -> None:
        """Logs the numbers under eval/."""
        self._add(row, "eval/")

    def video(self, env_steps: int, path: Path) -> None:
        """Shows a GIF under eval/; `add_video` would need another package to make one."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(path) as picture:
            width, height = picture.size
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
        )
        summary = Summary(value=[Summary.Value(tag="eval/video", image=image)])
        self._writer._get_file_writer().add_summary(summary, env_steps)

    def _add(self, row: Row, prefix: str) -> None:
        for name, value in _numbers(row).items():
            self._writer.add_scalar(prefix + name, value, row["env_steps"])

    def close(self, summary: Row) -> None:  # noqa: ARG002 - the scalars already contain it
        """Flushes and closes the event file."""
        self._writer.close()


class WandbSink:
    """A W&B run, online or offline."""

    def __init__(self, directory: Path, config: dict[str, Any], options: dict[str, Any]) -> None:
        """Starts a W&B run with the run's `config`; passes `options` to `wandb.init`."""
        import wandb

        self._run = wandb.init(dir=str(directory), config=config, **options)
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def iteration(self, row: Row) -> None:
        """Logs the numbers under the names of their columns."""
        self._run.log(_numbers(row))

    def evaluation(self, row: Row) -> None:
        """Logs the numbers under eval/."""
        values = {f"eval/{name}": value for name, value in _numbers(row).items()}
        self._run.log({**values, "env_steps": row["env_steps"]})

    def video(self, env_steps: int, path: Path) -> None:
        """Shows an MP4 under eval/."""
        import wandb

        film = wandb.Video(str(path), format="mp4")
        self._run.log({"eval/video": film, "env_steps": env_steps})

    def close(self, summary: Row) -> None:
        """Writes the summary and ends the run."""
        self._run.summary.update(_numbers(summary))
        self._run.finish()


def _numbers(row: Row) -> dict[str, float | int]:
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


Sink = TensorBoardSink | WandbSink


def make_sinks(
    kind: str, directory: Path, config: dict[str, Any], options: dict[str, Any]
) -> list[Sink]:
    """The sinks of `logger.name`.

    Args:
        kind: "files" for none, "tensorboard" or "wandb".
        directory: the run's directory.
        config: the configuration as plain values.
        options: arguments of `wandb.init`.
    """
    if kind == "tensorboard":
        return [TensorBoardSink(directory / "tensorboard")]
    return [WandbSink(directory, config, options)] if kind == "wandb" else []
