"""The checks of a configuration; each error message has a reason and a cure."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from walle import algos
from walle.config.cluster import check_ray
from walle.config.learners import checked_learners, nearest_multiples
from walle.config.schemas import CNNConfig, Config, GRUConfig, RaySamplerConfig
from walle.errors import ConfigError
from walle.system.importing import imported
from walle.system.machine import usable_cores
from walle.types import Lag

if TYPE_CHECKING:
    from walle.algos.base import Capabilities

CALLBACK_METHODS = (
    "on_round",
    "on_evaluation",
    "on_checkpoint",
    "on_end",
    "state_dict",
    "load_state_dict",
)
_MODE_CURES = {
    "serial": "sampler=serial",
    "lock_step": "sampler.max_lag=0",
    "overlapped": "sampler.max_lag=1",
    "free": "sampler.max_lag=null",
}


def checked(config: Config) -> Config:
    """Checks the configuration; returns it with the values that depend on the machine filled in.

    Raises:
        ConfigError: a value or a combination of values is wrong; only the first is reported.
    """
    _check_machine(config)
    _check_callbacks(config.callbacks)
    _check_steps(config)
    config = checked_learners(_checked_sampler(config))
    _check_mode(config)
    _check_staleness(config)
    _check_net(config)
    return config


def _check_machine(config: Config) -> None:
    logger = config.logger.name
    if logger != "files" and find_spec(logger) is None:
        raise ConfigError(
            f"logger={logger} needs a package that is missing; install walle[{logger}], or use "
            "logger=files"
        )
    steps = config.logger.video_steps
    if steps is not None and config.logger.video_every is None:
        raise ConfigError(
            f"logger.video_steps={steps} needs logger.video_every, the steps between films"
        )
    threads, cores = config.learner.threads, os.cpu_count() or 1
    if threads > cores:
        raise ConfigError(f"learner.threads={threads} is more than this machine's {cores} cores")
    _check_device(config.device)


def _check_callbacks(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"callbacks has {name} twice; name each callback once")
        imported("callbacks", name, CALLBACK_METHODS, "derive it from walle.Callback")


def _check_steps(config: Config) -> None:
    starts = config.algo.random_steps
    if config.objective == "best" and config.eval.every is None:
        raise ConfigError("objective=best with eval.every=null: none is best; use objective=return")
    if starts >= config.total_steps:
        raise ConfigError(
            f"algo.learning_starts={starts} with total_steps={config.total_steps}: the run would "
            "act at random and never learn; use a smaller algo.learning_starts, or more total_steps"
        )


def _check_device(device: str) -> None:
    import torch

    unknown = ConfigError(f"device={device!r} is unknown; use cpu, cuda or cuda:N")
    try:
        asked = torch.device(device)
    except RuntimeError:
        raise unknown from None
    if asked.type not in ("cpu", "cuda") or (asked.type == "cpu" and asked.index):
        raise unknown
    found = torch.cuda.device_count()
    if asked.type == "cuda" and (asked.index or 0) >= found:
        raise ConfigError(f"device={device!r}: torch sees {found} CUDA devices; use device=cpu")


def _checked_sampler(config: Config) -> Config:
    """Fills in the open values of `sampler`, and checks them against `batch_size`."""
    asked, lag = config.sampler, Lag(config.sampler.max_lag)
    lanes = asked.lanes or default_lanes(config.batch_size)
    if isinstance(asked, RaySamplerConfig):
        check_ray(config, asked)
        _check_lanes(config.batch_size, 0, lanes, chosen=asked.lanes is None)
        _check_slots(lag, asked.slots or lag.slots)
        return replace(config, sampler=replace(asked, lanes=lanes, slots=asked.slots or lag.slots))
    n = asked.n or (1 if asked.name == "serial" else min(len(usable_cores()), lanes))
    sampler = replace(asked, n=n, lanes=lanes, slots=asked.slots or lag.slots)
    if asked.name == "serial" and n != 1:
        raise ConfigError(
            f"sampler.n={n} with sampler=serial, which has one sampler; drop sampler.n"
        )
    if asked.name == "serial" and not lag.lock_step:
        behind = "null" if lag.free_running else lag.most
        lock_step = "sampler.max_lag=0 or " if "lock_step" in _capabilities(config).modes else ""
        raise ConfigError(
            f"sampler.max_lag={behind} with sampler=serial, which cannot overlap; "
            f"use {lock_step}sampler=process"
        )
    if asked.name == "serial" and asked.slots not in (None, lag.slots):  # a resumed run has them
        raise ConfigError(
            f"sampler.slots={asked.slots} with sampler=serial, which has no queue; drop it"
        )
    _check_lanes(config.batch_size, n, lanes, chosen=asked.lanes is None)
    _check_slots(lag, sampler.slots or lag.slots)
    return replace(config, sampler=sampler)


def default_lanes(batch_size: int, most: int = 256, steps: int = 32) -> int:
    """The largest power of two up to `most` that divides the batch into `steps` or more steps.

    Many lanes share the cost of Python in a step; long rollouts need fewer value estimates. The
    result depends on the batch alone, not on N. docs/collection.md has the measurements.
    """
    lanes = math.gcd(batch_size, most)
    while lanes > 1 and batch_size // lanes < steps:
        lanes //= 2
    return lanes


def _check_lanes(batch_size: int, n: int, lanes: int, *, chosen: bool) -> None:
    if n > lanes:
        reason = f" (chosen: a power of two dividing batch_size={batch_size} into 32 steps or more)"
        raise ConfigError(
            f"sampler.n={n} is more than sampler.lanes={lanes}{reason if chosen else ''}: every "
            f"sampler needs a lane; set sampler.lanes to {_nearest_divisor(batch_size, n)} or "
            f"sampler.n to {lanes} at most"
        )
    if batch_size % lanes:
        raise ConfigError(
            f"batch_size={batch_size} is not a multiple of sampler.lanes={lanes}; "
            f"the nearest value that fits: {nearest_multiples(batch_size, lanes)}"
        )


def _nearest_divisor(batch_size: int, n: int) -> int:
    """The smallest divisor of the batch that is a multiple of n; else the smallest from n on."""
    divisors = [d for d in range(n, batch_size + 1) if batch_size % d == 0]
    even = [d for d in divisors if d % n == 0]
    return (even or divisors or [n])[0]


def _check_slots(lag: Lag, slots: int) -> None:
    if lag.most is None:
        return
    if lag.most < 0:
        raise ConfigError(
            f"sampler.max_lag={lag.most} must be 0 (lock-step), 1 or more (overlapped) or "
            "null (free-running)"
        )
    if slots > lag.slots:
        raise ConfigError(
            f"sampler.slots={slots} with sampler.max_lag={lag.most}: no more than "
            f"{lag.slots} are ever in use; drop it, or allow more lag"
        )
    if slots < lag.slots:
        raise ConfigError(
            f"sampler.slots={slots} cannot hold a lag of {lag.most} rounds; "
            f"use at least {lag.slots}, or null"
        )


def mode(config: Config) -> str:
    """The mode of the run: a member of `walle.algos.base.ALL_MODES`."""
    if config.sampler.name == "serial":
        return "serial"
    return Lag(config.sampler.max_lag).mode


def _capabilities(config: Config) -> Capabilities:
    return algos.load(config.algo.name).capabilities


def _check_mode(config: Config) -> None:
    capabilities = _capabilities(config)
    if config.rounds_vary and mode(config) == "free":
        setting = "sampler.collect=episodes" if config.whole_episodes else "algo.adapt"
        raise ConfigError(
            f"{setting} changes the length of rollouts and cannot run with sampler.max_lag=null,"
            " in which samplers would change at different times; use sampler.max_lag=0 or 1"
        )
    if config.whole_episodes and config.env.backend == "envpool":
        raise ConfigError(
            "sampler.collect=episodes resets all lanes with new seeds before every round, which"
            " EnvPool cannot do; use env.backend=auto"
        )
    if config.whole_episodes and _capabilities(config).replay:
        raise ConfigError(
            f"sampler.collect=episodes with algo={config.algo.name}, whose buffer holds steps and"
            " not episodes; use sampler.collect=fixed"
        )
    if mode(config) in capabilities.modes:
        return
    cures = " or ".join(_MODE_CURES[name] for name in capabilities.modes)
    raise ConfigError(
        f"algo={config.algo.name} cannot run with {_MODE_CURES[mode(config)]}: "
        f"{capabilities.reason}; use {cures}"
    )


def _check_staleness(config: Config) -> None:
    """Refuses a bound on the age of rollouts where all rollouts have the same age."""
    bound = config.algo.staleness_bound
    if bound is None or mode(config) == "free":
        return
    lag = 0 if mode(config) == "serial" else config.sampler.max_lag
    raise ConfigError(
        f"algo.max_staleness={bound} with sampler.max_lag={lag}, under which all rollouts have the "
        "same age, so that none or all would be dropped; use sampler.max_lag=null, or leave "
        "algo.max_staleness out"
    )


def _check_net(config: Config) -> None:
    if _capabilities(config).replay and config.net.scale != "constant":
        raise ConfigError(
            f"net.scale={config.net.scale} with algo={config.algo.name}, which has another kind of"
            " policy; use net.scale=constant"
        )
    if isinstance(config.net, CNNConfig) and not _capabilities(config).images:
        others = [name for name in algos.REGISTRY if algos.load(name).capabilities.images]
        raise ConfigError(
            f"algo={config.algo.name} cannot run with net=cnn, because it does not learn from "
            f"images; use algo={' or '.join(others)}"
        )
    if not isinstance(config.net, GRUConfig):
        return
    if not _capabilities(config).recurrent:
        others = [name for name in algos.REGISTRY if algos.load(name).capabilities.recurrent]
        raise ConfigError(
            f"algo={config.algo.name} cannot run with net={config.net.name}: it learns from single"
            f" steps, but a memory needs sequences of steps; use net=mlp, or"
            f" algo={' or '.join(others)}"
        )
    _check_sequences(config, config.net.sequence)


def _check_sequences(config: Config, sequence: int) -> None:
    """Checks that sequences divide rollouts, and that each shard has whole sequences."""
    if config.whole_episodes:
        raise ConfigError(
            "sampler.collect=episodes with net=gru, which learns from sequences of one length; "
            "use sampler.collect=fixed"
        )
    steps = config.batch_size // config.lanes
    if steps % sequence:
        fits = ", ".join(str(d) for d in range(1, steps + 1) if steps % d == 0)
        raise ConfigError(
            f"net.sequence={sequence} does not divide rollouts of {steps} steps (batch_size / "
            f"sampler.lanes); use one of: {fits}"
        )
    size, shards = config.algo.minibatch_size, config.shards
    if size % (sequence * shards):
        raise ConfigError(
            f"algo.minibatch_size={size} is no whole number of sequences of "
            f"net.sequence={sequence} steps for each of learner.shards={shards}; "
            f"use a multiple of {sequence * shards}"
        )
