"""The networks that the `net` group asks for, made to fit an environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym

from walle.algos.problem import Problem
from walle.errors import ConfigError
from walle.nets.critics import Critic
from walle.nets.mlp import activation
from walle.nets.policies import CategoricalPolicy, GaussianPolicy, Policy, StateScalePolicy
from walle.nets.recurrent import GRUPolicy


class Memory(NamedTuple):
    """A network's memory: its units, and the steps of the sequences it learns from."""

    units: int
    sequence: int


class NetSettings(NamedTuple):
    """The `net` group.

    Attributes:
        policy_hidden: widths of the policy's hidden layers.
        critic_hidden: widths of the critic's.
        activation: between the layers.
        log_std: where a Gaussian's log standard deviation starts.
        memory: that policy and critic read, if any.
        scale: a Gaussian's standard deviation is a parameter ("constant") or depends on the state.
    """

    policy_hidden: tuple[int, ...]
    critic_hidden: tuple[int, ...]
    activation: str
    log_std: float
    memory: Memory | None = None
    scale: str = "constant"

    @classmethod
    def of(cls, net: Any) -> NetSettings:
        """From the `net` group of a configuration."""
        return cls(
            tuple(net.policy_hidden),
            tuple(net.critic_hidden),
            net.activation,
            net.log_std,
            Memory(net.hidden, net.sequence) if net.name == "gru" else None,
            net.scale,
        )

    def features(self, problem: Problem) -> int:
        """The width of what policy and critic see: the memory's state, or the observation."""
        return self.state_size or problem.obs_dim

    @property
    def state_size(self) -> int:
        """S, the width of the memory; 0 without one."""
        return 0 if self.memory is None else self.memory.units

    def policy_factory(self, problem: Problem) -> Callable[[], Policy]:
        """Makes the policy for the problem's actions; picklable, so samplers make their own."""
        readout = self._readout_factory(problem)
        if self.memory is None:
            return readout
        return partial(GRUPolicy, problem.obs_dim, self.memory.units, readout)

    def _readout_factory(self, problem: Problem) -> Callable[[], Policy]:
        act, width = activation(self.activation), self.features(problem)
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
        return Critic(self.features(problem), self.critic_hidden, activation(self.activation))
