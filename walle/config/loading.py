"""Turns a configuration that Hydra composed into a checked `Config` of a new or a resumed run."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from walle import algos
from walle.config.checks import check_allowed, checked
from walle.config.did_you_mean import (
    NO_DEFAULTS,
    cannot_have,
    explain,
    misplaced,
    refuse_lists,
    unresolvable,
)
from walle.config.files import algorithms, config_directory
from walle.config.schemas import GROUPS, LACKS, NETS, VARIANTS, Config, NetConfig, TopLevel
from walle.errors import ConfigError, check_bounds, nearest
from walle.system import identity
from walle.system.importing import check_import, with_module

# A run may use environment variables in `env.kwargs` and `env.wrappers`; its files never hold their
# values.
REFERENCE = "${oc.env:"
MAY_CHANGE = (  # in a resumed run
    *("callbacks", "checkpoint.every", "device", "env.on_error", "learner.n", "learner.restarts"),
    *("learner.threads", "logger.print_every_s", "logger.progress", "logger.video_every"),
    *("logger.video_steps", "name", "objective", "sampler.address", "sampler.balance"),
    *("sampler.mismatch", "sampler.n", "sampler.nodes", "sampler.per_node", "sampler.pin"),
    *("sampler.restarts", "sampler.timeout_s", "schedule_steps", "total_steps"),
)
_MAY_CHANGE_WHOLE = ("learner", "logger", "sampler")
_KEPT = {"sampler": ("lanes", "collect", "max_lag"), "logger": ("return_window", "info")}
_ABSENT = object()
_TYPES = {"Integer": "a whole number", "Float": "a number"}  # in words, by OmegaConf's names


def compose(overrides: Sequence[str] = (), config_name: str = "config") -> Config:
    """Composes and validates a configuration of a new run, for notebooks and tests.

    `overrides` are the words of a command line, such as `["env=hopper", "seed=3"]`; `config_name`
    is the file of settings or of a sweep.

    Raises:
        ConfigError: a word is wrong, or works only on the command line.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r} is one text; give a list: {overrides.split()}")
    refuse_lists(overrides)
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        try:
            composed = hydra_compose(config_name, overrides=list(overrides))
        except (HydraException, ValueError) as error:  # ValueError: algo=null
            raise ConfigError(explain(error) or str(error)) from error
    for word in overrides:
        key = word.lstrip("+").partition("=")[0]
        if key.startswith("hydra.") and key != "hydra.searchpath":
            raise ConfigError(
                f"{word} is for the command line: from Python walle.train(config, directory) gets "
                "the directory, and a sweep is a loop"
            )
    if composed.get("resume") is not None:
        raise ConfigError(
            f"resume={composed.resume}: a composed configuration starts a new run; to resume "
            f"that one type `walle run resume={composed.resume}`"
        )
    return validate(composed, os.getcwd())


def validate(composed: DictConfig, here: str = "") -> Config:
    """Checks names, types, ranges and combinations; fills in values that depend on the machine.

    Raises:
        ConfigError: a value is wrong; the message has the fix.
    """
    try:
        _refuse_unknown("", composed, Config)
        for field in fields(Config):
            if field.name not in composed:
                fault = f"{field.name} has no value; give one: {field.name}=..."
                raise ConfigError(fault if "resume" in composed else NO_DEFAULTS)
        for group in ("algo", *GROUPS):
            _refuse_value(group, composed[group])
        algo = _typed_algorithm(composed)
        if composed.sampler.get("name") == "serial":  # before the sampler refuses a max_lag
            check_allowed(algo.name, "serial")
        groups = {name: _typed(name, composed[name], _schema(name, composed)) for name in GROUPS}
        groups["algo"] = algo
        for key in ("kwargs", "wrappers"):
            resolved = getattr(groups["env"], key)
            setattr(groups["env"], key, _kept_references(composed.env[key], resolved))
        rest = {f.name: composed[f.name] for f in fields(Config) if f.name not in groups}
        top = _typed("", OmegaConf.create(rest), TopLevel)
        if top.start_from is not None:
            top.start_from = start = os.path.abspath(Path(here, top.start_from))
            if not (here or os.path.exists(re.sub("/(best|last)$", "", start))):  # for a sweep
                raise ConfigError(f"start_from: {start} does not exist; give a run's directory")
        return checked(Config(**groups, **vars(top)))
    except InterpolationResolutionError as error:
        raise ConfigError(explain(error)) from None


def stored_config(directory: Path) -> dict[str, Any]:
    """The configuration in the run.json of a run's directory."""
    path = directory / "run.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))["config"]
        if all(isinstance(config[group], Mapping) for group in ("algo", "env", "net")):
            return dict(config)
        fault = f"{path} is damaged: algo, env and net must be mappings"
    except FileNotFoundError:
        fault = "no run has been here (no run.json); give a run's directory"
        if (directory / "manifest.json").exists():
            fault = "this is a sweep: type its command again, or give one of its runs"
    except NotADirectoryError:
        fault = "this is a file; give the run's directory, and it resumes from its last checkpoint"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError) as error:
        fault = f"{path} is damaged: {error}"
    raise ConfigError(f"resume={directory}: {fault}")


def resumed_config(
    stored: Mapping[str, Any], composed: DictConfig, overrides: Sequence[str]
) -> Config:
    """The stored configuration with the changes in `overrides`.

    `composed` is what Hydra composes from `overrides` and the defaults.
    """
    settings = OmegaConf.create({**stored, "resume": None})
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    choices_first = sorted(parsed, key=lambda o: o.key_or_group not in (*GROUPS, "algo"))
    for override in choices_first:
        key = override.key_or_group
        if key == "resume" or key.startswith(("hydra.", "hydra/")):
            continue
        choice = override.value()  # a list of loggers is compared whole
        is_choice = key in (*GROUPS, "algo") and isinstance(choice, str | list)
        path = f"{key}.name" if is_choice and isinstance(choice, str) else key
        before, typed = OmegaConf.select(settings, path), OmegaConf.select(composed, path)
        both = settings, composed
        is_lost = all(OmegaConf.select(each, path, default=_ABSENT) is _ABSENT for each in both)
        is_same = typed == before or (
            key == "start_from" and typed and os.path.abspath(typed) == before
        )
        if is_same and not is_lost:
            continue
        if is_lost or key not in (_MAY_CHANGE_WHOLE if is_choice else MAY_CHANGE):
            value = override.get_value_string() if is_lost else typed
            has = f"contradicts the run, which has {key}={before}"
            raise ConfigError(
                f"{key}={value} {'is for new runs' if is_lost else has}; drop it, or start a "
                f"new run, perhaps with start_from={composed.resume} (a resumed run may change "
                f"{', '.join(MAY_CHANGE)})"
            )
        if is_choice:
            kept = {k: settings[key][k] for k in _KEPT.get(key, ()) if k in settings[key]}
            if key == "sampler" and "max_lag" in composed[key]:
                kept.setdefault("max_lag", 0)  # which sampler=serial has without saying so
            settings[key] = OmegaConf.merge(OmegaConf.to_container(composed[key]), kept)
        else:
            OmegaConf.update(settings, key, typed)
    for key in ("env.id", "env.wrappers", "algo.name", "net.name", "callbacks"):
        value, fix = OmegaConf.select(settings, key) or (), f"type {key} again beside resume="
        typed = any(word.lstrip("+").startswith(key) for word in overrides)  # the user asks for it
        for entry in () if typed else [value] if isinstance(value, str) else value:
            path = entry if isinstance(entry, str) else str(entry.get("name"))
            check_import(key, with_module(path), Path(composed.resume), fix, beside=True)
    return validate(settings, os.sep)  # the run that it started from may be gone


def stored_groups(stored: Mapping[str, Any]) -> tuple[Any, NetConfig]:
    """The groups `algo` and `net` of a configuration that a checkpoint holds."""
    composed = OmegaConf.create({name: stored[name] for name in ("algo", "net")})
    algo = _typed_algorithm(composed)
    return algo, _typed("net", composed.net, _schema("net", composed))


def _refuse_value(group: str, node: Any) -> None:
    """Refuses a group that is no mapping: eval=null, checkpoint=FILE, or `algo: td3` in a file."""
    if isinstance(node, DictConfig):
        return
    shown = "null" if node is None else node
    fix = f"type {group}.every=null for one at the end only, or {group}.every=STEPS"
    more = {
        "eval": f"{fix}; eval.episodes=0 leaves out evaluations",
        "checkpoint": f"{fix}; to resume a run type resume=DIR",
    }
    fix = more.get(group, f"in a file choose one under defaults: `- override /{group}: {shown}`")
    raise ConfigError(f"{group}={shown}: {group} holds settings; {fix}")


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
    if group == "logger" and "entity" in composed.logger:
        name = "wandb"  # among others, as in logger=[wandb,tensorboard]
    return VARIANTS.get((group, name), GROUPS[group])


def _typed_algorithm(composed: DictConfig) -> Any:
    if OmegaConf.is_missing(composed.algo, "name") or composed.algo.get("name") is None:
        raise ConfigError("algo.name has no value; give one: algo.name=module:Class")
    return _typed("algo", composed.algo, algos.load(str(composed.algo.name)).capabilities.settings)


def _refuse_unknown(prefix: str, node: Mapping[Any, Any], schema: type) -> None:
    known = {field.name for field in fields(schema)}
    dot = f"{prefix}." if prefix else ""
    for key in node:
        if key in known:
            continue
        if not prefix and key in algorithms():
            raise ConfigError(misplaced(str(key)))
        if prefix == "sampler" and key in LACKS.get(str(node.get("name")), {}):
            if getattr(schema, key, None) == node[key]:
                continue  # what this sampler has anyway, as a recipe with sampler.n=1 sets it
            raise ConfigError(cannot_have(str(node["name"]), key, node[key]))
        near = nearest(f"{dot}{key}", {dot + name for name in known})
        raise ConfigError(f"{dot}{key} is not a setting; {near}")


def _typed(prefix: str, node: DictConfig, schema: type) -> Any:
    """The node as an instance of `schema`, each value converted to its type."""
    _refuse_unknown(prefix, node, schema)
    known = {field.name for field in fields(schema)}
    values: Any = OmegaConf.to_container(node, resolve=True)
    values = {str(key): value for key, value in values.items() if key in known}
    given = tuple(map(str, node))
    return deepcopy(_converted(prefix, pickle.dumps(values), given, schema))


@lru_cache(maxsize=256)
def _converted(prefix: str, values: bytes, given: Sequence[str], schema: type) -> Any:
    """An instance of `schema` from pickled values; cached, as a sweep's jobs share most groups."""
    structured, types = OmegaConf.structured(schema), get_type_hints(schema)
    dot = f"{prefix}." if prefix else ""
    for key, value in pickle.loads(values).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{dot}{key}={value} must be a finite number")
        try:
            # 1e6 becomes 1000000 for fields of integers; a field of floats converts it back.
            several = types[key] == list[int] and isinstance(value, list)
            structured[key] = [*map(_whole, value)] if several else _whole(value)
        except OmegaConfBaseException as error:
            reason = _reason(error, f"{dot}{key}", value)
            raise ConfigError(f"{dot}{key}={value!r}{reason}") from None
    for key in sorted(OmegaConf.missing_keys(structured)):
        plus = "" if key in given else "+"
        raise ConfigError(f"{dot}{key} has no value; give one: {plus}{dot}{key}=...")
    settings = OmegaConf.to_object(structured)
    check_bounds(settings, prefix)
    return settings


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _reason(error: OmegaConfBaseException, key: str, value: Any) -> str:
    """Why a value has the wrong type; the text follows the key and the value."""
    line = str(error).splitlines()[0]
    if "ListConfig" in line:
        return f" must be a list, as in {key}=[{value}]"
    if "to Dict[" in line:
        return " must be a mapping: {key: value}"
    if "is not Optional" in line:
        return " is no value for it; leave it out, or give one"
    if "is not a valid bool" in line:
        return " must be true or false"
    wanted = line.rpartition(" could not be converted to ")[2]
    return f" must be {_TYPES[wanted]}" if wanted in _TYPES else f": {line}"


def _kept_references(node: Any, arguments: Any) -> Any:
    """The environment's arguments, with `${oc.env:NAME}` kept for each reference to a variable."""

    def kept(written: Any, resolved: Any) -> Any:
        if isinstance(written, dict) and isinstance(resolved, dict):
            return {key: kept(written[key], value) for key, value in resolved.items()}
        if isinstance(written, list) and isinstance(resolved, list):
            return [kept(*pair) for pair in zip(written, resolved, strict=True)]
        return written if isinstance(written, str) and REFERENCE in written else resolved

    return kept(OmegaConf.to_container(node, resolve=False), arguments)


def with_variables(arguments: Any) -> Any:
    """The arguments of an environment with the values of the variables that they refer to."""
    if isinstance(arguments, dict):
        return {key: with_variables(value) for key, value in arguments.items()}
    if isinstance(arguments, list):
        return [with_variables(value) for value in arguments]
    if not isinstance(arguments, str) or REFERENCE not in arguments:
        return arguments  # may hold text that looks like a reference to a setting
    try:
        return OmegaConf.create({"value": arguments}).value
    except OmegaConfBaseException as error:
        raise ConfigError(f"an argument of env: {arguments}: {unresolvable(error)}") from None


def config_hash(config: Config) -> str:
    """A hash of all settings except `name` and `resume`; sweeps hash their jobs' settings alike."""
    return identity.config_hash(identity.flatten(asdict(config), ignore=("name", "resume")))
