"""The choice of `hydra.launcher.backend`."""

from __future__ import annotations

from walle.launcher.settings import WalleLauncherConf
from walle.launcher.workers.local import LocalBackend
from walle.launcher.workers.submission import SlurmBackend

Backend = LocalBackend | SlurmBackend


def make_backend(settings: WalleLauncherConf) -> Backend:
    """The backend that the settings name.

    Raises:
        ValueError: it cannot work with the settings.
    """
    return SlurmBackend(settings) if settings.backend == "slurm" else LocalBackend(settings)
