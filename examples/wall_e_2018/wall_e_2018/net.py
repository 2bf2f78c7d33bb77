"""WALL-E's networks: widths that follow from the task's sizes, and how their weights begin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from walle.config.schemas import NetConfig
from walle.errors import ConfigError
from walle.nets.critics import Critic
from walle.nets.mlp import Activation, Layout, Params, activation
from walle.nets.policies import GaussianPolicy


@dataclass(kw_only=True)
class WallENetConfig(NetConfig):
    """Settings in conf/net/wall_e_2018.yaml; the widths are no settings."""

    def __post_init__(self) -> None:
        """Refuses settings that the networks do not have."""
        for key, value in (("policy_hidden", []), ("critic_hidden", []), ("scale", "constant")):
            if getattr(self, key) != value:
                raise ConfigError(
                    f"net.{key}={getattr(self, key)}: WALL-E's networks follow from the task's"
                    f" sizes; use net.{key}={value}"
                )


class WallENet:
    """Makes WALL-E's policy and value function; see `walle.nets.own.OwnNetworks`."""

    settings = WallENetConfig

    @staticmethod
    def policy(settings: WallENetConfig, obs_dim: int, space: gym.Space[Any]) -> WallEPolicy:
        """A Gaussian policy.

        Raises:
            ConfigError: actions are discrete.
        """
        if not isinstance(space, gym.spaces.Box):
            raise ConfigError("net=wall_e_2018 needs continuous actions; use net=mlp")
        size = int(space.shape[0])
        return WallEPolicy(obs_dim, size, activation(settings.activation), settings.log_std)

    @staticmethod
    def critic(settings: WallENetConfig, obs_dim: int, space: gym.Space[Any]) -> WallECritic:  # noqa: ARG004
        """A value function."""
        return WallECritic(obs_dim, activation(settings.activation))


class WallEPolicy(GaussianPolicy):
    """Hidden layers of 10 O, √(10 O · 10 A) and 10 A units; weights begin within ±0.05.

    Each log standard deviation is the sum of A parameters. Adam moves each parameter by about its
    step size, so that the sum moves A times as fast. WALL-E's code has log variances of
    `logvar_speed` copies, 2 A for A < 12; a log standard deviation is half of a log variance, so A
    copies of it move as fast.
    """

    def __init__(self, obs_dim: int, action_dim: int, act: Activation, log_std: float) -> None:
        """`log_std` is the initial log standard deviation of every action."""
        first, last = 10 * obs_dim, 10 * action_dim
        hidden = (first, math.isqrt(first * last), last)
        super().__init__(obs_dim, action_dim, hidden, act, log_std)
        self._share = log_std / action_dim
        self.layout = Layout({**self.layout.shapes, "log_std": (action_dim, action_dim)})

    def init(self, generator: torch.Generator) -> Tensor:
        """Uniform weights, zero biases, and equal shares of the log standard deviations."""
        params = {}
        for name, shape in self.layout.shapes.items():
            params[name] = torch.zeros(shape)
            if name.endswith(".weight"):
                params[name].uniform_(-0.05, 0.05, generator=generator)
        params["log_std"].fill_(self._share)
        return self.layout.flatten(params)

    def log_std(self, params: Params) -> Tensor:
        """The sums of the A copies, [A]."""
        return params["log_std"].sum(0)


class WallECritic(Critic):
    """Hidden layers of 10 O, √(10 O · 5) and 5 units; weights begin normal, 1 / √inputs wide."""

    def __init__(self, obs_dim: int, act: Activation) -> None:
        """A value function of O = `obs_dim` inputs."""
        first, last = 10 * obs_dim, 5
        super().__init__(obs_dim, (first, math.isqrt(first * last), last), act)

    def init(self, generator: torch.Generator) -> Tensor:
        """Normal weights and zero biases."""
        params = {}
        for name, shape in self.layout.shapes.items():
            params[name] = torch.zeros(shape)
            if name.endswith(".weight"):
                params[name].normal_(0.0, shape[1] ** -0.5, generator=generator)
        return self.layout.flatten(params)
