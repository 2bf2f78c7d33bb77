"""The algorithms, one file each, and their registry."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from walle.errors import ConfigError, nearest
from walle.system.importing import imported, require_picklable

if TYPE_CHECKING:
    from walle.algos.base import Algorithm, Problem
    from walle.nets.factory import NetSettings

REGISTRY = {
    "ppo": "walle.algos.on_policy.ppo:PPO",
    "ppo_kl": "walle.algos.on_policy.ppo_kl:PPOKL",
    "trpo": "walle.algos.on_policy.trpo:TRPO",
    "a2c": "walle.algos.on_policy.a2c:A2C",
    "a3c": "walle.algos.on_policy.a3c:A3C",
    "pqn": "walle.algos.on_policy.pqn:PQN",
    "ddpg": "walle.algos.off_policy.ddpg:DDPG",
    "td3": "walle.algos.off_policy.td3:TD3",
    "sac": "walle.algos.off_policy.sac:SAC",
    "xqc": "walle.algos.off_policy.xqc:XQC",
    "dqn": "walle.algos.off_policy.dqn:DQN",
}


def load(name: str) -> type[Algorithm]:
    """The class of the algorithm called `name`, or named by module:Class; imports only its file.

    Raises ConfigError if no algorithm has that name, or the class lacks a part of an algorithm.
    """
    if ":" in name:
        return _own(name)
    if name not in REGISTRY:
        near = nearest(name, REGISTRY)
        own = "(a class of your own: module:Class)"
        raise ConfigError(f"algo.name={name!r} is not registered; {near} {own}")
    module, _, attribute = REGISTRY[name].partition(":")
    algorithm: type[Algorithm] = getattr(import_module(module), attribute)
    return algorithm


_NEEDS = (
    "capabilities",
    "optimizers",
    "warm_up",
    "update",
    "snapshot",
    "state_dict",
    "load_state_dict",
)
_HAS = ("policy_factory", "obs_clip", "replay")


def _own(name: str) -> type[Algorithm]:
    """A user's class, its parts checked."""
    from walle.algos.base import AlgorithmSettings, Capabilities

    found: type[Algorithm] = imported("algo.name", name, _NEEDS, "see docs/adding_an_algorithm.md")
    settings = getattr(found.capabilities, "settings", None)
    if not isinstance(found.capabilities, Capabilities) or not (
        isinstance(settings, type) and issubclass(settings, AlgorithmSettings)
    ):
        raise ConfigError(
            f"algo.name={name!r}: capabilities must be walle.algos.base.Capabilities(SETTINGS), "
            "with a dataclass SETTINGS derived from AlgorithmSettings"
        )
    return found


def load_net(path: str) -> type:
    """The class of a user's net, "module:Class"; ConfigError if it is missing or lacks a part."""
    from walle.nets.own import own_class  # imports torch, which few commands need

    return own_class(path)


def make(settings: Any, net: NetSettings, problem: Problem) -> Algorithm:
    """The algorithm with its initial parameters.

    Raises:
        ConfigError: a user's algorithm lacks an attribute or its policy cannot be pickled, a user's
        net does not work, or a part of the algorithm cannot meet algo.compile=true.
    """
    net.check_own(problem)
    algorithm = load(settings.name)(settings, net, problem)
    parts = getattr(algorithm, "parts", None)
    if parts is not None:  # else its class is a user's, and chooses for itself
        from walle.algos.engines import check  # imports torch, which few commands need

        check(settings.compile, problem.device, parts())
    if ":" in settings.name:
        if missing := [name for name in _HAS if not hasattr(algorithm, name)]:
            raise ConfigError(
                f"algo.name={settings.name!r}: its objects lack {', '.join(missing)}; set them in "
                "__init__, as docs/adding_an_algorithm.md does"
            )
        require_picklable("algo.name", settings.name, algorithm.policy_factory)
    return algorithm
