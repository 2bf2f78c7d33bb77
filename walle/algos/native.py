"""Which algorithms learn in C++ (`walle/learning/native`), and what the libraries need of them.

The libraries have fully connected networks with tanh or relu, float32 on one core of the CPU for
each learner, and the policies and losses of walle's own algorithms. PyTorch learns everything else.
"""

from __future__ import annotations

from typing import Any

import torch

from walle.algos.problem import Problem
from walle.learning.native.library import ACTIVATIONS, ints, widths
from walle.learning.native.passes import KINDS, Loss, Passes
from walle.learning.native.replay_updates import ActorCritic
from walle.nets.critics import Critic
from walle.nets.factory import NetSettings


def has_networks(algorithm: Any, net: NetSettings, problem: Problem) -> bool:
    """Whether the libraries have an algorithm's networks; its losses may be anything."""
    is_own = type(algorithm).__module__.partition(".")[0] != "walle" or net.own is not None
    on_cpu = torch.device(problem.device).type == "cpu" and torch.get_num_threads() == 1
    plain = net.activation in ACTIVATIONS and problem.obs_layout.dtype == "float32"
    return plain and on_cpu and not is_own


def has_policy(algorithm: Any) -> bool:
    """Whether `passes` improve the policy of an on-policy algorithm."""
    has = has_networks(algorithm, algorithm.net, algorithm.problem)
    return has and type(algorithm.policy) in KINDS


def passes(algorithm: Any, critic: Critic | None, loss: Loss) -> Passes:
    """Passes that improve the policy of an on-policy algorithm, and its critic if there is one."""
    s, activation = algorithm.settings, algorithm.net.activation
    loss = loss._replace(
        gamma=s.gamma,
        gae_lambda=algorithm.gae_lambda,
        correction=s.correction,
        normalize_advantages=s.normalize_advantages,
    )
    shards = algorithm.problem.shards
    return Passes(algorithm.policy, critic, activation, loss, algorithm.adam_settings, shards)


def actor_critic(algorithm: Any, critics: int) -> Any:
    """The networks and settings of an off-policy algorithm's updates."""
    s, net, problem = algorithm.settings, algorithm.net, algorithm.problem
    actions = algorithm.policy.action_dim
    policy = widths(algorithm.policy.layout)
    critic = widths(net.q_functions(problem, actions, 1).layout)
    return ActorCritic(
        policy=ints(policy),
        critic=ints(critic),
        policy_layers=len(policy) - 1,
        critic_layers=len(critic) - 1,
        critics=critics,
        actions=actions,
        activation=ACTIVATIONS[net.activation],
        minibatch=s.minibatch_size,
        shards=problem.shards,
        gamma=s.gamma,
        tau=s.tau,
        learning_rate=s.learning_rate,
    )
