"""Checks of the `learner` settings, and the values of those that are left open."""

from __future__ import annotations

import math
from dataclasses import replace

from walle import algos
from walle.config.schemas import Config, GRUConfig
from walle.errors import ConfigError
from walle.system.machine import usable_cores
from walle.types import Lag


def checked_learners(config: Config) -> Config:
    """Fills in the open values of `learner`, and checks them against the minibatches."""
    asked, sizes = config.learner, config.algo.shared_minibatches
    algorithm = algos.load(config.algo.name)
    divides = hasattr(algorithm, "join")  # see learning.optimizer.Learnable
    steps = config.net.sequence if isinstance(config.net, GRUConfig) else 1
    chosen = [default_shards(size, steps) for size in sizes.values()] if divides else []
    if algorithm.capabilities.replay:
        chosen = []  # an update takes several steps, each with an exchange: only on request
    shards = asked.shards or min(chosen, default=1)
    for key, size in sizes.items():
        if size % shards:
            raise ConfigError(
                f"algo.{key}={size} cannot be divided evenly into learner.shards={shards}; "
                f"the nearest value that fits: {nearest_multiples(size, shards)}"
            )
    n = asked.n or min(shards, idle_cores(config))
    if not divides and max(n, shards) > 1:
        setting = f"learner.n={n}" if n > 1 else f"learner.shards={shards}"
        raise ConfigError(
            f"{setting} with algo={config.algo.name}, whose updates cannot be divided; "
            f"{config.algo.single_learner_cure}"
        )
    if n > shards:
        small = ", ".join(f"algo.{key}={size}" for key, size in sizes.items())
        reason = f" (chosen for {small or 'one minibatch a round'})" if not asked.shards else ""
        raise ConfigError(
            f"learner.n={n} is more than learner.shards={shards}{reason}: each learner needs a part"
            f" of a minibatch; set learner.shards={n}, or learner.n={shards} at most"
        )
    _check_gpus(config.device, n)
    return replace(config, learner=replace(asked, n=n, shards=shards))


def default_shards(minibatch: int, steps: int = 1, rows: int = 512, most: int = 16) -> int:
    """The largest power of two up to `most` that divides a minibatch into shards of `rows` or more.

    Such shards cost a single learner under 5%, and have whole sequences of `steps` steps. The
    result depends on the minibatch alone. docs/scaling.md has the measurements.
    """
    shards = math.gcd(minibatch // steps, most)
    while shards > 1 and minibatch // shards < rows:
        shards //= 2
    return shards


def idle_cores(config: Config) -> int:
    """The cores that no sampler uses while the agent learns; at least 1."""
    cores, sampler = len(usable_cores()), config.sampler
    busy = 0 if Lag(sampler.max_lag).lock_step else config.n
    return max(1, (cores - busy) // config.learner.threads)


def _check_gpus(device: str, n: int) -> None:
    if not device.startswith("cuda") or n == 1:
        return
    import torch

    found = torch.cuda.device_count()
    if device != "cuda" or n > found:
        raise ConfigError(
            f"learner.n={n} with device={device!r}: each learner needs a separate GPU, "
            f"and this machine has {found}; use device=cuda and learner.n={max(1, found)} at "
            "most"
        )


def nearest_multiples(size: int, n: int) -> str:
    """The multiples of `n` next to `size`, in words."""
    below, above = size // n * n, -(-size // n) * n
    return f"{below} or {above}" if below else str(above)
