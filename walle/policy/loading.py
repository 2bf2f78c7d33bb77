"""Loads the policy of a run or of a checkpoint."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from walle.agent import checkpoint
from walle.envs import EnvSpec, Lanes, make_lanes
from walle.envs.lanes import from_zero
from walle.envs.observations import space_from, space_values
from walle.envs.transforms import ActionMap
from walle.errors import ConfigError, nearest
from walle.nets.factory import NetSettings, PolicySpec, make_policy
from walle.nets.policies import ActingPolicy
from walle.policy.acting import Origin, Policy, Spaces
from walle.types import ActionSpace, PolicySnapshot

if TYPE_CHECKING:
    from walle.algos.base import Algorithm

# Acting imports this file: what few policies need is imported where it is used.
WHICH = ("best", "last")


def load(path: str | Path, which: str | None = None) -> Policy:
    """The policy of a run.

    It acts as the run's own evaluations did, bit for bit on the same processor. Nothing of the
    machine that trained it is needed: a policy that learned on a GPU acts anywhere.

    Args:
        path: a run's directory, or a checkpoint file.
        which: "best" for the policy with the best evaluation, "last" for the newest; None takes
            the best if there is one.

    Raises:
        ConfigError: there is no such checkpoint, or it cannot be read.
    """
    file = find_checkpoint(Path(path), which)
    return policy_of(_state(file), file)


def check_which(which: str | None) -> None:
    """Checks the name of a checkpoint; None leaves the choice open.

    Raises:
        ConfigError: there is no such checkpoint.
    """
    if which is not None and which not in WHICH:
        raise ConfigError(f"which={which!r} is unknown; {nearest(which, WHICH)}")


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
    runs = sorted(checkpoints.parent for checkpoints in path.glob("*/checkpoints"))
    if not runs and (path / "run.json").exists():
        from walle.system.commands import command_of

        again = f"`{command_of('run')} resume={shlex.quote(str(path))}`"
        return (
            " yet: a run writes one every checkpoint.every steps and at its end; if it was killed, "
            f"{again} starts it again"
        )
    if not runs:
        return "; give a run's directory or a checkpoint file"
    return f" of its own, but {len(runs)} runs have; give one of them, such as {runs[0]}"


def _state(file: Path) -> dict[str, Any]:
    if file.name == checkpoint.LAST and file.parent.name == "checkpoints":
        return checkpoint.load_last(file.parent, lambda line: warnings.warn(line, stacklevel=3))
    return checkpoint.load(file)


def policy_of(state: Mapping[str, Any], file: Path) -> Policy:
    """The policy in the state of a checkpoint, which was read from `file`."""
    config, stored = state["config"], state.get("policy")
    kwargs = config["env"]["kwargs"]
    if "${" in str(kwargs):
        from walle.config.loading import with_variables  # imports omegaconf: few policies need it

        kwargs = with_variables(kwargs)
    spec = EnvSpec.of(SimpleNamespace(**config["env"]), kwargs)
    if stored is None or stored["spaces"] is None:
        spaces = _spaces_of_env(spec, config["seed"])
    else:
        spaces = _spaces(*(space_from(stored["spaces"][name]) for name in ("obs", "action")))
    if stored is None:
        network, obs_clip = _of_algorithm(config, spec, spaces)
    else:
        net, actions = NetSettings.from_values(stored["net"]), _given(spec, spaces.action)
        described = PolicySpec(
            stored["kind"], net, spaces.observation, actions, stored["exploration"]
        )
        network, obs_clip = make_policy(described), stored["obs_clip"]
    origin = Origin(file, config["algo"]["name"], state["env_steps"], config["seed"])
    return Policy(network, PolicySnapshot.loaded(state["snapshot"]), obs_clip, spec, spaces, origin)


def _of_algorithm(
    config: Mapping[str, Any], spec: EnvSpec, spaces: Spaces
) -> tuple[ActingPolicy, float | None]:
    """The network and the bound of observations, from the algorithm that learned the policy.

    Checkpoints of versions up to 0.2.0 need it, and algorithms that make a network of their own.
    """
    from walle import algos
    from walle.algos.base import CompilableSettings, Problem
    from walle.config.loading import stored_groups

    settings, net = stored_groups(config)
    if isinstance(settings, CompilableSettings):
        settings = replace(settings, compile="false")
    # Nothing will be learned, so a step is enough for its buffer.
    problem = Problem(
        spaces.observation,
        _given(spec, spaces.action),
        lanes=1,
        total_steps=1,
        schedule_steps=1,
        batch_size=1,
        seed=config["seed"],
        device="cpu",
    )
    algorithm = algos.make(settings, NetSettings.of(net), problem)
    return algorithm.policy_factory(), algorithm.obs_clip


def stored_policy(algorithm: Algorithm, lane: Lanes) -> dict[str, Any] | None:
    """What `policy_of` makes the policy's network from, as plain values for a checkpoint.

    Returns:
        None if the algorithm makes a network of its own, which `policy_of` then asks it for.
    """
    described = algorithm.policy_factory
    if not isinstance(described, PolicySpec):
        return None
    spaces = {"obs": lane.observation_space, "action": lane.env_action_space}
    try:
        stored = {name: space_values(space) for name, space in spaces.items()}
    except TypeError:
        stored = None
    return {**described.values(), "obs_clip": algorithm.obs_clip, "spaces": stored}


def policy_from(algorithm: Algorithm, spec: EnvSpec, lane: Lanes, origin: Origin) -> Policy:
    """The policy as an algorithm has it now; `lane` is one of the environment `spec`."""
    return Policy(
        algorithm.policy_factory(),
        algorithm.snapshot(),
        algorithm.obs_clip,
        spec,
        _spaces(lane.observation_space, lane.env_action_space),
        origin,
    )


def _given(spec: EnvSpec, space: ActionSpace) -> ActionSpace:
    """The space of the policy's actions, before they are rescaled."""
    if not isinstance(space, gym.spaces.Box) or spec.action == "raw":
        return space
    return ActionMap(space, rescale=spec.action == "rescale").given


def _spaces(observation: gym.spaces.Box, action: ActionSpace) -> Spaces:
    return Spaces(observation, *from_zero(action))


def _spaces_of_env(spec: EnvSpec, seed: int) -> Spaces:
    env: Any
    if spec.backend == "envpool":
        env = make_lanes(replace(spec, action="raw"), [0], seed)
    else:
        from walle.envs.single import make_single

        env = make_single(spec)
    with closing(env):
        return _spaces(env.observation_space, env.action_space)
