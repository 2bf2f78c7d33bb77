"""Converts a configuration that Hydra composed to a checked `Config`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from io import TextIOWrapper
from pathlib import Path
from traceback import walk_tb
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError

from walle import algos
from walle.config.checks import checked
from walle.config.schemas import GROUPS, VARIANTS, Config, EnvConfig, NetConfig, TopLevel
from walle.config.variables import kept_references, unresolvable
from walle.errors import ConfigError, check_bounds, nearest


def config_directory() -> Path:
    """The directory conf/: beside the package in a checkout, inside the package in a wheel."""
    return _shipped("conf")


def sweeps_directory() -> Path:
    """The directory sweeps/, which lies beside conf/."""
    return _shipped("sweeps")


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def compose(overrides: Sequence[str] = (), config_name: str = "config") -> Config:
    """Composes and validates a configuration from overrides; for notebooks and tests."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        try:
            composed = hydra_compose(config_name, overrides=list(overrides))
        except HydraException as error:
            raise ConfigError(explain(error)) from error
    return validate(composed)


def validate(composed: DictConfig) -> Config:
    """Checks names, types, ranges and combinations; fills in values that depend on the machine.

    Raises:
        ConfigError: a value is wrong; the message has the cure.
    """
    try:
        return _validated(composed)
    except InterpolationResolutionError as error:
        raise ConfigError(f"{error.full_key}: {unresolvable(error)}") from None


def _validated(composed: DictConfig) -> Config:
    _refuse_unknown("", composed, Config)
    _refuse_missing(composed)
    groups = {name: _typed(name, composed[name], _schema(name, composed)) for name in GROUPS}
    groups["algo"] = _typed(
        "algo", composed.algo, algos.load(composed.algo.name).capabilities.settings
    )
    groups["env"].kwargs = _unresolved(composed.env.kwargs, groups["env"].kwargs)
    rest = {f.name: composed[f.name] for f in fields(Config) if f.name not in groups}
    top = _typed("", OmegaConf.create(rest), TopLevel)
    return checked(Config(**groups, **vars(top)))


def stored_groups(stored: Mapping[str, Any]) -> tuple[Any, EnvConfig, NetConfig]:
    """The groups `algo`, `env` and `net` of a configuration that a checkpoint holds.

    They are all that acting needs; the others depend on the machine that trained.

    Raises:
        ConfigError: a value is wrong.
    """
    composed = OmegaConf.create({name: stored[name] for name in ("algo", "env", "net")})
    algo = _typed("algo", composed.algo, algos.load(composed.algo.name).capabilities.settings)
    try:
        env: EnvConfig = _typed("env", composed.env, _schema("env", composed))
    except InterpolationResolutionError as error:
        raise ConfigError(f"{error.full_key}: {unresolvable(error)}") from None
    env.kwargs = _unresolved(composed.env.kwargs, env.kwargs)
    return algo, env, _typed("net", composed.net, _schema("net", composed))


def _schema(group: str, composed: DictConfig) -> type:
    name = composed[group].get("name", "")
    return VARIANTS.get((group, name), GROUPS[group])


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
    settings = OmegaConf.to_object(structured)
    check_bounds(settings, prefix)
    return settings


def _unresolved(node: DictConfig, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The environment's arguments, with `${oc.env:NAME}` where they refer to a variable."""
    kept: dict[str, Any] = kept_references(OmegaConf.to_container(node, resolve=False), kwargs)
    return kept


def _whole(value: Any) -> Any:
    """Converts 1e6 to 1000000 for fields of integers; a field of floats converts it back."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def to_dict(config: Config) -> dict[str, Any]:
    """Converts a configuration to plain values, for run.json and checkpoints."""
    container = OmegaConf.to_container(OmegaConf.structured(config), resolve=False)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _plain(node: DictConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(node, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def config_hash(config: Config) -> str:
    """A hash of twelve hexadecimal digits of all settings except `name` and `resume`."""
    values = to_dict(config)
    del values["name"], values["resume"]
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def explain(error: HydraException) -> str:
    """A one-line message for an error that Hydra raised, with the nearest real name."""
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
        return f"{key} does not exist yet; add it: +{key}=..."
    if key and not key.startswith("hydra."):
        owners = _owners(key)
        if owners:
            return f"{key} is a setting of {' or '.join(owners)} alone; add that, or drop {key}"
        return f"{key} is not a setting; {nearest(key, _known_keys(key))}"
    return f"{lines[0]} {_first_line(error.__cause__)}".strip()


def explain_damage(error: UnicodeDecodeError | YAMLError) -> str | None:
    """A one-line message for a YAML file that cannot be read; None if the error is not about one.

    Python's decoder does not know the file's name. It is found among the variables of the functions
    in which the error was raised.
    """
    if isinstance(error, YAMLError):
        return " ".join(str(error).split())
    variables = [v for frame, _ in walk_tb(error.__traceback__) for v in frame.f_locals.values()]
    names = [str(v.name) for v in variables if isinstance(v, TextIOWrapper)]
    if not names or not names[-1].endswith((".yaml", ".yml")):
        return None
    return f"{names[-1]} is not UTF-8 ({error}); save it in that encoding"


def _owners(key: str) -> list[str]:
    """The choices of a group, such as "net=gru", that have the setting `key`."""
    group, _, name = key.partition(".")
    files = sorted((config_directory() / group).glob("*.yaml")) if name else []
    return [f"{group}={file.stem}" for file in files if name in _own(OmegaConf.load(file), group)]


def _own(node: Any, group: str) -> Any:
    """The settings of `group` in a file, which may set keys of other groups too."""
    return OmegaConf.select(node, group) or node


def _known_keys(like: str) -> set[str]:
    """The dotted keys to suggest for `like`: the keys of its group, or of the top level."""
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
