"""WALL-E's PPO: `ppo_kl` with AMSGrad, and step sizes that fall with the width of the networks.

Departures from WALL-E's code, with sweeps/wall_e_2018.yaml:
    - an episode cut by its time limit bootstraps from the true successor instead of counting as
      terminal, so a rollout need not end with its episode;
    - all samplers share one observation normaliser, x ← (x - μ) / σ bounded by `obs_clip`, the time
      included; WALL-E's samplers each had (x - μ) / (3 (σ + 0.1)) without bound and with the time
      unchanged;
    - the policy's third hidden layer has its activation, which WALL-E's code leaves out; Ant and
      the humanoids have the widths of the other tasks;
    - a log standard deviation is the sum of several parameters, where WALL-E has a log variance;
    - the value function's targets are λ-returns, since rollouts hold parts of episodes; each of its
      passes sees both rounds, where WALL-E's takes as many minibatches as one round has;
    - experience that an older policy collected can be corrected (`correction`;
      OnPolicy.with_newest_log_probs); WALL-E's code, whose agent and samplers take turns, has none.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.algos.base import Problem
from walle.algos.engines import Part
from walle.algos.on_policy.ppo_kl import PPOKL, PPOKLBatch, PPOKLSettings
from walle.learning.adam import Result
from walle.nets.factory import NetSettings
from walle.nets.mlp import Layout

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class Moments(NamedTuple):
    """AMSGrad's moments of the gradient, [P] each: mean, square, largest square so far."""

    mean: Tensor
    square: Tensor
    largest: Tensor


def amsgrad(vector: Tensor, grad: Tensor, moments: Moments, rate: Tensor) -> tuple[Tensor, Moments]:
    """One step of AMSGrad, without correction of the bias.

    m ← β₁ m + (1 - β₁) g, v ← β₂ v + (1 - β₂) g², v̂ ← max(v̂, v), θ ← θ - α m / (√v̂ + ε) (Reddi,
    Kale & Kumar 2018, "On the convergence of Adam and beyond", algorithm 2, to which ε is added as
    WALL-E's code adds it).
    """
    mean = torch.lerp(moments.mean, grad, 1 - BETA_1)
    square = torch.lerp(moments.square, grad * grad, 1 - BETA_2)
    largest = torch.maximum(moments.largest, square)
    return vector - rate * mean / (largest.sqrt() + EPSILON), Moments(mean, square, largest)


def per_root_width(rate: float, layout: Layout) -> float:
    """α / √h for the middle one of the hidden layers, of width h.

    WALL-E's step sizes: 9e-4 / √h₂ for the policy, 1e-2 / √h₂ for the value function (its code).
    """
    widths = [shape[0] for name, shape in layout.shapes.items() if name.endswith(".weight")]
    hidden = widths[:-1]
    return rate / math.sqrt(hidden[len(hidden) // 2]) if hidden else rate


class WallEPPO(PPOKL):
    """PPO-KL whose policy takes steps of AMSGrad."""

    def __init__(self, settings: PPOKLSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        policy, critic = net.policy_factory(problem)(), net.critic(problem)
        settings = replace(
            settings,
            learning_rate=per_root_width(settings.learning_rate, policy.layout),
            value_learning_rate=per_root_width(settings.value_learning_rate, critic.layout),
        )
        super().__init__(settings, net, problem)
        self.moments = Moments(*(torch.zeros_like(self.vector) for _ in Moments._fields))

    def parts(self) -> list[Part]:
        """The value function's steps; the policy's are eager."""
        return self.value.parts(self, rounds=2)

    def improve_policy(self, batch: PPOKLBatch, rate: float) -> Result:
        """Takes at most `epochs` full-batch steps; stops when the KL is too large."""
        infos: list[Tensor] = []
        stopped = False
        step_size = torch.tensor(rate, device=self.vector.device)
        while len(infos) < self.settings.epochs and not stopped:
            leaf = self.vector.detach().requires_grad_()
            loss, info = self.loss(leaf, batch)
            (grad,) = torch.autograd.grad(loss, leaf)
            info = {"loss": loss, "grad_norm": torch.linalg.vector_norm(grad), **info}
            infos.append(torch.stack(list(info.values())).detach())
            stopped = self.too_far(dict(zip(info, infos[-1].tolist(), strict=True)))
            if not stopped:
                self.vector, self.moments = amsgrad(self.vector, grad, self.moments, step_size)
        means = dict(zip(info, torch.stack(infos).mean(0).tolist(), strict=True))
        return Result(self.vector, self.adam, means, len(infos) - stopped, stopped)

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        moments = {name: x.clone() for name, x in self.moments._asdict().items()}
        return {**super().state_dict(), "moments": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        super().load_state_dict(state)
        device = self.problem.device
        self.moments = Moments(**{name: x.to(device) for name, x in state["moments"].items()})
