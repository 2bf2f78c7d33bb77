"""The application of the launcher's benchmark: walle's run with time stamps, or an empty job.

The environment `launcher_app:Stamped-v0` records the time of its first step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

if TYPE_CHECKING:
    from omegaconf import DictConfig

STAMPS = "WALLE_BENCHMARK_STAMPS"


def stamp(event: str) -> None:
    """Appends an event and its time on the clock that all processes of the machine share."""
    with Path(os.environ[STAMPS]).open("a") as file:
        file.write(f"{event} {time.monotonic()}\n")


class StampedEnv(CartPoleEnv):
    """CartPole that stamps its first step."""

    stepped = False

    def step(self, action: Any) -> Any:
        """One step of CartPole."""
        if not self.stepped:
            self.stepped = True
            stamp("first_step")
        return super().step(action)


gymnasium.register("Stamped-v0", StampedEnv, max_episode_steps=500)


def stamped_run(config: DictConfig) -> float | None:
    """Runs walle and stamps the end."""
    from walle.run import run

    try:
        return run(config)
    finally:
        stamp("end")


def nothing(config: DictConfig) -> int:
    """An empty job that only stamps its run."""
    stamp("end")
    return int(config.seed)


def main() -> None:
    """`launcher_app.py run|nothing OVERRIDE...`: a Hydra application over walle's configuration."""
    import hydra

    from walle.config import config_directory

    task = {"run": stamped_run, "nothing": nothing}[sys.argv.pop(1)]
    hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="config")(
        task
    )()


if __name__ == "__main__":
    main()
