"""Turns the errors of Hydra and of YAML files into one line with the fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from io import TextIOWrapper
from pathlib import Path
from traceback import walk_tb
from typing import Any

import hydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigTypeError,
    GrammarParseError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)
from yaml import YAMLError

from walle.config.files import algorithms, config_directory, sweep_questions
from walle.config.schemas import GROUPS, LACKS, Config
from walle.errors import ConfigError, nearest
from walle.system.importing import with_colon, with_module

_SEVERAL = "Ambiguous value for argument "
_PRESENT = re.compile(  # of a setting, an option of a group, and an option given as in `+algo=ppo`
    r"(?:Could not append to config\. An item is already at '|Multiple values for )?([\w./]+?)"
    r"(?:'\.$|\. To override | appears more than once)"
)

NO_DEFAULTS = "walle's settings are absent: begin the file of -cn with `defaults: [config, _self_]`"

# walle's keys, with the names that Stable-Baselines3, RLlib and CleanRL have for them.
ELSEWHERE = {
    "algo.clip": "clip_coef clip_param clip_range",
    "algo.entropy_weight": "ent_coef",
    "algo.epochs": "n_epochs num_sgd_iter update_epochs",
    "algo.gae_lambda": "lambda_",
    "algo.gamma": "discount discount_factor",
    "algo.learning_rate": "learning_rate lr",
    "algo.minibatch_size": "num_minibatches",
    "algo.minibatch_size, or batch_size for the steps of a round": "batch_size",
    "algo.normalize_advantages": "normalize_advantage",
    "algo.updates_per_step": "gradient_steps train_freq",
    "algo.value_clip": "clip_range_vf",
    "algo.value_weight": "vf_coef",
    "batch_size, which is the steps of each environment times sampler.lanes": "n_steps num_steps",
    "env.id, with env=gym": "env_id",
    "eval.episodes": "n_eval_episodes",
    "eval.every": "eval_freq",
    "logger.progress": "verbose",
    "net.log_std": "log_std_init",
    "net.policy_hidden and net.critic_hidden": "net_arch",
    "sampler.lanes": "n_envs num_envs",
    "sampler.n": "num_workers",
    "total_steps": "n_timesteps total_timesteps",
}


def explain(error: Exception) -> str | None:
    """A one-line message for a user's mistake, with the nearest real name; None for other errors.

    Mistakes are errors raised by Hydra, references without a value, and YAML files that cannot be
    read. A UnicodeDecodeError lacks the file's name, which is taken from the local variables in its
    traceback.
    """
    if isinstance(error, YAMLError):
        return " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        frames = [frame.f_locals.values() for frame, _ in walk_tb(error.__traceback__)]
        names = [str(v.name) for frame in frames for v in frame if isinstance(v, TextIOWrapper)]
        if names and names[-1].endswith((".yaml", ".yml")):
            return f"{names[-1]} is not UTF-8 ({error}); save it in that encoding"
    if isinstance(error, ValueError) and str(error).startswith("Config group override"):
        locals_ = (frame.f_locals.values() for frame, _ in walk_tb(error.__traceback__))
        *_, given = (str(v.input_line) for vs in locals_ for v in vs if isinstance(v, Override))
        group, _, value = given.partition("=")
        options = sorted(path.stem for path in (config_directory() / group).glob("*.yaml"))
        fix = f"give {group} one of its options: {', '.join(options)}"
        number = f"; for a number type {group}.n={value}" if group in ("sampler", "learner") else ""
        return f"{given}: {fix}{number}"
    if isinstance(error, ValueError) and str(error) == "badly formed help string":
        return f"Hydra {hydra.__version__} does not start on Python 3.14; use Python 3.11 to 3.13"
    if str(error).startswith(("Only one of --run, --multirun", "Expecting one subcommand")):
        return str(error)
    if isinstance(error, (InterpolationResolutionError, GrammarParseError)):
        return f"{error.full_key}: {unresolvable(error)}".removeprefix("None: ")
    if isinstance(error, AssertionError) and "type for root: NoneType" in str(error):  # of Hydra
        return "hydra.sweeper.params has no values here; type KEY=VALUE, or for a sweep -m KEY=A,B"
    if not isinstance(error, HydraException):
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, MissingConfigException):
        primary = "primary config" in str(error)
        return _explain_missing(str(error.missing_cfg_file), error.options, primary=primary)
    if lines[0].startswith(_SEVERAL):
        given = lines[0].removeprefix(_SEVERAL).strip("'")
        fix = f"a text needs quotes: {_quoted(given)}"
        if not given.startswith("hydra."):
            fix = "for a sweep over them add -m"
        return f"{given} has several values; {fix}"
    if match := _PRESENT.match(lines[0]):
        return f"{match[1]} has a value already; drop the +: {match[1]}=..."
    if lines[0].startswith("Could not override 'experiment'"):
        return "experiment is no part of every run; add it: +experiment=..."
    if match := re.match(r"In '(experiment/\S+)': Could not override", lines[0]):
        first = f"conf/{match[1]}.yaml must begin with the line `# @package _global_`"
        return f"{first}, before any other comment" if "@experiment." in lines[0] else first
    if "'${env}-${algo}'" in lines[0]:  # see conf/config.yaml
        present = lines[0].partition("keys: ")[2].split(", ")
        group = next((name for name in ("env", "algo") if name not in present), "env")
        return f"{group} has no value; give one: {group}=..."
    if isinstance(error, OverrideParseException):
        word = error.override
        name, equal, value = word.partition("=")
        if not equal or " " in name:
            shown = name if re.fullmatch(r"[a-z][\w.]*", name) else "KEY"
            fix = f"type {shown}=VALUE, without spaces"
            fix = f"to resume a run type resume={word}" if Path(word).is_dir() else fix
            return f"{word} is not KEY=VALUE; {fix}"
        if value.endswith(",") or value.count("[") > value.count("]"):
            return f"{word} is cut off: write several values without spaces, as in {name}=A,B"
        return f"{word}: Hydra cannot read {value}; a text needs quotes: {_quoted(name)}"
    file, composing, _ = lines[0].partition("Error raised while composing config")
    cause = error.__context__ if composing else error.__cause__
    key, reason = getattr(cause, "full_key", None), str(cause or "").partition("\n")[0]
    where = f"{file.rpartition(':')[0]}: " if composing else ""
    given = where + (key or "") if composing else lines[0].removeprefix("Error merging override ")
    if isinstance(cause, ConfigTypeError) and not composing:
        return f"{given} must be a {'list: [...]' if '={' in given else 'mapping: {key: value}'}"
    if isinstance(cause, (ConfigTypeError, ValidationError)):
        if "is not a ListConfig" in reason:
            return f"{given} must be a list: [...]"
        return f"{given.removesuffix(': ')}: {reason}"
    if key:
        return where + _explain_key(key, getattr(cause, "parent_node", None), str(error))
    return f"{lines[0]} {reason}".strip()


def _quoted(override: str) -> str:
    """The override with a text in quotes, as one types it in a shell."""
    return f"\"{override.partition('=')[0]}='...'\""


def refuse_lists(words: Iterable[str]) -> None:
    """Refuses a list of options where a run takes only one; only `logger` takes several."""
    for word in words:
        group, _, options = word.lstrip("+").partition("=[")
        if options and group in ("algo", "env", "learner", "net", "sampler"):
            raise ConfigError(
                f"{word}: a run has one {group}; for a sweep over several type "
                f"-m {group}={options.rstrip(']')}"
            )


def unresolvable(error: OmegaConfBaseException) -> str:
    """Why a reference has no value, and the fix, in one line."""
    reason = str(error).splitlines()[0]
    fix = "set the variable" if "Environment variable" in reason else "correct the reference"
    return f"{reason}; {fix}"


def _explain_key(key: str, parent: Any, text: str) -> str:
    """Explains a key that does not exist; `parent` is the node that lacks it."""
    group, _, name = key.partition(".")
    if key.startswith(("env.kwargs.", "env.reset_options.")):
        return f"{key} does not exist yet; add it: +{key}=..."
    if key in algorithms():
        return misplaced(key)
    if group == "sampler" and isinstance(parent, DictConfig):
        given = re.search(rf"\+{re.escape(key)}=(\S+)", text)
        if line := cannot_have(str(parent.get("name")), name, given[1] if given else "..."):
            return line
    if group == "hydra" and isinstance(parent, DictConfig):
        dot = key.rpartition(".")[0]
        return f"{key} is not a setting; {nearest(key, {f'{dot}.{name!s}' for name in parent})}"
    if places := [] if name else [f"{x}.{key}" for x in ("algo", *GROUPS) if key in _keys(x)]:
        return f"{key} is not a setting; did you mean {' or '.join(places)}?"
    settings = _settings(group) if name else {}
    if owners := [f"{group}={choice}" for choice, keys in settings.items() if name in keys]:
        own = f" (with {group}=own: +{key}=...)" if group in ("algo", "net") else ""
        return f"{key} is a setting of {' or '.join(owners)} alone; add that, or drop {key}{own}"
    named = isinstance(parent, DictConfig) and not OmegaConf.is_missing(parent, "name")
    if named and ":" in str(parent.get("name")):
        return f"{key} is no setting of walle; one of your own class needs a plus: +{key}=..."
    last = key.rpartition(".")[2].lower()
    for here, names in ELSEWHERE.items():
        if last in names.split():
            return f"{key} is not a setting; did you mean {here}?"
    known = {field.name for field in fields(Config)}
    if key in known:
        return NO_DEFAULTS
    if name and group in known:
        known = {f"{group}.{key}" for key in _keys(group)}
    near, owner = nearest(key, known), nearest(key, algorithms())
    if not near.startswith("did") and owner.startswith("did"):  # for `pppo` in pppo.clip
        near = owner
    if len(near) >= 200:  # characters
        near = "--help shows the settings"
    return f"{key} is not a setting; {near}"


def _settings(group: str) -> dict[str, list[str]]:
    """By the name of each file of a group, the group's keys that it sets."""
    settings = {}
    for file in sorted((config_directory() / group).glob("*.yaml")):
        node: Any = OmegaConf.load(file)  # the file may also set keys of other groups
        settings[file.stem] = [str(key) for key in OmegaConf.select(node, group) or node]
    return settings


def _keys(group: str) -> set[str]:
    """The keys of a group in all its files and in conf/config.yaml."""
    top = OmegaConf.select(OmegaConf.load(config_directory() / "config.yaml"), group) or {}
    return {str(key) for node in (top, *_settings(group).values()) for key in node} - {"defaults"}


def cannot_have(sampler: str, key: str, value: Any) -> str | None:
    """Why this sampler cannot have a setting of other samplers; None for other settings."""
    reason = LACKS.get(sampler, {}).get(key)
    shown = "null" if value is None else value
    return reason and f"sampler.{key}={shown} with sampler={sampler}, which {reason.format(shown)}"


def misplaced(algorithm: str) -> str:
    """Why a config must not have the name of an algorithm as a key, and the fix."""
    return (
        f"{algorithm}.KEY=VALUE sets algo.KEY where algo={algorithm} in sweeps of this launcher: in"
        " a sweep file it stands under hydra.sweeper.params; in a single run type algo.KEY=VALUE"
    )


def _explain_missing(missing: str, options: Sequence[str] | None, *, primary: bool) -> str:
    """Explains a file of conf/ or sweeps/ that does not exist, such as env/Ant-v5 or my_sweep.

    `primary` means that it was given with -cn.
    """
    group, _, name = missing.rpartition("/")
    if missing.startswith("env/"):  # an environment's id may have slashes too: ALE/Pong-v5
        group, _, name = missing.partition("/")
    if primary or not group:
        for file in (Path(root, missing.removesuffix(".yaml") + ".yaml") for root in ("", "/")):
            if file.is_file():
                where = f"type -cd {file.parent} -cn {file.stem}"
                return f"-cn {missing}: {file} is not in conf/; {where}"
        near = nearest(name, [*sweep_questions(), "config"])
        questions = "(`walle sweeps` lists their questions)"
        return f"-cn {missing}: no sweep has that name; {near} {questions}"
    # In a list, as in logger=[tensorboard,NAME], Hydra gives no options.
    options = options or [file.stem for file in (config_directory() / group).glob("*.yaml")]
    if not options and group != "env":
        return f"{group}={name}: there is no conf/{group}/{name}.yaml here; write it"
    choices = [option for option in options or () if not option.endswith("_schema")]
    near = (_environment(name) if group == "env" else None) or nearest(name, choices)
    if group == "experiment" and near.startswith("did"):
        near += f" There are: {', '.join(sorted(choices))}"
    more = f", or install the package that has it: hydra-{name}-launcher?"
    return f"{group}={name} does not exist; {near}{more if group == 'hydra/launcher' else ''}"


def _environment(name: str) -> str | None:
    """A phrase for the id of a Gymnasium environment that was typed as a choice of `env`."""
    base = name.lower().partition("-v")[0]
    for file in sorted((config_directory() / "env").glob("*.yaml")):
        known = OmegaConf.select(OmegaConf.load(file), "id")
        if known and base == str(known).lower().partition("-v")[0]:
            return f"did you mean env={file.stem}?"
    from gymnasium import registry

    env_id = with_colon(name)
    is_id = {":", "/"} & {*env_id} or name in registry or with_module(name) != name
    return f"did you mean env=gym env.id={env_id}?" if is_id else None
