"""Which algorithms learn in C++ (`walle/learning/native`), and what the libraries get of them.

The libraries have fully connected networks with tanh or relu, float32 on one core of the CPU for
each learner, and the losses of walle's own algorithms. Everything else is compiled from its PyTorch
code.
"""

from __future__ import annotations

from typing import Any

import torch

from walle.algos.on_policy.rows import StepRows
from walle.algos.problem import Problem
from walle.learning.adam import AdamSettings
from walle.learning.native.ppo_epochs import PPOEpochs
from walle.learning.native.ppo_library import PPOLoss
from walle.learning.native.replay_updates import ActorCritic
from walle.learning.native.structures import ACTIVATIONS
from walle.nets.critics import Critic
from walle.nets.factory import NetSettings
from walle.nets.policies import GaussianPolicy


def has_networks(algorithm: Any, net: NetSettings, problem: Problem) -> bool:
    """Whether the libraries have an algorithm's networks; its losses may be anything."""
    is_own = type(algorithm).__module__.partition(".")[0] != "walle" or net.own is not None
    on_cpu = torch.device(problem.device).type == "cpu" and torch.get_num_threads() == 1
    plain = net.activation in ACTIVATIONS and problem.obs_layout.dtype == "float32"
    return plain and on_cpu and not is_own


def has_ppo(algorithm: Any) -> bool:
    """Whether `ppo_epochs` takes the passes of this PPO."""
    kinds = type(algorithm.policy), type(algorithm.critic), type(algorithm.rows)
    plain = kinds == (GaussianPolicy, Critic, StepRows)
    return plain and has_networks(algorithm, algorithm.net, algorithm.problem)


def ppo_epochs(algorithm: Any, adam: AdamSettings, kl_limit: float | None) -> PPOEpochs:
    """Passes that minimise `PPO.loss`, and end where the KL divergence is above `kl_limit`."""
    s = algorithm.settings
    loss = PPOLoss(
        policy=algorithm.policy.layout,
        critic=algorithm.critic.layout,
        activation=algorithm.net.activation,
        clip=s.clip,
        value_weight=s.value_weight,
        value_clip=s.value_clip,
        entropy_weight=s.entropy_weight,
        noise_is_learned=s.log_std_end is None,
        kl_limit=kl_limit,
        gamma=s.gamma,
        gae_lambda=algorithm.gae_lambda,
        correction=s.correction,
        normalize_advantages=s.normalize_advantages,
    )
    problem = algorithm.problem
    return PPOEpochs(loss, adam, problem.shards)


def actor_critic(algorithm: Any, critics: int) -> ActorCritic:
    """The networks and settings of an off-policy algorithm's updates."""
    s, net, problem = algorithm.settings, algorithm.net, algorithm.problem
    actions = algorithm.policy.action_dim
    return ActorCritic(
        policy=algorithm.policy.layout,
        critic=net.q_functions(problem, actions, 1).layout,
        activation=net.activation,
        critics=critics,
        actions=actions,
        minibatch=s.minibatch_size,
        shards=problem.shards,
        gamma=s.gamma,
        tau=s.tau,
        learning_rate=s.learning_rate,
    )
