"""TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from walle.agent.csv_file import Row
from walle.agent.sinks.describing import (
    Description,
    Speed,
    by_section,
    flat,
    of_evaluation,
    summary,
)

# The columns of TensorBoard's table of hyperparameters; it takes the newest value of each.
METRICS = (
    "eval/return_mean",
    "return/return_mean",
    "summary/env_steps_per_s",
    "summary/collect_share",
    "summary/wall_s",
)


class TensorBoardSink:
    """TensorBoard's scalars over environment steps, and its table of hyperparameters."""

    def __init__(
        self, directory: Path, described: Description, resumed_at: int | None = None
    ) -> None:
        """Writes event files into `directory`, the settings of the run first.

        TensorBoard drops what earlier files hold for steps after `resumed_at`, the steps of the
        checkpoint, which the resumed run repeats.
        """
        from torch.utils import tensorboard
        from torch.utils.tensorboard import summary as summaries

        purge_step = None if resumed_at is None else resumed_at + 1
        writer: Any = tensorboard.SummaryWriter(str(directory), purge_step=purge_step)
        hparams: Any = summaries.hparams
        self._writer, self._speed = writer, Speed()
        # `SummaryWriter.add_hparams` would make a second run of it, and only at the end.
        experiment, start, self._end = hparams(flat(described.settings), dict.fromkeys(METRICS, 0))
        for part in (experiment, start):
            writer._get_file_writer().add_summary(part)

    def iteration(self, row: Row) -> None:
        """Logs the numbers of iterations.csv in their sections."""
        self._speed.add(row)
        self._add(by_section(row), row["env_steps"])

    def evaluation(self, row: Row) -> None:
        """Logs the numbers under eval/."""
        self._add(of_evaluation(row), row["env_steps"])

    def video(self, env_steps: int, path: Path) -> None:
        """Shows a GIF under eval/; `add_video` would need another package to make one."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(path) as picture:
            width, height = picture.size
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
        )
        shown = Summary(value=[Summary.Value(tag="eval/video", image=image)])
        self._writer._get_file_writer().add_summary(shown, env_steps)

    def close(self, row: Row) -> None:
        """Logs the summary, and closes the event file."""
        self._add(summary(row, self._speed), row["env_steps"])
        self._writer._get_file_writer().add_summary(self._end)
        self._writer.close()

    def _add(self, numbers: dict[str, float | int], env_steps: Any) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, env_steps)
