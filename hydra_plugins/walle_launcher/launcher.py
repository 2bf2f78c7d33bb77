"""What Hydra imports at each start of any application: the plugin's class and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher

from hydra_plugins.walle_launcher._settings import WalleLauncherConf

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig


ConfigStore.instance().store(
    group="hydra/launcher", name="walle", node=WalleLauncherConf, provider="walle"
)
# The same under a name that an application's own hydra/launcher/walle.yaml can build on.
ConfigStore.instance().store(
    group="hydra/launcher", name="walle_defaults", node=WalleLauncherConf, provider="walle"
)


class WalleLauncher(Launcher):
    """Gives each job a process and cores of its own; see `WalleLauncherConf`."""

    def __init__(self, **settings: Any) -> None:
        """Takes the keys of `WalleLauncherConf`, as Hydra hands them over."""
        self.settings = WalleLauncherConf(**settings)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keeps what the jobs need; moves the sweep to a new directory with `resume=false`."""
        from hydra_plugins.walle_launcher._launch import Launch

        self._launch = Launch(self.settings, hydra_context, task_function, config)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Runs the jobs, and returns their results in the order of `job_overrides`."""
        return self._launch(job_overrides, initial_job_idx)
