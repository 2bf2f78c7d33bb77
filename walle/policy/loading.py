"""Loads the policy of a run or of a checkpoint."""

from __future__ import annotations

import shlex
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from walle import algos
from walle.agent import checkpoint
from walle.algos.base import Algorithm, CompilableSettings
from walle.algos.networks import NetSettings
from walle.algos.problem import Problem
from walle.config import stored_groups, with_variables
from walle.envs import EnvSpec, make_lanes
from walle.envs.lanes import from_zero
from walle.envs.single import make_single
from walle.envs.transforms import ActionMap
from walle.errors import ConfigError
from walle.policy.acting import Origin, Policy, Spaces
from walle.policy.which import check_which
from walle.system.commands import command_of
from walle.types import ActionSpace, PolicySnapshot


def load(path: str | Path, which: str | None = None) -> Policy:
    """The policy of a run.

    It acts as the run's own evaluations did, bit for bit on the same processor. Nothing of the
    machine that trained it is needed: a policy that learned on a GPU acts anywhere.

    Args:
        path: a run's directory, or a checkpoint file.
        which: "best" for the policy with the best evaluation, "last" for the newest; None takes
            the best if there is one.

    Raises:
        ConfigError: there is no such checkpoint, it cannot be read, or its environment cannot be
            made here.
    """
    file = find_checkpoint(Path(path), which)
    return policy_of(_state(file), file)


def find_checkpoint(path: Path, which: str | None = None) -> Path:
    """The file that `load` reads; raises as it does."""
    check_which(which)
    if path.is_file():
        return path
    directory = path / "checkpoints"
    if not path.exists():
        raise ConfigError(f"{path} does not exist; give a run's directory or a checkpoint file")
    best, last = directory / checkpoint.BEST, directory / checkpoint.LAST
    if which == "best" and directory.is_dir() and not best.exists():
        raise ConfigError(
            f"{directory} has no {checkpoint.BEST}, because no evaluation has ended; use "
            "which=last, or train with a smaller eval.every"
        )
    if best.exists() and which != "last":
        return best
    if last.exists() or (directory / checkpoint.PREVIOUS).exists():
        return last
    raise ConfigError(f"{path} has no checkpoint{_hint(path)}")


def _hint(path: Path) -> str:
    runs = sorted(found.parent for found in path.glob("*/checkpoints"))
    if not runs and (path / "run.json").exists():
        again = f"`{command_of('run')} resume={shlex.quote(str(path))}`"
        return (
            " yet: a run writes one every checkpoint.every steps and at its end; if it was killed, "
            f"{again} begins it again"
        )
    if not runs:
        return "; give a run's directory or a checkpoint file"
    return f" of its own, but {len(runs)} runs have; give one of them, such as {runs[0]}"


def _state(file: Path) -> dict[str, Any]:
    if file.name == checkpoint.LAST and file.parent.name == "checkpoints":
        return checkpoint.load_last(file.parent, lambda line: warnings.warn(line, stacklevel=3))
    return checkpoint.load(file)


def policy_of(state: dict[str, Any], file: Path) -> Policy:
    """The policy in the state of a checkpoint, which was read from `file`."""
    stored = state["config"]
    settings, env, net = stored_groups(stored)
    spec = EnvSpec.of(env, with_variables(env.kwargs))
    spaces = spaces_of(spec, stored["seed"])
    if isinstance(settings, CompilableSettings):
        settings = replace(settings, compile="false")
    # An algorithm makes the network; nothing will be learned, so a step is enough for its buffer.
    problem = Problem(
        spaces.observation,
        _given(spec, spaces.action),
        lanes=1,
        total_steps=1,
        schedule_steps=1,
        batch_size=1,
        seed=stored["seed"],
        device="cpu",
    )
    algorithm = algos.make(settings, NetSettings.of(net), problem)
    origin = Origin(file, settings.name, state["env_steps"], stored["seed"])
    policy = policy_from(algorithm, spec, origin)
    policy.use(PolicySnapshot.loaded(state["snapshot"]))
    return policy


def policy_from(algorithm: Algorithm, spec: EnvSpec, origin: Origin) -> Policy:
    """The policy as an algorithm has it now."""
    return Policy(
        algorithm.policy_factory(),
        algorithm.snapshot(),
        algorithm.obs_clip,
        spec,
        spaces_of(spec, origin.seed),
        origin,
    )


def _given(spec: EnvSpec, space: ActionSpace) -> ActionSpace:
    """The space of the policy's actions, before they are rescaled."""
    if not isinstance(space, gym.spaces.Box) or spec.action == "raw":
        return space
    return ActionMap(space, rescale=spec.action == "rescale").given


def spaces_of(spec: EnvSpec, seed: int) -> Spaces:
    """The spaces of an environment, its actions in units of its own."""
    env: Any
    if spec.backend == "envpool":
        env = make_lanes(replace(spec, action="raw"), [0], seed)
    else:
        env = make_single(spec)
    with closing(env):
        return Spaces(env.observation_space, *from_zero(env.action_space))
