"""The algorithms, one file each, and their registry."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from walle.errors import ConfigError, nearest

if TYPE_CHECKING:
    from walle.algos.base import Algorithm

REGISTRY = {
    "ppo": "walle.algos.ppo:PPO",
    "ppo_kl": "walle.algos.ppo_kl:PPOKL",
    "trpo": "walle.algos.trpo:TRPO",
    "a2c": "walle.algos.a2c:A2C",
    "a3c": "walle.algos.a3c:A3C",
    "ddpg": "walle.algos.ddpg:DDPG",
    "td3": "walle.algos.td3:TD3",
    "sac": "walle.algos.sac:SAC",
    "dqn": "walle.algos.dqn:DQN",
}


def load(name: str) -> type[Algorithm]:
    """The class of the algorithm called `name`; imports only its file.

    Raises:
        ConfigError: no algorithm has that name.
    """
    if name not in REGISTRY:
        raise ConfigError(f"algo.name={name!r} is not registered; {nearest(name, REGISTRY)}")
    module, _, attribute = REGISTRY[name].partition(":")
    algorithm: type[Algorithm] = getattr(import_module(module), attribute)
    return algorithm
