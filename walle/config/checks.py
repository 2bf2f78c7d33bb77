"""The checks of a configuration; each error message has a reason and a fix."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from walle import algos
from walle.config.schemas import CNNConfig, Config, GRUConfig, ProcessSampler, RaySampler
from walle.errors import ConfigError
from walle.system.importing import imported
from walle.system.machine import core_quota, usable_physical_cores
from walle.types import InfoColumn

CALLBACK_METHODS = (
    *("on_round", "on_evaluation", "on_checkpoint", "on_end"),
    *("state_dict", "load_state_dict"),
)
_COLUMNS = (  # names in a run's files; some lack the `_mean` at their end
    *("env_steps", "wall_s", "sampler", "lane", "policy_version", "return", "length", "end"),
    *("return_round", "lag", "stochastic_return", "stochastic_length", "eval"),
    *("process", "section"),  # texts in other files
)
_MODE_FIXES = {
    "serial": "sampler=serial",
    "lock_step": "sampler.max_lag=0",
    "overlapped": "sampler.max_lag=1",
    "free": "sampler.max_lag=null",
}


def checked(config: Config) -> Config:
    """Checks the configuration; returns it with the values that depend on the machine filled in."""
    _check_machine(config)
    for name in config.callbacks:
        if config.callbacks.count(name) > 1:
            raise ConfigError(f"callbacks has {name} twice; name each callback once")
        imported("callbacks", name, CALLBACK_METHODS, "derive it from walle.Callback")
    columns = [*_COLUMNS, *(InfoColumn.of(entry).column for entry in config.logger.info)]
    for entry in config.logger.info:
        same = columns.count(InfoColumn.of(entry).column) > 1
        if not entry or set(entry) & set(',"\r\n') or same:
            raise ConfigError(
                f"logger.info: {entry!r} has a comma or a quote, or is the name of another column: "
                "put the number into info under another name"
            )
    if config.objective == "best" and not config.eval.episodes:
        raise ConfigError(
            "objective=best with eval.episodes=0: there is no evaluation; use objective=return"
        )
    _check_updates(config)
    starts, ends = config.algo.random_steps, config.schedule_steps
    if getattr(config.algo, "schedule", None) == "linear" and ends is not None and starts >= ends:
        raise ConfigError(
            f"algo.learning_starts={starts} with schedule_steps={ends}: the learning rate would be "
            "0 from the first update on; use a smaller algo.learning_starts, more schedule_steps, "
            "or algo.schedule=constant"
        )
    config = _checked_learners(_checked_sampler(config))
    _check_mode(config)
    _check_net(config)
    return config


def _check_updates(config: Config) -> None:
    """Refuses an off-policy run that would end before its first gradient step."""
    from walle.algos.off_policy.base import OffPolicySettings, due_blocks  # imports torch

    algo = config.algo
    if not isinstance(algo, OffPolicySettings):
        return
    per_step, starts = algo.updates_per_step, algo.learning_starts
    block = algo.updates_per_block
    if due_blocks(config.total_steps, per_step, starts, block):
        return
    delay = f" and algo.policy_delay={block}" if block > 1 else ""
    raise ConfigError(
        f"algo.updates_per_step={per_step} with total_steps={config.total_steps}, "
        f"algo.learning_starts={starts}{delay}: the run would act and never learn; "
        f"use more total_steps{' or updates_per_step' * (config.total_steps > starts)}, or a "
        "smaller algo.learning_starts"
        f"{' or algo.policy_delay' if delay else ''}"
    )


def _check_machine(config: Config) -> None:
    for logger in config.logger.names:
        if find_spec(logger) is None:
            raise ConfigError(
                f"logger={logger} needs a package that is missing; install walle[{logger}], or use "
                "logger=files"
            )
    if config.logger.options.get("mode") == "online" and not _has_wandb_login():
        raise ConfigError(
            "logger=wandb: there is no valid W&B login here; type `wandb login`, set WANDB_API_KEY "
            "or use logger.mode=offline"
        )
    steps = config.logger.video_steps
    if steps is not None and config.logger.video_every is None:
        raise ConfigError(
            f"logger.video_steps={steps} needs logger.video_every, the steps between films"
        )
    threads, cores = config.learner.threads, os.cpu_count() or 1
    cores = min(cores, core_quota() or cores)
    if threads > cores:
        raise ConfigError(
            f"learner.threads={threads} is more than this machine's cores: use at most {cores}"
        )
    import torch

    device = config.device
    unknown = ConfigError(f"device={device!r} is unknown; use cpu, cuda or cuda:N")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise unknown from None
    if chosen.type not in ("cpu", "cuda") or (chosen.type == "cpu" and chosen.index):
        raise unknown
    count = torch.cuda.device_count()
    if chosen.type == "cuda" and (chosen.index or 0) >= count:
        raise ConfigError(f"device={device!r}: torch sees {count} CUDA devices; use device=cpu")


def _has_wandb_login() -> bool:
    import wandb

    try:
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.Error:  # the value that is set cannot be a key
        return False


def _checked_sampler(config: Config) -> Config:
    """Fills in the open values of `sampler`, and checks them against `batch_size`."""
    sampler, lag, batch_size = config.sampler, config.sampler.lag, config.batch_size
    if lag.most is not None and lag.most < 0:
        raise ConfigError(
            f"sampler.max_lag={lag.most} must be 0 (lock-step), 1 or more (overlapped) or "
            "null (free-running)"
        )
    # Many lanes share the cost of Python in a step; long rollouts need fewer value estimates.
    # docs/collection.md has the measurements.
    lanes = sampler.lanes or default_parts(batch_size, most=256, least=32)
    n = sampler.n
    if isinstance(sampler, ProcessSampler):
        slots = sampler.slots or lag.slots
        if not lag.free_running and slots != lag.slots:
            reason = "no more are ever in use" if slots > lag.slots else "they cannot hold that lag"
            raise ConfigError(
                f"sampler.slots={slots} with sampler.max_lag={lag.most}: {reason}; use "
                f"sampler.slots={lag.slots}, or drop it"
            )
        n = n or min(usable_physical_cores(), lanes)
        sampler = replace(sampler, n=n, slots=slots)
    if isinstance(sampler, RaySampler):
        _check_ray(config, sampler)
    if n and n > lanes:
        reason = f" (chosen: a power of two dividing batch_size={batch_size} into 32 steps or more)"
        divisors = [d for d in range(n, batch_size + 1) if batch_size % d == 0]
        even = [d for d in divisors if d % n == 0]
        raise ConfigError(
            f"sampler.n={n} is more than sampler.lanes={lanes}{'' if sampler.lanes else reason}: "
            f"every sampler needs a lane; set sampler.lanes to {(even or divisors or [n])[0]} or "
            f"sampler.n to {lanes} at most"
        )
    if batch_size % lanes:
        raise ConfigError(
            f"batch_size={batch_size} is not a multiple of sampler.lanes={lanes}; "
            f"the nearest values that fit: {_nearest_multiples(batch_size, lanes)}"
        )
    return replace(config, sampler=replace(sampler, lanes=lanes))


def _check_ray(config: Config, sampler: RaySampler) -> None:
    if find_spec("ray") is None:
        raise ConfigError("sampler=ray needs a package that is missing: pip install 'walle[ray]'")
    if sampler.address and sampler.address.startswith("ray://"):
        raise ConfigError(
            f"sampler.address={sampler.address} is that of Ray Client, through which rollouts "
            "would travel twice: run this on a node of the cluster with sampler.address=auto"
        )
    if sampler.lag.free_running:
        raise ConfigError(
            "sampler.max_lag=null with sampler=ray, whose nodes deliver round by round; use "
            "sampler.max_lag=0, 1 or more, or sampler=process"
        )
    if config.trace:
        raise ConfigError(
            "trace=true with sampler=ray: the clocks of two machines cannot be compared; use "
            "sampler=process, or leave trace out"
        )


def default_parts(size: int, most: int, least: float) -> int:
    """The largest power of two up to `most` that divides `size` into parts of `least` or more."""
    parts = math.gcd(size, most)
    while parts > 1 and size // parts < least:
        parts //= 2
    return parts


def _checked_learners(config: Config) -> Config:
    """Fills in the open values of `learner`, and checks them against the minibatches."""
    learner = config.learner
    sizes = {name: getattr(config.algo, name) for name in config.algo.shared_minibatches}
    algorithm = algos.load(config.algo.name)
    divides = hasattr(algorithm, "join")  # see learning.sharing.learners.Learnable
    shards = learner.shards or 1
    # By default a replay buffer's minibatches are whole: an update takes several steps, each with
    # an exchange. Shards of 512 rows cost a single learner under 5% (docs/scaling.md).
    if not learner.shards and divides and not algorithm.capabilities.replay:
        steps = config.net.sequence if isinstance(config.net, GRUConfig) else 1
        chosen = [default_parts(n // steps, most=16, least=512 / steps) for n in sizes.values()]
        shards = min(chosen, default=1)
    for key, size in sizes.items():
        if size % shards:
            raise ConfigError(
                f"algo.{key}={size} cannot be divided evenly into learner.shards={shards}; "
                f"the nearest values that fit: {_nearest_multiples(size, shards)}"
            )
    busy = 0 if config.sampler.lag.lock_step else config.n  # samplers, while the agent learns
    idle = max(1, (usable_physical_cores() - busy) // learner.threads)
    n = learner.n or min(shards, idle)
    if not divides and max(n, shards) > 1:
        setting = f"learner.n={n}" if n > 1 else f"learner.shards={shards}"
        raise ConfigError(
            f"{setting} with algo={config.algo.name}, whose updates cannot be divided; "
            "use learner.n=1, and learner.threads for more cores"
        )
    if n > shards:
        small = ", ".join(f"algo.{key}={size}" for key, size in sizes.items())
        reason = f" (chosen for {small or 'one minibatch a round'})" if not learner.shards else ""
        odd = [f"algo.{k}={_nearest_multiples(size, n)}" for k, size in sizes.items() if size % n]
        fix = " and ".join([f"set learner.shards={n}", *odd])
        raise ConfigError(
            f"learner.n={n} is more than learner.shards={shards}{reason}: each learner needs a part"
            f" of a minibatch; {fix}, or learner.n={shards} at most"
        )
    if config.device.startswith("cuda") and n > 1:
        import torch

        gpus = torch.cuda.device_count()
        if config.device != "cuda" or n > gpus:
            raise ConfigError(
                f"learner.n={n} with device={config.device!r}: each learner needs a separate GPU, "
                f"and this machine has {gpus}; use device=cuda and learner.n={max(1, gpus)} at "
                "most"
            )
    return replace(config, learner=replace(learner, n=n, shards=shards))


def _nearest_multiples(size: int, n: int) -> str:
    below, above = size // n * n, -(-size // n) * n
    return f"{below} or {above}" if below else str(above)


def _check_mode(config: Config) -> None:
    name, mode = config.algo.name, config.sampler.lag.mode
    if config.sampler.name == "serial":
        mode = "serial"
    if config.rounds_vary and mode == "free":
        setting = "sampler.collect=episodes" if config.whole_episodes else f"algo.name={name}"
        raise ConfigError(
            f"{setting} changes the length of rollouts and cannot run with sampler.max_lag=null,"
            " in which samplers would change at different times; use sampler.max_lag=0, 1 or more"
        )
    if config.whole_episodes and config.env.backend == "envpool":
        raise ConfigError(
            "sampler.collect=episodes resets all lanes with new seeds before every round, which"
            " EnvPool cannot do; use env.backend=auto"
        )
    if config.env.on_error == "reset" and config.env.backend == "envpool":
        raise ConfigError(
            "env.on_error=reset with env.backend=envpool, which cannot step one lane alone; "
            "use env.backend=auto, or env.on_error=stop"
        )
    for key in ("kwargs", "wrappers", "reset_options"):
        for name in _not_texts(getattr(config.env, key)):
            raise ConfigError(
                f"env.{key} has the key {name!r} of type {type(name).__name__}, and the files of a "
                "run hold texts only: let the environment take texts as keys"
            )
    if config.env.wrappers and config.env.backend == "envpool":
        raise ConfigError(
            "env.wrappers with env.backend=envpool, which steps many environments at once: use "
            "env.backend=auto, or EnvPool's own arguments (+env.kwargs.KEY=...)"
        )
    if config.whole_episodes and algos.load(name).capabilities.replay:
        raise ConfigError(
            f"sampler.collect=episodes with algo={name}, whose buffer holds steps and not episodes;"
            " use sampler.collect=fixed"
        )
    check_allowed(name, mode)
    bound = config.algo.staleness_bound
    if bound is not None and mode != "free":
        raise ConfigError(
            f"algo.max_staleness={bound} with sampler.max_lag={config.sampler.max_lag}, under which"
            " all rollouts have the same age, so that none or all would be dropped; use "
            "sampler.max_lag=null, or leave algo.max_staleness out"
        )


def check_allowed(algorithm: str, mode: str) -> None:
    """Refuses a mode of sampling in which the algorithm cannot learn."""
    capabilities = algos.load(algorithm).capabilities
    if mode not in capabilities.modes:
        fixes = " or ".join(_MODE_FIXES[name] for name in capabilities.modes)
        beside = "sampler=process with " if mode == "serial" else ""
        raise ConfigError(
            f"algo={algorithm} cannot run with {_MODE_FIXES[mode]}: {capabilities.reason}; "
            f"use {beside}{fixes}"
        )


def _check_net(config: Config) -> None:
    name, net = config.algo.name, config.net
    capabilities = algos.load(name).capabilities
    is_stochastic = getattr(algos.load(name), "kind", "stochastic") == "stochastic"
    if net.scale != "constant" and (capabilities.replay or not is_stochastic):
        raise ConfigError(
            f"net.scale={net.scale} with algo={name}, which has another kind of policy; use "
            "net.scale=constant"
        )
    if isinstance(net, CNNConfig) and not capabilities.images:
        others = [other for other in algos.REGISTRY if algos.load(other).capabilities.images]
        raise ConfigError(
            f"algo={name} cannot run with net=cnn, because it does not learn from images; use "
            f"algo={' or '.join(others)}"
        )
    if (config.env.policy_keys or config.env.critic_keys) and not capabilities.asymmetric:
        others = [other for other in algos.REGISTRY if algos.load(other).capabilities.asymmetric]
        raise ConfigError(
            f"env.policy_keys and env.critic_keys with algo={name}, which has no critic beside its "
            f"policy; use algo={' or '.join(others)}, or null for both"
        )
    if not isinstance(net, GRUConfig):
        return
    if not capabilities.recurrent:
        others = [other for other in algos.REGISTRY if algos.load(other).capabilities.recurrent]
        raise ConfigError(
            f"algo={name} cannot run with net={net.name}: it learns from single steps, but a memory"
            f" needs sequences of steps; use net=mlp, or algo={' or '.join(others)}"
        )
    if config.whole_episodes:
        raise ConfigError(
            "sampler.collect=episodes with net=gru, which learns from sequences of one length; "
            "use sampler.collect=fixed"
        )
    sequence, steps = net.sequence, config.batch_size // config.lanes
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


def _not_texts(value: Any) -> Iterator[Any]:
    """The keys in nested mappings and lists that are no texts."""
    if isinstance(value, Mapping):
        yield from (key for key in value if not isinstance(key, str))
    if isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _not_texts(part)
