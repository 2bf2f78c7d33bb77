"""What Hydra calls before it writes anything for a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from walle.errors import ConfigError
from walle.processes.locks import refuse_used


class RefuseUsedDirectory(Callback):
    """Ends a run before Hydra writes its files over those of another run that still goes on."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Ends the program with code 2 if another run uses the directory."""
        try:
            refuse_used(Path(config.hydra.run.dir))
        except ConfigError as error:  # Hydra would turn it into a warning
            print(f"walle: {error}", file=sys.stderr)
            sys.exit(2)
