"""A Gaussian policy whose weights begin uniform, as in the code of Frans & Hafner."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from walle.config.schemas import NetConfig
from walle.errors import ConfigError
from walle.nets.critics import Critic
from walle.nets.mlp import activation
from walle.nets.policies import GaussianPolicy


class UniformNet:
    """Makes the policy and a value function; see `walle.nets.own.OwnNetworks`."""

    settings = NetConfig

    @staticmethod
    def policy(settings: NetConfig, obs_dim: int, space: gym.Space[Any]) -> UniformPolicy:
        """A Gaussian policy.

        Raises:
            ConfigError: actions are discrete, or the policy's scale is to depend on the state.
        """
        if not isinstance(space, gym.spaces.Box) or settings.scale != "constant":
            raise ConfigError(
                "net=parallel_trpo_2016 needs continuous actions and net.scale=constant; for others"
                " use net=mlp"
            )
        return UniformPolicy(
            obs_dim,
            int(space.shape[0]),
            settings.policy_hidden,
            activation(settings.activation),
            settings.log_std,
        )

    @staticmethod
    def critic(settings: NetConfig, obs_dim: int, space: gym.Space[Any]) -> Critic:  # noqa: ARG004
        """A value function as with net=mlp, for algorithms whose baseline is a network."""
        return Critic(obs_dim, settings.critic_hidden, activation(settings.activation))


class UniformPolicy(GaussianPolicy):
    """A Gaussian policy whose weights begin uniform."""

    def init(self, generator: torch.Generator) -> Tensor:
        """Weights within ±0.05, and zero biases."""
        params = self.layout.unflatten(super().init(torch.Generator()))
        for name, param in params.items():
            if name.endswith(".weight"):
                param.uniform_(-0.05, 0.05, generator=generator)
        return self.layout.flatten(params)
