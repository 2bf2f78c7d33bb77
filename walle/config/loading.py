"""Converts a configuration that Hydra composed to a checked `Config`."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from walle import algos
from walle.config.checks import check_allowed, checked
from walle.config.did_you_mean import cannot_have, explain, misplaced
from walle.config.files import algorithms, config_directory
from walle.config.schemas import GROUPS, LACKS, NETS, REMOVED, VARIANTS, Config, NetConfig, TopLevel
from walle.errors import ConfigError, check_bounds, nearest
from walle.system import identity

# A run uses the values of environment variables in `env.kwargs`; its files never hold them.
REFERENCE = "${oc.env:"
_TYPES = {"Integer": "a whole number", "Float": "a number"}  # by OmegaConf's names


def compose(overrides: Sequence[str] = (), config_name: str = "config") -> Config:
    """Composes and validates a configuration of a new run, for notebooks and tests.

    `overrides` are the words of a command line, such as `["env=hopper", "seed=3"]`; `config_name`
    is the file of settings or of a sweep.

    Raises:
        ConfigError: a word is wrong, or only the command knows what to do with it.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r} is one text; give a list: {overrides.split()}")
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        try:
            composed = hydra_compose(config_name, overrides=list(overrides))
        except HydraException as error:
            raise ConfigError(explain(error)) from error
    for word in overrides:
        key = word.lstrip("+").partition("=")[0]
        if key.startswith("hydra.") and key != "hydra.searchpath":
            raise ConfigError(
                f"{word} is for the command line: from Python walle.train(config, directory) gets "
                "the directory, and a sweep is a loop"
            )
    if composed.resume is not None:
        raise ConfigError(
            f"resume={composed.resume}: a composed configuration starts a new run; to resume "
            f"that one type `walle run resume={composed.resume}`"
        )
    return validate(composed)


def validate(composed: DictConfig) -> Config:
    """Checks names, types, ranges and combinations; fills in values that depend on the machine.

    Raises:
        ConfigError: a value is wrong; the message has the fix.
    """
    try:
        return _validated(composed)
    except InterpolationResolutionError as error:
        raise ConfigError(f"{error.full_key}: {_unresolvable(error)}") from None


def _validated(composed: DictConfig) -> Config:
    _refuse_unknown("", composed, Config)
    for field in fields(Config):
        if field.name not in composed:
            raise ConfigError(f"{field.name} has no value; give one: {field.name}=...")
    algo = _typed("algo", composed.algo, _algorithm_schema(composed))
    if composed.sampler.get("name") == "serial":  # before it refuses the algorithm's own max_lag
        check_allowed(algo.name, "serial")
    groups = {name: _typed(name, composed[name], _schema(name, composed)) for name in GROUPS}
    groups["algo"] = algo
    groups["env"].kwargs = _kept_references(composed.env.kwargs, groups["env"].kwargs)
    rest = {f.name: composed[f.name] for f in fields(Config) if f.name not in groups}
    top = _typed("", OmegaConf.create(rest), TopLevel)
    return checked(Config(**groups, **vars(top)))


def stored_groups(stored: Mapping[str, Any]) -> tuple[Any, NetConfig]:
    """The groups `algo` and `net` of a configuration that a checkpoint holds.

    Raises:
        ConfigError: a value is wrong.
    """
    stored = without_removed(stored)
    composed = OmegaConf.create({name: stored[name] for name in ("algo", "net")})
    algo = _typed("algo", composed.algo, _algorithm_schema(composed))
    return algo, _typed("net", composed.net, _schema("net", composed))


def without_removed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that an earlier version stored, without those that are no longer there.

    Raises:
        ConfigError: one had a value that this version cannot have.
    """
    current = {k: dict(v) if isinstance(v, Mapping) else v for k, v in stored.items()}
    for key, removed in REMOVED.items():
        group, _, name = key.rpartition(".")
        settings = current.get(group, {}) if group else current
        if group and ":" in str(settings.get("name")):
            continue  # a class of the user's own may have a setting of this name
        if name in settings and (value := settings.pop(name)) not in removed.usual:
            raise ConfigError(
                f"{key}={value}, which the run has, is no longer a setting: {removed.instead}; to "
                "use the run as it is, install the version of walle that its run.json names"
            )
    sampler = current.get("sampler", {})
    for name in LACKS.get(str(sampler.get("name")), {}):  # where they had no effect
        sampler.pop(name, None)
    return current


def _schema(group: str, composed: DictConfig) -> type:
    if OmegaConf.is_missing(composed[group], "name"):
        raise ConfigError(f"{group}.name has no value; give one: {group}.name=module:Class")
    name = str(composed[group].get("name", ""))
    if group == "net" and ":" in name:
        schema = getattr(algos.load_net(name), "settings", NetConfig)
        if isinstance(schema, type) and issubclass(schema, NetConfig):
            return schema
        raise ConfigError(
            f"net.name={name!r}: its settings must be a dataclass derived from "
            "walle.config.schemas.NetConfig"
        )
    if group == "net" and name not in NETS:
        near = nearest(name, NETS)
        raise ConfigError(
            f"net.name={name!r} is unknown; {near} (a class of your own: module:Class)"
        )
    return VARIANTS.get((group, name), GROUPS[group])


def _algorithm_schema(composed: DictConfig) -> type:
    if OmegaConf.is_missing(composed.algo, "name"):
        raise ConfigError("algo.name has no value; give one: algo.name=module:Class")
    return algos.load(composed.algo.name).capabilities.settings


def _refuse_unknown(prefix: str, node: Mapping[Any, Any], schema: type) -> None:
    known = {field.name for field in fields(schema)}
    for key in node:
        if key not in known:
            if not prefix and key in algorithms():
                raise ConfigError(misplaced(str(key)))
            dot = f"{prefix}." if prefix else ""
            if prefix == "sampler" and key in LACKS.get(str(node["name"]), {}):
                if getattr(schema, key, None) == node[key]:
                    continue  # what this sampler has anyway, as a recipe with sampler.n=1 sets it
                raise ConfigError(cannot_have(str(node["name"]), key, node[key]))
            if removed := REMOVED.get(f"{dot}{key}"):
                raise ConfigError(f"{dot}{key} is no longer a setting: {removed.instead}")
            near = nearest(f"{dot}{key}", {dot + name for name in known})
            raise ConfigError(f"{dot}{key} is not a setting; {near}")


def _typed(prefix: str, node: DictConfig, schema: type) -> Any:
    """The node as an instance of `schema`, each value converted to its type."""
    _refuse_unknown(prefix, node, schema)
    known = {field.name for field in fields(schema)}
    values: Any = OmegaConf.to_container(node, resolve=True)
    values = {str(key): value for key, value in values.items() if key in known}
    given = tuple(str(key) for key in node if key in node)
    return deepcopy(_converted(prefix, pickle.dumps(values), given, schema))


@lru_cache(maxsize=256)
def _converted(prefix: str, values: bytes, given: Sequence[str], schema: type) -> Any:
    """An instance of `schema` from pickled values; kept, as jobs of a sweep share most groups."""
    structured = OmegaConf.structured(schema)
    for key, value in pickle.loads(values).items():
        full = f"{prefix}.{key}" if prefix else key
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{full}={value} must be a finite number")
        try:
            # 1e6 becomes 1000000 for fields of integers; a field of floats converts it back.
            whole = isinstance(value, float) and value.is_integer()
            structured[key] = int(value) if whole else value
        except OmegaConfBaseException as error:
            raise ConfigError(f"{full}={value!r}{_reason(error, full, value)}") from None
    for key in sorted(OmegaConf.missing_keys(structured)):
        full = f"{prefix}.{key}" if prefix else key
        plus = "" if key in given else "+"
        raise ConfigError(f"{full} has no value; give one: {plus}{full}=...")
    settings = OmegaConf.to_object(structured)
    check_bounds(settings, prefix)
    return settings


def _reason(error: OmegaConfBaseException, key: str, value: Any) -> str:
    """Says why a value has the wrong type, after the key and the value."""
    line = str(error).splitlines()[0]
    if key in ("net.policy_hidden", "net.critic_hidden") and re.search(r"\*|mean", str(value)):
        return " must hold numbers: formulas belong to examples/wall_e_2018 now (net=wall_e_2018)"
    if "ListConfig" in line:
        return f" must be a list, as in {key}=[{value}]"
    wanted = line.rpartition(" could not be converted to ")[2]
    return f" must be {_TYPES[wanted]}" if wanted in _TYPES else f": {line}"


def as_typed(overrides: Any) -> list[str]:
    """The overrides that Hydra keeps, with their references; reading an entry would resolve it."""
    typed: Any = OmegaConf.to_container(overrides, resolve=False)
    return list(typed)


def _kept_references(node: DictConfig, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The environment's arguments, with `${oc.env:NAME}` where they refer to a variable."""

    def kept(written: Any, resolved: Any) -> Any:
        if isinstance(written, dict) and isinstance(resolved, dict):
            return {key: kept(written[key], value) for key, value in resolved.items()}
        if isinstance(written, list) and isinstance(resolved, list):
            return [kept(*pair) for pair in zip(written, resolved, strict=True)]
        return written if isinstance(written, str) and REFERENCE in written else resolved

    arguments: dict[str, Any] = kept(OmegaConf.to_container(node, resolve=False), kwargs)
    return arguments


def with_variables(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The environment's arguments with the values of the variables that they refer to.

    Raises:
        ConfigError: a variable is not set, or a text mixes it with a reference to a setting.
    """
    # Others may hold what looks like a reference to a setting.
    referring = {key: value for key, value in kwargs.items() if REFERENCE in str(value)}
    try:
        node = OmegaConf.create({"kwargs": referring})
        values: Any = OmegaConf.to_container(node, resolve=True)
        return {**kwargs, **values["kwargs"]}
    except OmegaConfBaseException as error:
        raise ConfigError(f"env.kwargs={kwargs}: {_unresolvable(error)}") from None


def _unresolvable(error: OmegaConfBaseException) -> str:
    """Why a reference has no value, and the fix, in one line."""
    reason = str(error).splitlines()[0]
    fix = "set the variable" if "Environment variable" in reason else "correct the reference"
    return f"{reason}; {fix}"


def to_dict(config: Config) -> dict[str, Any]:
    """Converts a configuration to plain values, for run.json and checkpoints."""
    return asdict(config)


def config_hash(config: Config) -> str:
    """A hash of all settings except `name` and `resume`, as sweeps hash those of their jobs."""
    return identity.config_hash(identity.flatten(to_dict(config), ignore=("name", "resume")))
