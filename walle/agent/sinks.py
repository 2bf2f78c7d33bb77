"""Places that a run reports to besides its files: TensorBoard and W&B."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from walle.agent.csv_file import Row


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


def make_sinks(
    kind: str, directory: Path, config: dict[str, Any], options: dict[str, Any]
) -> list[Sink]:
    """The sinks of `logger.name`.

    Args:
        kind: "files" for none, "tensorboard" or "wandb".
        directory: of the run.
        config: the run's, in plain values.
        options: for `wandb.init`.
    """
    if kind == "tensorboard":
        return [TensorBoardSink(directory / "tensorboard")]
    return [WandbSink(directory, config, options)] if kind == "wandb" else []
