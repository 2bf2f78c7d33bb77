"""The networks of off-policy algorithms with continuous actions: a policy and its critics."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import gymnasium as gym
from torch import Tensor

from walle.algos import native
from walle.algos.off_policy.base import OffPolicy
from walle.algos.problem import Problem
from walle.errors import ConfigError
from walle.nets.factory import NetSettings


class ContinuousOffPolicy(OffPolicy):
    """Base of the off-policy algorithms with a policy that the gradient of its critics improves.

    A subclass adds `start` and `block`; its state has a `policy` with a `vector`.
    """

    def __init__(
        self,
        settings: Any,
        net: NetSettings,
        problem: Problem,
        kind: str,
        *,
        exploration: float = 0.0,
        critics: int,
        draws: int,
        updates: int = 1,
    ) -> None:
        """Draws the initial parameters and begins with an empty buffer.

        Args:
            settings: settings of the algorithm.
            net: settings of the networks.
            problem: spaces and sizes of the run.
            kind: of the policy: "squashed" or "deterministic", see `nets.factory.PolicySpec`.
            exploration: standard deviation of a deterministic policy's noise.
            critics: number of critics.
            draws: M, how often an update draws noise [B, A].
            updates: K, the updates in a block.
        """
        actions = continuous_actions(settings.name, problem)
        self.net, self.problem, self.critics = net, problem, critics
        self.policy_factory = net.policy_factory(problem, kind, exploration)
        self.policy = self.policy_factory().policy
        self.critic = net.q_functions(problem, actions, critics)
        generator = problem.generator()
        policy_vector, critic_vector = (
            network.init(generator).to(problem.device) for network in (self.policy, self.critic)
        )
        state = self.start(policy_vector, critic_vector)
        sizes = {"actions": actions, "draws": draws, "updates": updates}
        super().__init__(settings, net, problem, state, generator, **sizes)

    @abstractmethod
    def start(self, policy: Tensor, critic: Tensor) -> Any:
        """The state before the first update: nested named tuples of tensors, with `policy` first.

        Args:
            policy: [P] the policy's parameters.
            critic: [Q] the parameters of all critics.
        """

    @property
    def is_native(self) -> bool:
        """See `OffPolicy`."""
        return native.has_networks(self, self.net, self.problem)

    @property
    def policy_vector(self) -> Tensor:
        """The policy's parameters."""
        vector: Tensor = self.state.policy.vector
        return vector


def continuous_actions(name: str, problem: Problem) -> int:
    """A, the number of entries of an action, each from -1 to 1.

    Raises:
        ConfigError: actions are discrete, or have other bounds.
    """
    space = problem.action_space
    if not isinstance(space, gym.spaces.Box):
        actions, cure = f"actions {space}", "ppo"
        if isinstance(space, gym.spaces.Discrete):
            actions, cure = f"{space.n} discrete actions", "dqn or ppo"
        raise ConfigError(
            f"algo={name} needs continuous actions, because its policy learns from the gradient of "
            f"Q(s, a) along a; this environment has {actions}: use algo={cure}"
        )
    if not ((space.low == -1) & (space.high == 1)).all():
        raise ConfigError(
            f"algo={name} draws actions from [-1, 1], but here they run from {space.low} to "
            f"{space.high}; use env.action=rescale, which needs finite bounds, or algo=ppo"
        )
    return int(space.shape[0])
