"""The keys along which the jobs of a sweep differ."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf


def swept_keys(
    context: HydraContext, master: DictConfig, jobs: Sequence[Sequence[str]]
) -> set[str]:
    """Finds the names of the overrides along which the sweep's jobs differ.

    A name counts if the command line or the sweeper's settings give it several values, or if its
    value differs between the jobs: an adaptive sweeper chooses the values by itself. A name that
    only one choice has, such as `ppo.clip`, counts as `algo.clip`, which the jobs have.
    """
    given = {name for job in jobs for name in _values(job)}
    asked = asked_overrides(context, master)
    several = {str(one.key_or_group) for one in asked if one.is_sweep_override()}
    return (several & given) | _differing(jobs)


def asked_overrides(context: HydraContext, master: DictConfig) -> list[Override]:
    """The overrides of the command line and of the sweeper's settings, parsed."""
    asked = [str(override) for override in master.hydra.overrides.task]
    params = OmegaConf.select(master, "hydra.sweeper.params") or {}
    asked += [f"{key}={value}" for key, value in params.items()]
    parser = OverridesParser.create(config_loader=context.config_loader)
    return list(parser.parse_overrides(asked))


def _values(overrides: Sequence[str]) -> dict[str, str]:
    return dict(one.lstrip("+~").partition("=")[::2] for one in overrides)


def _differing(jobs: Sequence[Sequence[str]]) -> set[str]:
    """Names of the overrides that not all jobs have with the same value."""
    given = [_values(job) for job in jobs]
    names = {name for overrides in given for name in overrides}
    return {name for name in names if len({overrides.get(name) for overrides in given}) > 1}
