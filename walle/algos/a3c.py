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

from typing import ClassVar

from walle.algos.a2c import A2C


class A3C(A2C):
    """The agent's receiving makes the difference: see `every_rollout`."""

    modes: ClassVar[tuple[str, ...]] = ("free",)
    why: ClassVar[str] = (
        "it updates as each sampler's rollout arrives, without rounds; for rounds use algo=a2c"
    )
    every_rollout: ClassVar[bool] = True
