"""Callbacks that Hydra calls before it writes anything for a run or a sweep.

Also prepares the settings of single algorithms in a sweep, such as `ppo.clip=0.1`. Hydra accepts a
key that the config lacks only with plus signs, so they are added here. The launcher turns the key
into `algo.clip=0.1` in the jobs with algo=ppo (walle.launcher.planning).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from walle.config.did_you_mean import explain, misplaced, refuse_lists
from walle.config.files import algorithms, search_path
from walle.errors import ConfigError, directory_fault
from walle.system.locks import refuse_used


def with_plus_signs(arguments: Sequence[str]) -> list[str]:
    """The command line in a form that Hydra accepts: `ppo.clip=0.1` becomes `++ppo.clip=0.1`."""
    with _reported():
        refuse_lists(arguments)  # Hydra would say of some lists that they have no value
    names = algorithms(search_path(arguments))
    return [_opened(word, names) if "=" in word else word for word in arguments]


def _opened(key: str, names: Collection[str]) -> str:
    """The key with plus signs if it starts with the name of an algorithm."""
    algorithm, dot, _ = key.partition(".")
    return f"++{key}" if dot and algorithm in names else key


def _algorithms(config: DictConfig) -> set[str]:
    sources = config.hydra.runtime.config_sources
    return algorithms(Path(source.path) for source in sources if source.schema == "file")


class RefuseDirectory(Callback):
    """If a run or a sweep cannot use its directory, ends it before Hydra writes there."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Ends with code 2 if the directory is invalid or in use, or a setting is one of sweeps."""
        with _reported():
            _check_words(config)
            for name in sorted(_algorithms(config).intersection(map(str, config))):
                raise ConfigError(misplaced(name))
            # A single run would silently ignore settings of the launcher, sweeper and sweep.
            keys = ("hydra.launcher.", "hydra/launcher", "hydra.sweep", "hydra/sweeper")
            if word := _typed(config, *keys):
                raise ConfigError(f"{word} is a setting of sweeps, and this is one run: add -m")
            directory = Path(config.hydra.run.dir)
            _refuse("hydra.run.dir", config.hydra.run.dir)
            _refuse("hydra.output_subdir", f"{directory}/{config.hydra.output_subdir or ''}")
            refuse_used(directory)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Ends with code 2 if the sweep's directory name is invalid, or `resume` names a run.

        Also prepares settings of single algorithms in the sweep file for Hydra's sweeper.
        """
        with _reported():
            params, names = config.hydra.sweeper.get("params") or {}, _algorithms(config)
            if any(_opened(str(key), names) != key for key in params):
                opened = {_opened(str(k), names): v for k, v in params.items()}
                with open_dict(config):
                    config.hydra.sweeper.params = opened
            if config.get("resume"):
                raise ConfigError(
                    f"resume={config.resume} with a sweep, which resumes by itself: start the "
                    "sweep again as before"
                )
            if word := _typed(config, "hydra.run."):
                fix = f"type {word.replace('hydra.run.', 'hydra.sweep.')}"
                raise ConfigError(f"{word} is a setting of one run, and this is a sweep: {fix}")
            _check_words(config)
            name, sweep = config.get("name"), Path(config.hydra.sweep.dir)
            if name is not None and (".." in Path(str(name)).parts or sweep == Path("multirun")):
                raise ConfigError(
                    f"name={name} would lead out of multirun/, or to it; give another name, or "
                    "another place with hydra.sweep.dir=..."
                )
            _refuse("hydra.sweep.dir", config.hydra.sweep.dir)


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except (ConfigError, OmegaConfBaseException) as error:  # Hydra would turn it into a warning
        print(f"walle: {explain(error) or error}", file=sys.stderr)
        sys.exit(2)


def _typed(config: DictConfig, *keys: str) -> str | None:
    """The first word of the command line with a key that starts with one of `keys`."""
    words: Any = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
    return next((word for word in words or () if word.lstrip("+").startswith(keys)), None)


def _check_words(config: DictConfig) -> None:
    """Refuses lists of options, and a wrong `name`: errors about directories do not mention it."""
    hydra: Any = OmegaConf.to_container(config.hydra, resolve=False)  # keeps its references
    params = hydra["sweeper"].get("params") or {}
    refuse_lists(f"{key}={value}" for key, value in params.items())
    _refuse("name", f"multirun/{config.get('name')}")


def _refuse(key: str, directory: str) -> None:
    fault = directory_fault(Path(directory)) if directory else "it is empty; give it a value"
    if fault:
        raise ConfigError(f"{key}: {fault}")
