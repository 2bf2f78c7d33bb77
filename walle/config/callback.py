"""What Hydra calls before it writes anything for a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from walle.config.choices import open_params, refuse_own_settings
from walle.errors import ConfigError, directory_fault
from walle.system.locks import refuse_used


class RefuseDirectory(Callback):
    """Ends a run or a sweep that cannot have its directory before Hydra writes anything there."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Ends the program with code 2 if the directory's name cannot be, or a run is in it."""
        with _reported():
            _refuse_name(config)
            refuse_own_settings(config)
            _refuse_sweep_settings(config)
            directory = Path(config.hydra.run.dir)
            _refuse("hydra.run.dir", directory)
            _refuse("hydra.output_subdir", Path(config.hydra.output_subdir or ""))
            refuse_used(directory)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Ends with code 2 if no directory can have the sweep's name, or one run is to resume.

        Also prepares settings of single algorithms in the sweep file for Hydra's sweeper.
        """
        open_params(config)
        with _reported():
            if config.get("resume"):
                raise ConfigError(
                    f"resume={config.resume} with a sweep, which resumes by itself: start the "
                    "sweep again as before"
                )
            _refuse_name(config)
            _refuse("hydra.sweep.dir", Path(config.hydra.sweep.dir))


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:  # Hydra would turn it into a warning
        print(f"walle: {error}", file=sys.stderr)
        sys.exit(2)


def _refuse_sweep_settings(config: DictConfig) -> None:
    """A single run would take settings of the launcher without a word."""
    typed = [str(word) for word in config.hydra.overrides.hydra or ()]
    of_sweeps = [word for word in typed if word.lstrip("+").startswith("hydra.launcher.")]
    if of_sweeps:
        raise ConfigError(f"{of_sweeps[0]} is a setting of sweeps, and this is one run: add -m")


def _refuse_name(config: DictConfig) -> None:
    """Checks `name` itself: a message about the sweep's directory would not mention it."""
    name = str(config.get("name") or "")
    _refuse("name", Path(name))
    if ".." in Path(name).parts:
        raise ConfigError(
            f"name={name} would lead out of multirun/; give a name without .., or another place "
            "with hydra.sweep.dir=..."
        )


def _refuse(key: str, path: Path) -> None:
    if fault := directory_fault(path):
        raise ConfigError(f"{key}: {fault}")
