"""Makes nets of the user's own from their classes: pure functions, or `torch.nn.Module`s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from walle.nets.critics import Critic
from walle.nets.mlp import Params
from walle.nets.own import OwnNet
from walle.nets.policies import Policy
from walle.system.importing import imported
from walle.types import ActionSpace


@dataclass(frozen=True)
class OwnFactory:
    """Makes a net of the user's own from the width of an observation; picklable.

    Attributes:
        path: "module:Class", for messages.
        cls: the class.
        settings: the first argument of the class.
    """

    path: str
    cls: Callable[[Any, int], Any]
    settings: Any

    def __call__(self, obs_dim: int) -> OwnNet:
        """The net for observations [..., `obs_dim`]."""
        if _is_module(self.cls):
            return ModuleNet(lambda: self.cls(self.settings, obs_dim))
        net: OwnNet = self.cls(self.settings, obs_dim)
        return net

    @property
    def is_whole(self) -> bool:
        """Whether the class makes whole networks (`OwnNetworks`) instead of an encoder."""
        return hasattr(self.cls, "policy")

    def policy_factory(self, obs_dim: int, space: ActionSpace) -> Callable[[], Policy]:
        """Makes the policy of `OwnNetworks`; picklable."""
        networks: Any = self.cls
        return partial(networks.policy, self.settings, obs_dim, space)

    def critic(self, obs_dim: int, space: ActionSpace) -> Critic:
        """The state-value function of `OwnNetworks`."""
        networks: Any = self.cls
        critic: Critic = networks.critic(self.settings, obs_dim, space)
        return critic


def own_class(path: str) -> type:
    """The class of a net of the user's own, which "module:Class" names.

    Raises:
        ConfigError: there is no such class, or it is no `torch.nn.Module`, `OwnNet` or
            `OwnNetworks`.
    """
    found: type = imported("net.name", path)
    if hasattr(found, "policy"):
        imported("net.name", path, ("critic",), "see walle.nets.own.OwnNetworks")
    elif not _is_module(found):
        base = "derive it from torch.nn.Module, or see walle.nets.own.OwnNet"
        imported("net.name", path, ("init",), base)
    return found


def _is_module(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, nn.Module)


class ModuleNet:
    """A `torch.nn.Module` as an `OwnNet`: its parameters come from outside at every call.

    Buffers, and parameters that require no gradient, are constants: every process makes the same
    ones, whatever the run's seed.
    """

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        """`make` gives the module new parameters at every call; it has an attribute `features`."""
        self._make, self._module = make, _seeded(make, 0)
        self.features: int = getattr(self._module, "features", None)  # type: ignore[assignment] # checked before a run
        learned = {n: p for n, p in self._module.named_parameters() if p.requires_grad}
        self.shapes: Mapping[str, tuple[int, ...]] = {n: tuple(p.shape) for n, p in learned.items()}
        everything = (*self._module.named_parameters(), *self._module.named_buffers())
        self._constants = {n: x.detach() for n, x in everything if n not in learned}

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """The parameters of a module that is made after seeding torch from `generator`."""
        seed = int(torch.randint(2**62, (), generator=generator))
        drawn = dict(_seeded(self._make, seed).named_parameters())
        return {name: drawn[name].detach() for name in self.shapes}

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        """What the module's `forward` makes of [..., O]: [..., F]."""
        constants = {name: value.to(obs.device) for name, value in self._constants.items()}
        found: Tensor = functional_call(self._module, {**constants, **params}, (obs,))
        return found


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module made with torch's global generator at `seed`, which then goes on as before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()
