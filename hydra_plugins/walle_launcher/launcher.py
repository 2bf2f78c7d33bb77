"""What Hydra imports at each start of any application: the launcher's plugins, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from hydra_plugins.walle_launcher._settings import WalleLauncherConf

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

# Not under the name `walle`: an application may have its own hydra/launcher/walle.yaml, built on
# this, and Hydra would take a schema of the same name for an accident.
ConfigStore.instance().store(
    group="hydra/launcher", name="walle_schema", node=WalleLauncherConf, provider="walle"
)


def either(value: Any, otherwise: Any) -> Any:
    """`${walle.either:${name},x}` is x where `name` is null; OmegaConf has no word for that."""
    return otherwise if value is None else value


OmegaConf.register_new_resolver("walle.either", either, replace=True)


class WalleSearchPath(SearchPathPlugin):
    """Lets every application say `hydra/launcher=walle`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Adds the launcher's own configuration, after the application's."""
        here = Path(__file__).resolve().parent
        search_path.append(provider="walle-launcher", path=f"file://{here / 'conf'}")


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
