"""The networks of the `net` group, built for the spaces of an environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym

from walle.algos.problem import Problem
from walle.errors import ConfigError
from walle.nets.critics import Critic
from walle.nets.encoded import FeatureCritic, FeaturePolicy, OwnEncoder
from walle.nets.mlp import activation
from walle.nets.policies import CategoricalPolicy, GaussianPolicy, Policy, StateScalePolicy
from walle.nets.recurrent import GRUPolicy
from walle.processes.importing import imported


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
        own_encoder: makes an encoder of the user's own for an observation's width; None without.
    """

    policy_hidden: tuple[int, ...]
    critic_hidden: tuple[int, ...]
    activation: str
    log_std: float
    memory: Memory | None = None
    scale: str = "constant"
    own_encoder: Callable[[int], OwnEncoder] | None = None

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
            partial(imported("net.name", net.name), net) if ":" in net.name else None,
        )

    def features(self, problem: Problem) -> int:
        """F, the width of the networks' input: the memory's state or the observation."""
        return self.state_size or problem.obs_dim

    def _encoded(self, problem: Problem) -> int:
        """The width of what the layers get: the networks' input, or the encoder's features."""
        if self.own_encoder is not None:
            return self.own_encoder(problem.obs_dim).features
        return self.features(problem)

    @property
    def state_size(self) -> int:
        """S, the width of the memory; 0 without one."""
        return 0 if self.memory is None else self.memory.units

    def policy_factory(self, problem: Problem) -> Callable[[], Policy]:
        """A function that makes the policy; picklable, because each sampler makes one."""
        readout = self._readout_factory(problem)
        if self.own_encoder is not None:
            return partial(FeaturePolicy, partial(self.own_encoder, problem.obs_dim), readout)
        if self.memory is None:
            return readout
        return partial(GRUPolicy, problem.obs_dim, self.memory.units, readout)

    def _readout_factory(self, problem: Problem) -> Callable[[], Policy]:
        act, width = activation(self.activation), self._encoded(problem)
        if isinstance(problem.action_space, gym.spaces.Discrete):
            if self.scale == "state":
                raise ConfigError(
                    "net.scale=state with discrete actions, which have no scale; "
                    "use net.scale=constant"
                )
            actions = int(problem.action_space.n)
            return partial(CategoricalPolicy, width, actions, self.policy_hidden, act)
        size = int(problem.action_space.shape[0])
        policy = StateScalePolicy if self.scale == "state" else GaussianPolicy
        return partial(policy, width, size, self.policy_hidden, act, self.log_std)

    def critic(self, problem: Problem) -> Critic:
        """Makes the state-value function."""
        critic = Critic(self._encoded(problem), self.critic_hidden, activation(self.activation))
        if self.own_encoder is None:
            return critic
        return FeatureCritic(self.own_encoder(problem.obs_dim), critic)
