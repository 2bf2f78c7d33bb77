"""What a configuration must fulfil before anything starts, each with its reason and its cure."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from walle.config.schemas import Config, GRUConfig, SamplerConfig, WandbConfig
from walle.errors import ConfigError, nearest

if TYPE_CHECKING:
    from walle.algos.base import Capabilities

_CHOICES = {
    "env.backend": ("auto", "mujoco", "gymnasium", "envpool"),
    "env.action": ("rescale", "clip", "raw"),
    "net.name": ("mlp", "mlp256", "gru"),
    "net.scale": ("constant", "state"),
    "sampler.name": ("process", "serial"),
    "sampler.collect": ("fixed", "episodes"),
    "logger.name": ("files", "tensorboard", "wandb"),
    "logger.progress": ("auto", "bar", "lines", "quiet"),
}
_MODE_CURES = {
    "serial": "sampler=serial",
    "lock_step": "sampler.max_lag=0",
    "overlapped": "sampler.max_lag=1",
    "free": "sampler.max_lag=null",
}
_WANDB_MODES = ("online", "offline", "disabled")
_POSITIVE = (
    "env.frame_skip",
    "env.episode_limit",
    "env.step_ms",
    "net.hidden",
    "net.sequence",
    "sampler.n",
    "sampler.lanes",
    "sampler.slots",
    "learner.n",
    "learner.threads",
    "logger.return_window",
    "logger.print_every_s",
    "eval.every",
    "eval.episodes",
    "checkpoint.every",
    "total_steps",
    "batch_size",
)


def checked(config: Config) -> Config:
    """The configuration with what depends on the machine filled in.

    Raises:
        ConfigError: the first value or combination of values that is wrong.
    """
    _check_values(config)
    _check_steps(config)
    _check_learners(config)
    config = _checked_sampler(config)
    _check_mode(config)
    _check_net(config)
    return config


def _check_values(config: Config) -> None:
    for path, choices in _CHOICES.items():
        value = _get(config, path)
        if value not in choices:
            raise ConfigError(f"{path}={value!r} is unknown; {nearest(str(value), choices)}")
    for path in _POSITIVE:
        value = _get(config, path)
        if value is not None and value <= 0:
            raise ConfigError(f"{path}={value} must be positive")
    if config.seed < 0:
        raise ConfigError(f"seed={config.seed} must not be negative")
    for path in ("net.policy_hidden", "net.critic_hidden"):
        if any(width <= 0 for width in _get(config, path)):
            raise ConfigError(f"{path}={_get(config, path)} must hold positive widths")
    if isinstance(config.logger, WandbConfig) and config.logger.mode not in _WANDB_MODES:
        mode = config.logger.mode
        raise ConfigError(f"logger.mode={mode!r} is unknown; {nearest(mode, _WANDB_MODES)}")
    logger = config.logger.name
    if logger != "files" and find_spec(logger) is None:
        raise ConfigError(
            f"logger={logger} needs a package that is missing; install walle[{logger}], or use "
            "logger=files"
        )
    threads, cores = config.learner.threads, os.cpu_count() or 1
    if threads > cores:
        raise ConfigError(f"learner.threads={threads} is more than this machine's {cores} cores")
    _check_device(config.device)


def _check_steps(config: Config) -> None:
    starts = getattr(config.algo, "learning_starts", 0)
    if starts >= config.total_steps:
        raise ConfigError(
            f"algo.learning_starts={starts} with total_steps={config.total_steps}: the run would "
            "act at random and never learn; use a smaller algo.learning_starts, or more total_steps"
        )


def _get(config: Config, path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


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


def _check_learners(config: Config) -> None:
    """Every learner gets the same share of a minibatch."""
    n = config.learner.n
    for key in ("minibatch_size", "value_minibatch_size"):
        size = getattr(config.algo, key, n)
        if size % n:
            below, above = size // n * n, -(-size // n) * n
            fits = f"{below} or {above}" if below else str(above)
            raise ConfigError(
                f"algo.{key}={size} cannot be dealt evenly to learner.n={n}; "
                f"the nearest that fits: {fits}"
            )
    if config.device.startswith("cuda") and n > 1:
        _check_devices(config.device, n)


def _check_devices(device: str, n: int) -> None:
    import torch

    have = torch.cuda.device_count()
    if device != "cuda" or n > have:
        raise ConfigError(
            f"learner.n={n} with device={device!r}: each learner needs a GPU of its own, and this "
            f"machine has {have}; use device=cuda and learner.n={max(1, have)} at most"
        )


def _checked_sampler(config: Config) -> Config:
    """Chooses what is left open in `sampler`, and checks it against `batch_size`."""
    from walle.machine import usable_cores
    from walle.transport.rounds import default_lanes, default_slots

    asked = config.sampler
    lanes = asked.lanes or default_lanes(config.batch_size)
    n = asked.n or (1 if asked.name == "serial" else min(len(usable_cores()), lanes))
    sampler = replace(asked, n=n, lanes=lanes, slots=asked.slots or default_slots(asked.max_lag))
    if asked.name == "serial" and n != 1:
        raise ConfigError(f"sampler.n={n} with sampler=serial, which is one; drop sampler.n")
    if asked.name == "serial" and asked.max_lag != 0:
        lag = "null" if asked.max_lag is None else asked.max_lag
        lock_step = "sampler.max_lag=0 or " if "lock_step" in _traits(config).modes else ""
        raise ConfigError(
            f"sampler.max_lag={lag} with sampler=serial, which cannot overlap; "
            f"use {lock_step}sampler=process"
        )
    if asked.name == "serial" and asked.slots is not None:
        raise ConfigError(
            f"sampler.slots={asked.slots} with sampler=serial, which has no queue; drop it"
        )
    _check_lanes(config.batch_size, n, lanes, chosen=asked.lanes is None)
    _check_lag(sampler)
    return replace(config, sampler=sampler)


def _check_lanes(batch_size: int, n: int, lanes: int, *, chosen: bool) -> None:
    if n > lanes:
        why = f" (chosen: a power of two dividing batch_size={batch_size} into 32 steps or more)"
        raise ConfigError(
            f"sampler.n={n} is more than sampler.lanes={lanes}{why if chosen else ''}: every "
            f"sampler needs a lane; set sampler.lanes to {_nearest_divisor(batch_size, n)} or "
            f"sampler.n to {lanes} at most"
        )
    if batch_size % lanes:
        below, above = batch_size // lanes * lanes, -(-batch_size // lanes) * lanes
        fits = f"{below} or {above}" if below else str(above)
        raise ConfigError(
            f"batch_size={batch_size} is not a multiple of sampler.lanes={lanes}; "
            f"the nearest that fits: {fits}"
        )


def _nearest_divisor(batch_size: int, n: int) -> int:
    """The smallest multiple of n that divides the batch; else the next divisor from n on."""
    divisors = [d for d in range(n, batch_size + 1) if batch_size % d == 0]
    even = [d for d in divisors if d % n == 0]
    return (even or divisors or [n])[0]


def _check_lag(sampler: SamplerConfig) -> None:
    if sampler.max_lag is None:
        return
    if sampler.max_lag < 0:
        raise ConfigError(
            f"sampler.max_lag={sampler.max_lag} must be 0 (lock-step), 1 or more (overlapped) or "
            "null (free-running)"
        )
    assert sampler.slots is not None
    if sampler.slots > sampler.max_lag + 1:
        raise ConfigError(
            f"sampler.slots={sampler.slots} with sampler.max_lag={sampler.max_lag}: no more than "
            f"{sampler.max_lag + 1} are ever in use; drop it, or allow more lag"
        )
    if sampler.slots < sampler.max_lag + 1:
        raise ConfigError(
            f"sampler.slots={sampler.slots} cannot hold a lag of {sampler.max_lag} rounds; "
            f"use at least {sampler.max_lag + 1}, or null"
        )


def mode(config: Config) -> str:
    """How collecting and learning take turns: one of `walle.algos.base.ALL_MODES`."""
    if config.sampler.name == "serial":
        return "serial"
    return {0: "lock_step", None: "free"}.get(config.sampler.max_lag, "overlapped")


def _traits(config: Config) -> Capabilities:
    from walle import algos

    return algos.load(config.algo.name).capabilities


def _check_mode(config: Config) -> None:
    capabilities = _traits(config)
    if config.rounds_vary and mode(config) == "free":
        setting = "sampler.collect=episodes" if config.whole_episodes else "algo.adapt"
        raise ConfigError(
            f"{setting} changes the length of rollouts and cannot run with sampler.max_lag=null,"
            " where samplers would take the change up at different times; use sampler.max_lag=0"
            " or 1"
        )
    if config.whole_episodes and config.env.backend == "envpool":
        raise ConfigError(
            "sampler.collect=episodes begins every round from seeds of its own, which EnvPool does"
            " not take; use env.backend=auto"
        )
    if config.whole_episodes and hasattr(config.algo, "buffer_size"):
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


def _check_net(config: Config) -> None:
    if config.net.scale == "state" and hasattr(config.algo, "buffer_size"):
        raise ConfigError(
            f"net.scale=state with algo={config.algo.name}, which has a policy of its own kind; "
            "use net.scale=constant"
        )
    from walle import algos

    if not isinstance(config.net, GRUConfig):
        return
    if not _traits(config).recurrent:
        others = [name for name in algos.REGISTRY if algos.load(name).capabilities.recurrent]
        raise ConfigError(
            f"algo={config.algo.name} cannot run with net={config.net.name}: it learns from single"
            f" steps, and a memory from sequences of them; use net=mlp, or"
            f" algo={' or '.join(others)}"
        )
    _check_sequences(config, config.net.sequence)


def _check_sequences(config: Config, sequence: int) -> None:
    """A row of a minibatch is a sequence: of equal lengths, and one at least for each learner."""
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
            f"sampler.lanes); those that do: {fits}"
        )
    size, n = config.algo.minibatch_size, config.learner.n
    if size % (sequence * n):
        raise ConfigError(
            f"algo.minibatch_size={size} is no whole number of sequences of "
            f"net.sequence={sequence} steps for each of learner.n={n}; "
            f"use a multiple of {sequence * n}"
        )
