"""Checks of the settings of `sampler=ray`."""

from __future__ import annotations

from importlib.util import find_spec

from walle.config.schemas import Config, RaySamplerConfig
from walle.errors import ConfigError

_CLIENT = "ray://"


def check_ray(config: Config, sampler: RaySamplerConfig) -> None:
    """Checks that samplers can run on a Ray cluster with these settings.

    Raises:
        ConfigError: Ray is missing, or a setting does not fit.
    """
    if find_spec("ray") is None:
        raise ConfigError("sampler=ray needs a package that is missing: pip install 'walle[ray]'")
    if sampler.address and sampler.address.startswith(_CLIENT):
        raise ConfigError(
            f"sampler.address={sampler.address} is that of Ray Client, through which rollouts "
            "would travel twice: run this on a node of the cluster with sampler.address=auto"
        )
    if sampler.n is not None:
        raise ConfigError(
            f"sampler.n={sampler.n} with sampler=ray, which has as many samplers as its nodes give;"
            f" use sampler.per_node={sampler.n} for so many on each node"
        )
    if sampler.max_lag is None:
        raise ConfigError(
            "sampler.max_lag=null with sampler=ray, whose nodes deliver round by round; use "
            "sampler.max_lag=0 or 1, or sampler=process"
        )
    if config.trace:
        raise ConfigError(
            "trace=true with sampler=ray: the clocks of two machines cannot be compared; use "
            "sampler=process, or leave trace out"
        )
