"""The networks of the `net` group, built for the spaces of an environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym

from walle.algos.problem import Problem
from walle.errors import ConfigError
from walle.nets.critics import Critic, QFunctions
from walle.nets.discrete_policies import BernoulliPolicy, MultiCategoricalPolicy
from walle.nets.encoders import EncodedPolicy, Encoder
from walle.nets.mlp import activation
from walle.nets.own import MakeNet, OwnCritic, OwnPolicy, OwnQFunctions
from walle.nets.own_checks import check_net
from walle.nets.own_making import OwnFactory, own_class
from walle.nets.policies import CategoricalPolicy, GaussianPolicy, Policy, StateScalePolicy
from walle.nets.recurrent import GRUPolicy
from walle.types import LEAST_PIXELS


class Memory(NamedTuple):
    """A memory: its units, and the steps of the sequences from which it learns."""

    units: int
    sequence: int


class NetSettings(NamedTuple):
    """The `net` group.

    Attributes:
        policy_hidden: widths of the policy's hidden layers.
        critic_hidden: widths of the critic's hidden layers.
        activation: the function between layers.
        log_std: initial log standard deviation of a Gaussian policy.
        memory: the memory that policy and critic share; None without one.
        scale: "constant" makes a Gaussian's standard deviation a parameter, "state" a function
            of the state.
        own: makes a net of the user's own, see `nets.own`; None without one.
        image_features: features of each image, if the observations have images; else 0.
    """

    policy_hidden: tuple[int, ...]
    critic_hidden: tuple[int, ...]
    activation: str
    log_std: float
    memory: Memory | None = None
    scale: str = "constant"
    own: OwnFactory | None = None
    image_features: int = 0

    @classmethod
    def of(cls, net: Any) -> NetSettings:
        """Reads the `net` group of a configuration."""
        return cls(
            tuple(net.policy_hidden),
            tuple(net.critic_hidden),
            net.activation,
            net.log_std,
            Memory(net.hidden, net.sequence) if net.name == "gru" else None,
            net.scale,
            OwnFactory(net.name, own_class(net.name), net) if ":" in net.name else None,
            net.image_features if net.name == "cnn" else 0,
        )

    def features(self, problem: Problem) -> int:
        """The width of the networks' input: of the memory, of what is seen, or observations."""
        encoder = self.encoder(problem)
        return encoder.width if encoder else self.state_size or problem.obs_dim

    def encoder(self, problem: Problem) -> Encoder | None:
        """Makes the convolutions that see images; None without images.

        Raises:
            ConfigError: the observations have images and the net no convolutions, or vice versa.
        """
        images = problem.obs_layout.images
        if images and not self.image_features:
            shapes = " and ".join("x".join(map(str, image.shape)) for image in images)
            raise ConfigError(
                f"the environment's observations have images ({shapes}), and this net sees vectors"
                " only; use net=cnn"
            )
        if self.image_features and not images:
            raise ConfigError(
                "net=cnn needs images, but the environment's observations are "
                f"{problem.observation_space}: an image is a Box of uint8 from 0 to 255 with two or"
                f" three dimensions, {LEAST_PIXELS} pixels a side at least; use net=mlp"
            )
        return Encoder(problem.obs_layout, self.image_features) if images else None

    def encoded(self, problem: Problem) -> int:
        """F, the width of what the layers get: the networks' input, or the own net's features."""
        own = self.own_encoder(problem)
        return self.features(problem) if own is None else own().features

    def check_own(self, problem: Problem) -> None:
        """Tries the user's own net, if there is one, on observations of the environment's space.

        Raises:
            ConfigError: it lacks a part, or does not do what it must.
        """
        if self.own is not None:
            self.encoder(problem)  # refuses images
            if not self.own.is_whole:
                check_net(self.own, problem.observation_space)

    def own_encoder(self, problem: Problem) -> MakeNet | None:
        """Makes the user's own net before the layers; picklable; None without one.

        Raises:
            ConfigError: the user's own net makes whole networks instead.
        """
        if self.own is not None and self.own.is_whole:
            raise ConfigError(
                f"net.name={self.own.path!r} makes policies and state-value functions of on-policy"
                " algorithms only; use one of these, or net=mlp"
            )
        return None if self.own is None else partial(self.own, problem.obs_dim)

    @property
    def state_size(self) -> int:
        """S, the width of the memory; 0 without one."""
        return 0 if self.memory is None else self.memory.units

    def policy_factory(self, problem: Problem) -> Callable[[], Policy]:
        """A function that makes the policy; picklable, because each sampler makes one."""
        if self.own is not None and self.own.is_whole:
            return self.own.policy_factory(problem.obs_dim, problem.action_space)
        encoder, readout = self.encoder(problem), self._readout_factory(problem)
        if own := self.own_encoder(problem):
            return partial(OwnPolicy, own, readout)
        if encoder:
            return partial(EncodedPolicy, encoder, readout)
        if self.memory is None:
            return readout
        return partial(GRUPolicy, problem.obs_dim, self.memory.units, readout)

    def _readout_factory(self, problem: Problem) -> Callable[[], Policy]:
        space, width = problem.action_space, self.encoded(problem)
        layers = (self.policy_hidden, activation(self.activation))
        if not isinstance(space, gym.spaces.Box) and self.scale == "state":
            raise ConfigError(
                "net.scale=state with discrete actions, which have no scale; use net.scale=constant"
            )
        if isinstance(space, gym.spaces.Discrete):
            return partial(CategoricalPolicy, width, int(space.n), *layers)
        if isinstance(space, gym.spaces.MultiDiscrete):
            counts = tuple(space.nvec.tolist())
            return partial(MultiCategoricalPolicy, width, counts, *layers)
        size = int(space.shape[0])
        if isinstance(space, gym.spaces.MultiBinary):
            return partial(BernoulliPolicy, width, size, *layers)
        if self.scale == "constant":
            return partial(GaussianPolicy, width, size, *layers, self.log_std)
        return partial(StateScalePolicy, width, size, *layers, self.log_std)

    def has_log_std(self, space: gym.Space[Any]) -> bool:
        """Whether a policy for actions of `space` has log standard deviations as parameters."""
        whole = self.own is not None and self.own.is_whole  # its parameters may mean anything
        return isinstance(space, gym.spaces.Box) and self.scale == "constant" and not whole

    def critic(self, problem: Problem) -> Critic:
        """Makes the state-value function."""
        if self.own is not None and self.own.is_whole:
            return self.own.critic(problem.obs_dim, problem.action_space)
        layers = (self.critic_hidden, activation(self.activation))
        critic = Critic(self.encoded(problem), *layers)
        own = self.own_encoder(problem)
        return OwnCritic(own(), critic) if own else critic

    def q_functions(self, problem: Problem, actions: int, count: int) -> QFunctions:
        """Makes `count` action-value functions of actions with `actions` entries."""
        layers = (self.critic_hidden, activation(self.activation))
        make = partial(QFunctions, self.encoded(problem), actions, *layers)
        own = self.own_encoder(problem)
        return OwnQFunctions(own(), make(1), count) if own else make(count)
