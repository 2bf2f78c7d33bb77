"""walle: N sampler processes collect experience, and one agent learns from it.

From Python:

    import walle

    config = walle.compose(["env=hopper", "total_steps=1e6"])
    walle.train(config, "outputs/hopper")
    policy = walle.load("outputs/hopper")
    action = policy.act(obs)
    print(walle.evaluate(policy, episodes=100))

Importing walle loads nothing else; each name loads what it needs when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walle.agent.callback import Callback, CheckpointInfo, EndInfo, EvaluationInfo, RoundInfo
    from walle.config import compose
    from walle.errors import ConfigError
    from walle.policy.acting import Policy, load
    from walle.policy.evaluating import evaluate
    from walle.training import train

__version__ = "0.3.0"
__all__ = [
    "Callback",
    "CheckpointInfo",
    "ConfigError",
    "EndInfo",
    "EvaluationInfo",
    "Policy",
    "RoundInfo",
    "__version__",
    "compose",
    "evaluate",
    "load",
    "train",
]

_HOMES = {
    **dict.fromkeys(
        ("Callback", "CheckpointInfo", "EndInfo", "EvaluationInfo", "RoundInfo"),
        "walle.agent.callback",
    ),
    "ConfigError": "walle.errors",
    "Policy": "walle.policy.acting",
    "compose": "walle.config",
    "evaluate": "walle.policy.evaluating",
    "load": "walle.policy.acting",
    "train": "walle.training",
}


def __getattr__(name: str) -> Any:
    """Imports the module of a public name when the name is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
