"""Asynchronous advantage actor-critic (Mnih et al. 2016, algorithm S3), as one agent.

A2C whose round is a single sampler's rollout: the agent takes a gradient step for each rollout as
it arrives, while the other samplers act under the policies they last took.

Departures from the paper, beside those of `walle.algos.a2c`:
    - gradients are computed by the agent from the sampler's rollout, one after the other, instead
      of by every thread into shared memory without locks: no update overwrites part of another,
      and the gradient is taken at the newest parameters;
    - what the rollout lags behind them is measured (lag_mean, lag_max), and corrected by V-trace
      (Espeholt et al. 2018) unless `correction` says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from walle.algos.a2c import A2C, A2CSettings
from walle.algos.base import Capabilities
from walle.algos.networks import NetSettings
from walle.algos.problem import Problem
from walle.errors import ConfigError
from walle.learning.compiled import Compiling


@dataclass(kw_only=True)
class A3CSettings(A2CSettings):
    """conf/algo/a3c.yaml, where every key is explained."""

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        super().__post_init__()
        if self.compile == "true":
            raise ConfigError(
                "algo.compile=true: a3c's updates have the rows of one sampler, so there is no one"
                " shape to compile for; use algo.compile=false or algo=a2c"
            )


class A3C(A2C):
    """A2C that takes every sampler's rollout for a round."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        A3CSettings,
        modes=("free",),
        reason="it updates at each sampler's rollout, without rounds; for rounds use algo=a2c",
        every_rollout=True,
    )

    def __init__(self, settings: A3CSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters; there is nothing to compile."""
        super().__init__(settings, net, problem)
        why = "learning eager: an update's rows are one sampler's, whatever their number"
        self.compiling = Compiling(settings.compile, problem.device, [], nothing=why)
