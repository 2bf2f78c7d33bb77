"""The launcher plugin. Every Hydra application imports it when it starts, so it imports little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from walle.launcher.settings import RayConf, SlurmConf, WalleLauncherConf

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.utils import JobReturn
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig

    from walle.launcher.planning import StopRule

# The schema is not called `walle`: an application may build its own hydra/launcher/walle.yaml on
# it, and Hydra would take the schema for that file.
ConfigStore.instance().store(
    group="hydra/launcher", name="walle_schema", node=WalleLauncherConf, provider="walle"
)


def either(value: Any, otherwise: Any) -> Any:
    """`${walle.either:${name},x}` is x if `name` is null; OmegaConf lacks such a resolver."""
    return otherwise if value is None else value


def up_to_cores(*counts: int) -> str:
    """`${walle.up_to_cores:1,2,4,8}` is "1,2" on two cores: the counts up to the number of cores.

    The smallest count always stays. Sweeps over `sampler.n` use it.
    """
    from walle.system.machine import usable_cores  # not at the top: every application would load it

    cores = max(len(usable_cores()), min(counts))
    return ",".join(str(count) for count in counts if count <= cores)


def power_of_two(most: int, of: int) -> int:
    """`${walle.power_of_two:64,${batch_size}}` is the largest one up to 64 that divides a round."""
    return math.gcd(int(most), int(of))  # batch_size=8e3 is a float


def example(name: str) -> str:
    """`${walle.example:NAME}` is the directory of an example, for the search path of a sweep."""
    from walle.config.files import example_directory

    return str(example_directory(name))


for resolver in (either, up_to_cores, power_of_two, example):
    OmegaConf.register_new_resolver(f"walle.{resolver.__name__}", resolver, replace=True)


class WalleSearchPath(SearchPathPlugin):
    """Makes `hydra/launcher=walle` known to every application; walle also finds its other files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Adds the launcher's own configuration, after the application's.

        For walle itself, it also adds sweeps/ and the directory conf/ in the user's working
        directory.
        """
        here = Path(__file__).resolve().parent
        search_path.append(provider="walle-launcher", path=f"file://{here / 'conf'}")
        paths = search_path.get_path()
        mains = [part.path.removeprefix("file://") for part in paths if part.provider == "main"]
        root = here.parents[1]
        if not {str(root / "conf"), str(root / "walle" / "conf")} & {*mains}:
            return  # another application, which need not wait for an import
        from walle.config.files import config_directory, own_directory, sweeps_directory

        if str(config_directory()) in mains:
            search_path.append(provider="walle-sweeps", path=f"file://{sweeps_directory()}")
            if own := own_directory():
                search_path.append(provider="own", path=f"file://{own}")


class WalleLauncher(Launcher):
    """Gives each job a process and cores of its own; `WalleLauncherConf` lists the settings."""

    def __init__(self, **settings: Any) -> None:
        slurm = SlurmConf(**settings.pop("slurm", {}))
        ray = RayConf(**settings.pop("ray", {}))
        self.settings = WalleLauncherConf(**settings, slurm=slurm, ray=ray)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Prepares the launch; with `resume=false`, moves the sweep to a new directory."""
        from walle.launcher.launch import Launch  # not at the top: every application would load it

        self._launch = Launch(self.settings, hydra_context, task_function, config)

    def watch(self, stop_rule: StopRule) -> None:
        """Stops jobs before their ends, for sweepers that prune."""
        self._launch.stop_rule = stop_rule

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Runs the jobs, and returns their results in the order of `job_overrides`."""
        return self._launch(job_overrides, initial_job_idx)
