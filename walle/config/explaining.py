"""Turns the errors of Hydra and of YAML files into one line with the cure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from io import TextIOWrapper
from traceback import walk_tb
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from walle.config.choices import algorithms, misplaced
from walle.config.places import config_directory, sweeps_directory
from walle.config.schemas import REMOVED, Config
from walle.errors import nearest

_LONGEST_LIST = 200  # characters
_SEVERAL = "Ambiguous value for argument "

# Names of other libraries' settings (Stable-Baselines3, RLlib, CleanRL), and the keys here.
ELSEWHERE = {
    "batch_size": "algo.minibatch_size, or batch_size for the steps of a round",
    "clip_coef": "algo.clip",
    "clip_param": "algo.clip",
    "clip_range": "algo.clip",
    "clip_range_vf": "algo.value_clip",
    "ent_coef": "algo.entropy_weight",
    "env_id": "env.id, with env=gym",
    "eval_freq": "eval.every",
    "gradient_steps": "algo.updates_per_step",
    "lambda_": "algo.gae_lambda",
    "learning_rate": "algo.learning_rate",
    "log_std_init": "net.log_std",
    "lr": "algo.learning_rate",
    "n_epochs": "algo.epochs",
    "n_envs": "sampler.lanes",
    "n_eval_episodes": "eval.episodes",
    "n_steps": "batch_size, which is n_steps times sampler.lanes",
    "n_timesteps": "total_steps",
    "net_arch": "net.policy_hidden and net.critic_hidden",
    "normalize_advantage": "algo.normalize_advantages",
    "num_envs": "sampler.lanes",
    "num_minibatches": "algo.minibatch_size",
    "num_sgd_iter": "algo.epochs",
    "num_steps": "batch_size, which is num_steps times sampler.lanes",
    "num_workers": "sampler.n",
    "total_timesteps": "total_steps",
    "train_freq": "algo.updates_per_step",
    "update_epochs": "algo.epochs",
    "verbose": "logger.progress",
    "vf_coef": "algo.value_weight",
}


def explain(error: HydraException) -> str:
    """A one-line message for an error that Hydra raised, with the nearest real name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, MissingConfigException):
        return _explain_missing(str(error.missing_cfg_file), error.options)
    if lines[0].startswith(_SEVERAL):
        given = lines[0].removeprefix(_SEVERAL).strip("'")
        return f"{given} has several values; for a sweep over them add -m"
    if lines[0].startswith("Could not override 'experiment'"):
        return "experiment is no part of every run; add it: +experiment=..."
    if found := re.match(r"In '(experiment/\S+)': Could not override", lines[0]):
        first = f"conf/{found[1]}.yaml must begin with the line `# @package _global_`"
        if "@experiment." in lines[0]:
            return f"{first}, before any other comment"
    if "'${env}-${algo}'" in lines[0]:  # see conf/config.yaml
        there = lines[0].partition("keys: ")[2].split(", ")
        group = next((name for name in ("env", "algo") if name not in there), "env")
        return f"{group} has no value; give one: {group}=..."
    if isinstance(error, OverrideParseException):
        return f"{lines[0]}: {lines[1]}" if len(lines) > 1 else lines[0]
    key = getattr(error.__cause__, "full_key", None)
    if key and key.startswith("env.kwargs."):
        return f"{key} does not exist yet; add it: +{key}=..."
    if key in REMOVED:
        return f"{key} is no longer a setting: {REMOVED[key].instead}"
    if key in algorithms():
        return misplaced(key)
    if key and not key.startswith("hydra."):
        owners = _owners(key)
        if owners:
            group = key.partition(".")[0]
            own = f" (with {group}=own: +{key}=...)" if group in ("algo", "net") else ""
            return (
                f"{key} is a setting of {' or '.join(owners)} alone; add that, or drop {key}{own}"
            )
        return f"{key} is not a setting; {_suggestion(key)}"
    parent = getattr(error.__cause__, "parent_node", None)
    if key and isinstance(parent, DictConfig):
        dot = key.rpartition(".")[0]
        near = nearest(key, {f"{dot}.{name!s}" for name in parent})
        return f"{key} is not a setting; {near}"
    return f"{lines[0]} {_first_line(error.__cause__)}".strip()


def _explain_missing(missing: str, options: Sequence[str] | None) -> str:
    """Explains a file of conf/ or sweeps/ that does not exist, such as env/Ant-v5 or my_sweep."""
    group, _, name = missing.rpartition("/")
    if not group:
        files = [*sweeps_directory().glob("*.yaml"), config_directory() / "config.yaml"]
        near = nearest(name, [file.stem for file in files])
        return f"-cn {name}: no sweep has that name; {near} (`walle sweeps` tells what each does)"
    if not options:
        return f"{group}={name}: there is no conf/{group}/{name}.yaml here; write it"
    choices = [option for option in options if not option.endswith("_schema")]  # no one's choice
    near = (_environment(name) if group == "env" else None) or nearest(name, choices)
    if group == "experiment" and near.startswith("did"):
        near += f" There are: {', '.join(sorted(choices))}"
    more = f", or install the package that has it: hydra-{name}-launcher?"
    return f"{group}={name} does not exist; {near}{more if group == 'hydra/launcher' else ''}"


def _environment(name: str) -> str | None:
    """A phrase for the id of a Gymnasium environment that was typed as a choice of `env`."""
    files = sorted((config_directory() / "env").glob("*.yaml"))
    base = name.lower().partition("-v")[0]
    for file in files:
        known = OmegaConf.select(OmegaConf.load(file), "id")
        if known and base == str(known).lower().partition("-v")[0]:
            return f"did you mean env={file.stem}?"
    from gymnasium import registry

    return f"did you mean env=gym env.id={name}?" if name in registry else None


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


def _suggestion(key: str) -> str:
    """A suggestion for a key that does not exist."""
    name = key.rpartition(".")[2].lower()
    if name in ELSEWHERE:
        return f"did you mean {ELSEWHERE[name]}?"
    near = nearest(key, _known_keys(key))
    owner = nearest(key, algorithms())  # `pppo` of pppo.clip, a setting of one algorithm
    if not near.startswith("did") and owner.startswith("did"):
        return owner
    return near if len(near) < _LONGEST_LIST else "--help shows the settings"


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
