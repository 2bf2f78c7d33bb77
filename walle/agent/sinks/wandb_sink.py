"""A run of W&B."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.agent.csv_file import Row
from walle.agent.sinks.describing import Description, Speed, by_section, of_evaluation, summary
from walle.system.run_files import read_status, update_status


class WandbSink:
    """A W&B run, online or offline."""

    def __init__(self, directory: Path, described: Description, options: Mapping[str, Any]) -> None:
        """Starts a W&B run, or continues the one that status.json of a resumed run names.

        `options` are arguments of `wandb.init`; their tags are added to those of the run.
        """
        import wandb

        earlier = (read_status(directory).get("wandb") or {}).get("id")
        arguments = {
            **options,
            "name": os.environ.get("WANDB_NAME") or described.name[:128],  # W&B takes no more
            "group": options["group"] or described.sweep,
            "tags": sorted({*described.tags, *options["tags"]}),
            "config": described.settings,
        }
        self._run: Any = wandb.init(
            dir=str(directory), id=earlier, resume="allow" if earlier else None, **arguments
        )
        url = None if self._run.offline else self._run.url
        about = {"id": self._run.id, "url": url, "group": arguments["group"]}
        update_status(directory, wandb=about)
        self._speed = Speed()
        self._run.define_metric("env_steps", hidden=True)
        self._run.define_metric("*", step_metric="env_steps")

    def iteration(self, row: Row) -> None:
        """Logs the numbers of iterations.csv in their sections."""
        self._speed.add(row)
        self._run.log({**by_section(row), "env_steps": row["env_steps"]})

    def evaluation(self, row: Row) -> None:
        """Logs the numbers under eval/."""
        self._run.log({**of_evaluation(row), "env_steps": row["env_steps"]})

    def video(self, env_steps: int, path: Path) -> None:
        """Shows an MP4 under eval/."""
        import wandb

        film = wandb.Video(str(path), format="mp4")
        self._run.log({"eval/video": film, "env_steps": env_steps})

    def close(self, row: Row) -> None:
        """Writes the summary and ends the run."""
        self._run.summary.update(summary(row, self._speed))
        self._run.finish()
