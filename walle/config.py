"""The configuration's schemas and checks: the only module that knows OmegaConf.

The YAML files under conf/ hold every default, the dataclasses here hold every type. `validate`
turns what Hydra composed into a `Config`, or says in one line what is wrong with it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from walle.errors import ConfigError, nearest


@dataclass
class EnvConfig:
    """conf/env/."""

    name: str
    id: str
    kwargs: dict[str, Any]
    backend: str
    frame_skip: int
    episode_limit: int | None
    action: str
    time_feature: bool


@dataclass
class SlowEnvConfig(EnvConfig):
    """conf/env/slow.yaml."""

    step_ms: float


@dataclass
class NetConfig:
    """conf/net/."""

    name: str
    policy_hidden: list[int]
    critic_hidden: list[int]
    activation: str
    log_std: float


@dataclass
class GRUConfig(NetConfig):
    """conf/net/gru.yaml."""

    hidden: int
    sequence: int


@dataclass
class SamplerConfig:
    """conf/sampler/. `n` and `lanes` are None only before `validate` has chosen them."""

    name: str
    n: int | None
    lanes: int | None
    collect: str
    max_lag: int | None
    slots: int | None
    pin: bool


@dataclass
class LearnerConfig:
    """conf/learner/."""

    n: int
    threads: int


@dataclass
class LoggerConfig:
    """conf/logger/."""

    name: str
    return_window: int
    progress: str
    print_every_s: float


@dataclass
class WandbConfig(LoggerConfig):
    """conf/logger/wandb.yaml."""

    project: str
    entity: str | None
    group: str | None
    mode: str


@dataclass
class EvalConfig:
    """The `eval` keys of conf/config.yaml."""

    every: int | None
    episodes: int


@dataclass
class CheckpointConfig:
    """The `checkpoint` keys of conf/config.yaml."""

    every: int | None


@dataclass
class Config:
    """A whole run. `algo` is the chosen algorithm's own settings."""

    algo: Any
    env: EnvConfig
    net: NetConfig
    sampler: SamplerConfig
    learner: LearnerConfig
    logger: LoggerConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig
    name: str | None
    seed: int
    total_steps: int
    batch_size: int
    device: str
    trace: bool

    @property
    def n(self) -> int:
        """The number of samplers."""
        assert self.sampler.n is not None
        return self.sampler.n

    @property
    def lanes(self) -> int:
        """The number of lanes of all samplers together."""
        assert self.sampler.lanes is not None
        return self.sampler.lanes

    @property
    def whole_episodes(self) -> bool:
        """Whether rounds are made of whole episodes."""
        return self.sampler.collect == "episodes"

    @property
    def rounds_vary(self) -> bool:
        """Whether rounds differ in their number of steps."""
        return self.whole_episodes or self.largest_batch is not None

    @property
    def largest_batch(self) -> int | None:
        """Where the algorithm changes the size of rounds: the largest there can be; else None."""
        most: int | None = getattr(self.algo, "largest_batch", None)
        return None if most is None else max(most, self.batch_size)


_GROUPS: dict[str, type] = {
    "env": EnvConfig,
    "net": NetConfig,
    "sampler": SamplerConfig,
    "learner": LearnerConfig,
    "logger": LoggerConfig,
    "eval": EvalConfig,
    "checkpoint": CheckpointConfig,
}
_VARIANTS: dict[tuple[str, str], type] = {
    ("env", "slow"): SlowEnvConfig,
    ("net", "gru"): GRUConfig,
    ("logger", "wandb"): WandbConfig,
}
_CHOICES = {
    "env.backend": ("auto", "mujoco", "gymnasium", "envpool"),
    "env.action": ("rescale", "clip", "raw"),
    "net.name": ("mlp", "mlp256", "gru"),
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


def config_directory() -> Path:
    """Where conf/ lies: beside the package in a checkout, inside it in a wheel."""
    return _shipped("conf")


def sweeps_directory() -> Path:
    """Where sweeps/ lies."""
    return _shipped("sweeps")


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def compose(overrides: Sequence[str] = (), config_name: str = "config") -> Config:
    """A validated configuration from overrides as on the command line; for notebooks and tests."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        try:
            composed = hydra_compose(config_name, overrides=list(overrides))
        except HydraException as error:
            raise ConfigError(explain(error)) from error
    return validate(composed)


def validate(composed: DictConfig) -> Config:
    """Checks types, names, ranges and their combinations; fills in what depends on the machine.

    Raises:
        ConfigError: the first thing that is wrong, with the cure.
    """
    from walle import algos

    _refuse_unknown("", composed, Config)
    _refuse_missing(composed)
    groups = {name: _typed(name, composed[name], _schema(name, composed)) for name in _GROUPS}
    groups["algo"] = _typed("algo", composed.algo, algos.load(composed.algo.name).settings_type)
    rest = {f.name: composed[f.name] for f in fields(Config) if f.name not in groups}
    top = _typed("", OmegaConf.create(rest), _TopLevel)
    config = Config(**groups, **vars(top))
    _check_values(config)
    _check_learners(config)
    config = _checked_sampler(config)
    _check_mode(config)
    _check_net(config)
    return config


@dataclass
class _TopLevel:
    name: str | None
    seed: int
    total_steps: int
    batch_size: int
    device: str
    trace: bool


def _schema(group: str, composed: DictConfig) -> type:
    name = composed[group].get("name", "")
    return _VARIANTS.get((group, name), _GROUPS[group])


def _refuse_unknown(prefix: str, node: Mapping[Any, Any], schema: type) -> None:
    known = {field.name for field in fields(schema)}
    for key in node:
        if key not in known:
            dot = f"{prefix}." if prefix else ""
            near = nearest(f"{dot}{key}", {dot + name for name in known})
            raise ConfigError(f"{dot}{key} is not a setting; {near}")


def _refuse_missing(composed: DictConfig) -> None:
    for field in fields(Config):
        if field.name not in composed:
            raise ConfigError(f"{field.name} has no value; give one: {field.name}=...")


def _typed(prefix: str, node: DictConfig, schema: type) -> Any:
    """The node as an instance of `schema`, each value converted to its type."""
    _refuse_unknown(prefix, node, schema)
    values = _plain(node)
    structured = OmegaConf.structured(schema)
    for key, value in values.items():
        full = f"{prefix}.{key}" if prefix else key
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{full}={value} must be a finite number")
        try:
            structured[key] = _whole(value)
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{full}={value!r}: {reason}") from None
    for key in sorted(OmegaConf.missing_keys(structured)):
        full = f"{prefix}.{key}" if prefix else key
        raise ConfigError(f"{full} has no value; give one: {full}=...")
    return OmegaConf.to_object(structured)


def _whole(value: Any) -> Any:
    """1e6 means 1000000 where an integer is wanted; a float field turns it back."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


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
    if asked.type not in ("cpu", "cuda"):
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
    from walle.rundir import usable_cores
    from walle.sampling import default_lanes, default_slots

    asked = config.sampler
    lanes = asked.lanes or default_lanes(config.batch_size)
    n = asked.n or (1 if asked.name == "serial" else min(len(usable_cores()), lanes))
    sampler = replace(asked, n=n, lanes=lanes, slots=asked.slots or default_slots(asked.max_lag))
    if asked.name == "serial" and n != 1:
        raise ConfigError(f"sampler.n={n} with sampler=serial, which is one; drop sampler.n")
    if asked.name == "serial" and asked.max_lag != 0:
        raise ConfigError(
            f"sampler.max_lag={asked.max_lag} with sampler=serial, which cannot overlap; "
            "use sampler.max_lag=0 or sampler=process"
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


def _check_mode(config: Config) -> None:
    from walle import algos

    algorithm = algos.load(config.algo.name)
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
    if mode(config) in algorithm.modes:
        return
    cures = " or ".join(_MODE_CURES[name] for name in algorithm.modes)
    raise ConfigError(
        f"algo={config.algo.name} cannot run with {_MODE_CURES[mode(config)]}: "
        f"{algorithm.why}; use {cures}"
    )


def _check_net(config: Config) -> None:
    from walle import algos

    if not isinstance(config.net, GRUConfig):
        return
    if not algos.load(config.algo.name).recurrent:
        others = [name for name in algos.REGISTRY if algos.load(name).recurrent]
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
    if size < sequence or size // sequence % n:
        raise ConfigError(
            f"algo.minibatch_size={size} holds {size // sequence} sequences of net.sequence="
            f"{sequence} steps, which cannot be dealt to learner.n={n}; "
            f"use a multiple of {sequence * n}"
        )


def to_dict(config: Config) -> dict[str, Any]:
    """Plain values, as run.json and checkpoints hold them."""
    return _plain(OmegaConf.structured(config))


def _plain(node: DictConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(node, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def config_hash(config: Config) -> str:
    """Twelve hexadecimal digits of everything that decides the result; `name` does not."""
    values = to_dict(config)
    del values["name"]
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def explain(error: HydraException) -> str:
    """One line for what Hydra found wrong with the command line, with the nearest real name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={name} does not exist; {nearest(name, error.options)}"
    if "'${env}-${algo}'" in lines[0]:  # see conf/config.yaml
        there = lines[0].partition("keys: ")[2].split(", ")
        group = next((name for name in ("env", "algo") if name not in there), "env")
        return f"{group} has no value; give one: {group}=..."
    if isinstance(error, OverrideParseException):
        return f"{lines[0]}: {lines[1]}" if len(lines) > 1 else lines[0]
    key = getattr(error.__cause__, "full_key", None)
    if key and key.startswith("env.kwargs."):
        return f"{key} is not there yet; add it: +{key}=..."
    if key and not key.startswith("hydra."):
        owners = _owners(key)
        if owners:
            return f"{key} is a setting of {' or '.join(owners)} alone; add that, or drop {key}"
        return f"{key} is not a setting; {nearest(key, _known_keys(key))}"
    return f"{lines[0]} {_first_line(error.__cause__)}".strip()


def _owners(key: str) -> list[str]:
    """The choices of a group, as in "net=gru", that have a setting of the group's others."""
    group, _, name = key.partition(".")
    files = sorted((config_directory() / group).glob("*.yaml")) if name else []
    return [f"{group}={file.stem}" for file in files if name in _own(OmegaConf.load(file), group)]


def _own(node: Any, group: str) -> Any:
    """A file's settings of its own group, where it may set keys of other groups too."""
    return OmegaConf.select(node, group) or node


def _known_keys(like: str) -> set[str]:
    """Dotted keys to suggest: those of the group `like` names, or the top level's."""
    group = like.partition(".")[0]
    top = {field.name for field in fields(Config)}
    if "." not in like or group not in top:
        return top
    top_level = OmegaConf.select(OmegaConf.load(config_directory() / "config.yaml"), group)
    nodes = [OmegaConf.load(file) for file in (config_directory() / group).glob("*.yaml")]
    own = [top_level or {}, *(_own(node, group) for node in nodes)]
    keys = {str(key) for node in own for key in node}
    return {f"{group}.{key}" for key in keys - {"defaults"}}


def _first_line(error: BaseException | None) -> str:
    return str(error).splitlines()[0] if error else ""
