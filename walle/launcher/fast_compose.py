"""Composes the jobs of a sweep quickly: jobs that differ only in values share their groups.

Hydra composes every job from its files, which takes a tenth of a second with walle's groups, and
its sweeper composes each job once more to check it. Here Hydra composes every combination of groups
once, and a job is a copy with its values set. Overrides that Hydra might handle differently, or
reject, are composed by Hydra itself.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, cast

import cloudpickle
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

SIMPLE = (OverrideType.CHANGE, OverrideType.FORCE_ADD)


class FastLoader:
    """Hydra's loader with a quicker `load_sweep_config`, which returns the same configs.

    It has every other attribute of Hydra's loader.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        """Takes Hydra's loader."""
        self._loader = loader
        self._parser = OverridesParser.create()
        self._groups: dict[str, bool] = {}
        self._bases: dict[tuple[str, ...], bytes] = {}
        self._checked: dict[tuple[str, ...], DictConfig] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Jobs get the loader without what it has composed."""
        return FastLoader, (self._loader,)

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        """The config of a job; kept for `take`, as Hydra's sweeper composes jobs to check them."""
        config = self._compose(master_config, sweep_overrides)
        self._checked[tuple(sweep_overrides)] = config
        return config

    def take(self, master: DictConfig, overrides: Sequence[str]) -> DictConfig:
        """The config of a job, for the caller alone."""
        return self._checked.pop(tuple(overrides), None) or self._compose(master, list(overrides))

    def forget(self) -> None:
        """Drops the configs that nobody has taken."""
        self._checked.clear()

    def _compose(self, master: DictConfig, overrides: list[str]) -> DictConfig:
        parsed = self._parser.parse_overrides(overrides)
        values = [override for override in parsed if self._sets_value(override)]
        others = [override for override in parsed if not self._sets_value(override)]
        if not all(self._is_group(override) for override in others):
            return self._loader.load_sweep_config(master, overrides)
        key = tuple(str(override.input_line) for override in others)
        if key not in self._bases:
            self._bases[key] = cloudpickle.dumps(self._loader.load_sweep_config(master, list(key)))
        config: DictConfig = pickle.loads(self._bases[key])  # six times as fast as deepcopy
        try:
            for override in values:
                force = override.type == OverrideType.FORCE_ADD
                OmegaConf.update(
                    config, override.key_or_group, override.value(), merge=True, force_add=force
                )
        except OmegaConfBaseException:
            return self._loader.load_sweep_config(master, overrides)  # refuses in Hydra's words
        lines = [str(override.input_line) for override in parsed]
        style = config.hydra.job.config.override_dirname
        named = [
            line
            for line, override in zip(lines, parsed, strict=True)
            if override.key_or_group not in style.exclude_keys
        ]
        config.hydra.overrides.task = lines
        dirname = style.item_sep.join(sorted(named)).replace("=", style.kv_sep)
        config.hydra.job.override_dirname = dirname
        OmegaConf.copy_cache(from_config=master, to_config=config)
        return config

    def _sets_value(self, override: Override) -> bool:
        """Whether the override sets a value of the task, on which no config file depends."""
        simple = override.type in SIMPLE and override.package is None
        of_hydra = override.key_or_group.partition(".")[0] == "hydra"
        return simple and not of_hydra and not self._is_group(override)

    def _is_group(self, override: Override) -> bool:
        """Whether it chooses an option of a group."""
        name = override.key_or_group
        if name not in self._groups:
            self._groups[name] = bool(self._loader.get_group_options(name, results_filter=None))
        return self._groups[name] and not isinstance(override.value(), dict)


def fast_loader(context: HydraContext) -> FastLoader:
    """Makes Hydra's own sweeper, and everything else, compose jobs quickly; returns the loader."""
    loader: Any = context.config_loader
    if not isinstance(loader, FastLoader):
        loader = context.config_loader = cast(Any, FastLoader(loader))
    return cast(FastLoader, loader)
