"""Asynchronous advantage actor-critic (Mnih et al. 2016, algorithm S3), as one agent.

A3C is A2C with rounds of a single rollout: the agent takes one gradient step when a rollout
arrives, while the other samplers act under the last policy that they read.

Departures from the paper, besides the departures of `walle.algos.on_policy.a2c`:
    - the agent computes gradients from the samplers' rollouts, one after the other; in the paper
      every thread applies its own to shared memory without locks. Here no update overwrites part of
      another, and the gradient is taken at the newest parameters;
    - the lag between acting and newest parameters is measured (lag_mean, lag_max), and corrected
      by V-trace (Espeholt et al. 2018) unless `correction` chooses another method;
    - a sampler's rollout has many lanes (a thread of the paper has one environment); it is complete
      before the gradient is taken, even if an episode ends within it; by default it has 16 steps;
    - rollouts older than `max_staleness` versions are dropped on request.
"""

from __future__ import annotations

from typing import ClassVar

from walle.algos.base import Capabilities
from walle.algos.engines import Part
from walle.algos.on_policy.a2c import A2C, A2CSettings


class A3C(A2C):
    """A3C: A2C that learns from each sampler's rollout as soon as it arrives."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        A2CSettings,
        modes=("free",),
        reason="it learns from each rollout on arrival, without rounds; for rounds use algo=a2c",
        every_rollout=True,
        images=True,
        asymmetric=True,
    )

    def parts(self) -> list[Part]:
        """The gradient step of a rollout, whose number of rows differs from sampler to sampler."""
        return [part._replace(compile=None) for part in super().parts()]
