"""The choice of `hydra.launcher.backend`."""

from __future__ import annotations

from walle.launcher.settings import WalleLauncherConf
from walle.launcher.workers.local import LocalBackend
from walle.launcher.workers.ray_cluster.backend import RayBackend
from walle.launcher.workers.submission import SlurmBackend

Backend = LocalBackend | SlurmBackend | RayBackend


def make_backend(settings: WalleLauncherConf) -> Backend:
    """The backend that the settings name.

    Raises:
        ValueError: it cannot work with the settings.
    """
    known: dict[str, type[Backend]]
    known = {"local": LocalBackend, "slurm": SlurmBackend, "ray": RayBackend}
    return known[settings.backend](settings)
