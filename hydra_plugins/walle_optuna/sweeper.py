"""The sweeper plugin. Every Hydra application imports it at its start, so it imports little."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper

from walle.tuning.settings import WalleOptunaConf

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

ConfigStore.instance().store(
    group="hydra/sweeper", name="walle_optuna", node=WalleOptunaConf, provider="walle"
)


class WalleOptuna(Sweeper):
    """Searches for the best settings with Optuna; `WalleOptunaConf` lists the settings."""

    def __init__(self, **settings: Any) -> None:
        self.settings = WalleOptunaConf(**settings)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Prepares the search; ends the program with code 2 if Optuna is missing."""
        if find_spec("optuna") is None:
            from walle.launcher.launch import refuse

            refuse("hydra/sweeper=walle_optuna needs Optuna: pip install 'walle[optuna]'")
        from walle.tuning.sweep import Search  # not at the top: every application would load it

        self._search = Search(self.settings, hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> None:
        """Runs the trials; `arguments` are the task's overrides on the command line."""
        self._search(arguments)
