"""User-defined networks: an encoder in front of the policy and of every critic.

An encoder turns observations into features: policy and critics are feed-forward functions of the
features, and Q(s, a) is one of the features and the action. Each network has an encoder with
parameters of its own. A user's class is a `torch.nn.Module`, an `OwnNet`, or makes whole networks
(`OwnNetworks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, get_type_hints

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn
from torch.func import functional_call

from walle.errors import ConfigError, what_went_wrong
from walle.nets.mlp import OwnNet as OwnNet  # a name that users know
from walle.nets.mlp import Params
from walle.nets.policies import StochasticPolicy
from walle.types import ActionSpace

Result = TypeVar("Result")
_ROWS = 32  # so many that Dropout does not leave half of them unchanged


class OwnNetworks(Protocol):
    """The interface of a class that makes whole networks, for on-policy algorithms.

    `net.name=module:Class` may name such a class. It is never instantiated: both methods are
    static and take `settings` (see `OwnNet`), the width of an observation and the space of actions.
    """

    @staticmethod
    def policy(settings: Any, obs_dim: int, space: ActionSpace) -> StochasticPolicy:
        """Makes the policy."""

    @staticmethod
    def critic(settings: Any, obs_dim: int, space: ActionSpace) -> Any:
        """Makes the state-value function, a `critics.Critic`."""


@dataclass(frozen=True)
class OwnFactory:
    """Makes a user's net from the width of an observation; picklable."""

    path: str  # "module:Class", for messages
    cls: type[Any]  # the class
    settings: Any  # the first argument of the class

    @classmethod
    def from_values(cls, path: str, settings: Mapping[str, Any]) -> OwnFactory:
        """The factory of the class at `path`, see `own_class`; `settings` are plain values."""
        net = own_class(path)
        schema = getattr(net, "settings", SimpleNamespace)  # a NetConfig while learning
        return cls(path, net, _from_values(schema, settings))

    @property
    def networks(self) -> OwnNetworks | None:
        """The class, if it makes whole networks; None if it makes an encoder."""
        networks: Any = self.cls
        return networks if hasattr(networks, "policy") else None

    def __call__(self, obs_dim: int) -> OwnNet:
        """The net for observations [..., `obs_dim`]."""
        if issubclass(self.cls, nn.Module):
            return ModuleNet(partial(self.cls, self.settings, obs_dim))
        net: OwnNet = self.cls(self.settings, obs_dim)
        return net


def _from_values(schema: Any, values: Mapping[str, Any]) -> Any:
    """An instance of `schema`, whose fields may be dataclasses themselves."""
    types = get_type_hints(schema) if is_dataclass(schema) else {}
    nested = {
        name: _from_values(types[name], value)
        for name, value in values.items()
        if isinstance(value, Mapping) and is_dataclass(types.get(name))
    }
    return schema(**{**values, **nested})


def own_class(path: str) -> type:
    """The class that "module:Class" names: a `torch.nn.Module`, an `OwnNet` or `OwnNetworks`."""
    from walle.system.importing import imported  # no other network needs it

    net: type = imported("net.name", path)
    if not isinstance(net, type):
        raise ConfigError(f"net.name={path!r} is a {type(net).__name__}: name a class")
    if hasattr(net, "policy"):
        imported("net.name", path, ("critic",), "see walle.nets.own.OwnNetworks")
    elif not issubclass(net, nn.Module):
        base = "derive it from torch.nn.Module, or see walle.nets.own.OwnNet"
        imported("net.name", path, ("init",), base)
    return net


class ModuleNet:
    """A `torch.nn.Module` as an `OwnNet`: its parameters come from outside at every call.

    Buffers, and parameters that require no gradient, are constants: every process makes the same
    ones, whatever the run's seed.
    """

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        """`make` returns a new module at every call, with an attribute `features`."""
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
        """The result of the module's `forward`: [..., O] to [..., F]."""
        constants = {name: value.to(obs.device) for name, value in self._constants.items()}
        features: Tensor = functional_call(self._module, {**constants, **params}, (obs,))
        return features


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module made with torch's global generator at `seed`; restores the generator's state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def check_net(factory: OwnFactory, space: Box) -> None:
    """Checks that a net has all parts of an `OwnNet`, and that they fit together.

    The net is tried on samples of `space` ([O]) within [-10, 10]. Refuses a net if a part is
    missing or raises, a shape is wrong, or rows depend on each other.
    """
    space = deepcopy(space)  # sampling would change it
    space.seed(0)
    samples = np.stack([space.sample() for _ in range(_ROWS)])
    obs = torch.from_numpy(samples.clip(-10, 10).astype(np.float32))

    def refusal(text: str) -> ConfigError:
        return ConfigError(f"net.name={factory.path!r}: {text}")

    def tried(what: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except Exception as error:  # the user's own code may raise anything
            raise refusal(f"{what} raises {what_went_wrong(error)}") from error

    made = f"{factory.path.partition(':')[2]}(settings, {obs.shape[-1]})"
    net = tried(made, lambda: factory(obs.shape[-1]))
    missing = [name for name in ("features", "shapes") if getattr(net, name, None) is None]
    if missing:
        raise refusal(f"its objects lack {' and '.join(missing)}; set them in __init__")
    if not callable(net):
        raise refusal("its objects lack __call__(params, obs), which returns the features")
    if not isinstance(net.features, int) or net.features < 1:
        raise refusal(
            f"features={net.features!r} must be a positive integer, the width of its output"
        )

    generator = torch.Generator()
    params, again = (
        tried("init", lambda: dict(net.init(generator.manual_seed(0)))) for _ in range(2)
    )
    if set(params) != set(net.shapes):
        raise refusal(
            f"init returns {_names(params)}, but shapes names {_names(net.shapes)}; use the same"
        )
    for name, shape in net.shapes.items():
        value = params[name]
        if tuple(value.shape) != tuple(shape) or value.dtype != torch.float32:
            raise refusal(
                f"init returns {name!r} of shape {tuple(value.shape)} and {value.dtype}, but it "
                f"must have the shape {tuple(shape)} in shapes, and torch.float32"
            )
        if not torch.equal(value, again[name]):
            raise refusal(
                f"init draws other numbers for {name!r} from the same generator; draw all of "
                "them with generator=generator"
            )

    def features(rows: Tensor) -> Tensor:
        learned = {name: value.clone().requires_grad_() for name, value in params.items()}
        shape, before = tuple(rows.shape), rows.clone()
        output = tried(f"for observations of shape {shape} it", lambda: net(learned, rows))
        if not torch.equal(rows, before):  # learning needs them again
            raise refusal("it changes its observations in place; write to a new tensor")
        promised, is_tensor = (*shape[:-1], net.features), isinstance(output, Tensor)
        if not is_tensor or tuple(output.shape) != promised or output.dtype != torch.float32:
            type_name = type(output).__name__
            returned = f"{tuple(output.shape)} of {output.dtype}" if is_tensor else type_name
            raise refusal(
                f"for observations of shape {shape} it returns {returned}, but features="
                f"{net.features} promises {promised} of torch.float32"
            )
        return output.detach()

    features(obs[:4])
    features(obs[:4].view(2, 2, -1))
    alone, together = features(obs[: _ROWS // 2]), features(obs)[: _ROWS // 2]
    if not torch.allclose(alone, together, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise refusal(
            "the features of an observation change with the rest of its batch or from call to "
            "call, as BatchNorm and Dropout make them do; use LayerNorm or leave them out"
        )


def _names(params: Mapping[str, object]) -> str:
    return ", ".join(map(repr, params)) or "nothing"
