"""Loads trained policies from checkpoints; a policy maps observations to actions."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import gymnasium as gym
import numpy as np

from walle.agent import checkpoint
from walle.envs import EnvSpec, Lanes
from walle.envs.lanes import from_zero
from walle.envs.observations import ObservationRows, space_from, space_values
from walle.envs.transforms import action_map
from walle.errors import CheckpointError, ConfigError, WalleError, nearest, what_went_wrong
from walle.nets.factory import NetSettings, PolicySpec
from walle.nets.policies import ActingPolicy, memory_of
from walle.sampling.actor import Actor
from walle.system.importing import TRUST, check_import
from walle.types import ActionSpace, AnyArray, FloatArray, ObsLayout, PolicySnapshot, layout_of

if TYPE_CHECKING:
    from walle.algos.base import Algorithm

# Modules that few policies need are imported where they are used.
Action = AnyArray | np.generic
WHICH = ("best", "last")
_BACKENDS = {"egl": "libegl1 (EGL)", "osmesa": "libosmesa6 (OSMesa)"}  # with their packages
_TRIAL = "import mujoco.{0} as gl; gl.GLContext(8, 8).make_current()"


class Origin(NamedTuple):
    """Where a policy comes from."""

    checkpoint: Path  # the file
    algorithm: str  # the name of the algorithm that learned it
    env_steps: int  # environment steps that it had learned from
    seed: int  # the seed of its run


class Spaces(NamedTuple):
    """The observations that a policy takes, and its environment's actions flattened to a vector.

    `first_action` is added to discrete actions, which policies count from 0. `shape` is the shape
    of the environment's own actions; None if they need no reshaping.
    """

    observation: gym.spaces.Box
    action: ActionSpace
    first_action: Any = 0
    shape: tuple[int, ...] | None = None

    @classmethod
    def of(cls, lane: Lanes) -> Spaces:
        """The spaces of a lane."""
        return cls(lane.observation_space, *from_zero(lane.env_action_space))

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> Spaces:
        """The spaces in a checkpoint."""
        return cls(space_from(values["obs"]), *from_zero(space_from(values["action"])))

    def check(self, lane: Lanes, where: str) -> None:
        """Raises ConfigError, which begins with `where`, if a lane has other spaces."""
        pairs = zip(self.texts, Spaces.of(lane).texts, strict=True)
        for kind, (was, now) in zip(("observations", "actions"), pairs, strict=True):
            if was != now:
                raise ConfigError(
                    f"{where}: the environment now has {kind} in {now}, and it had {was} when the "
                    "policy was trained; change it back, or train a new policy"
                )

    @property
    def texts(self) -> tuple[str, str]:
        """The observations and the actions as far as a policy depends on them."""
        seen = self.observation
        rows = seen.outline if isinstance(seen, ObservationRows) else f"Box{seen.shape}"
        did = str(space_from(space_values(self.action)))  # the same for a class of the user's
        did += f" from {self.first_action}" * bool(np.any(self.first_action))
        return rows, did + f" of shape {self.shape}" * (self.shape is not None)


class Policy:
    """A policy with the parameters and the observation normaliser of one checkpoint.

    `walle.load` makes it.

    Attributes:
        origin: where it comes from.
        spec: the environment in which it was trained.
        spaces: the spaces of observations and actions.
        network: the policy's network, a function of its parameters.
        snapshot: the parameters and the normaliser.
        obs_clip: bound of normalised observations; None for no bound.
        trust: whether modules that the checkpoint names may be imported.
        missing: why its environment cannot be made: a variable is missing; None if it can.
        rng: draws the noise of actions that are not deterministic; seeded with 0.
    """

    def __init__(
        self,
        network: ActingPolicy,
        snapshot: PolicySnapshot,
        obs_clip: float | None,
        spec: EnvSpec,
        spaces: Spaces,
        origin: Origin,
        trust: bool = False,
    ) -> None:
        self.network, self.snapshot, self.obs_clip = network, snapshot, obs_clip
        self.spec, self.spaces, self.origin, self.trust = spec, spaces, origin, trust
        self.rng = np.random.default_rng(0)
        self.action_map = action_map(spaces.action, spec)
        if isinstance(spaces.observation, ObservationRows):
            spaces.observation.offset = spec.offset
        self.missing: ConfigError | None = None
        self._actor, self._rows, self._lock = self.actor(1), 1, Lock()

    def __getstate__(self) -> dict[str, Any]:
        """All but the actor and its lock, which cannot be pickled."""
        return {k: value for k, value in vars(self).items() if k not in ("_actor", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes the actor and its lock again."""
        vars(self).update(state)
        self._actor, self._lock = self.actor(self._rows), Lock()

    def __repr__(self) -> str:
        """The algorithm, the environment, the steps and the file, in one line."""
        file, algorithm, steps, _ = self.origin
        return f"<Policy of {algorithm} on {self.spec.id} after {steps:,} steps, {file}>"

    @property
    def obs_dim(self) -> int:
        """O, the width of an observation."""
        return int(self.spaces.observation.shape[0])

    @property
    def obs_layout(self) -> ObsLayout:
        """The layout of an observation in the row of numbers that the network takes."""
        return layout_of(self.spaces.observation)

    @property
    def state_size(self) -> int:
        """S, the width of the memory; 0 without one."""
        memory = memory_of(self.network)
        return memory.units if memory else 0

    def initial_state(self, lanes: int | None = None) -> FloatArray:
        """The memory with which an episode starts: [S], or [N, S] for N = `lanes` episodes."""
        shape = (self.state_size,) if lanes is None else (lanes, self.state_size)
        return np.zeros(shape, np.float32)

    @overload
    def act(self, obs: Any, *, deterministic: bool = True) -> Action: ...

    @overload
    def act(
        self, obs: Any, state: FloatArray, deterministic: bool = True
    ) -> tuple[Action, FloatArray]: ...

    def act(
        self, obs: Any, state: FloatArray | None = None, deterministic: bool = True
    ) -> Action | tuple[Action, FloatArray]:
        """The actions at raw observations, in the units of the environment.

        Observations are normalised here, and actions rescaled and clipped, as in training. A row of
        a batch has the same result, bit for bit, as the observation alone.

        Args:
            obs: one observation [O], or a batch [N, O], as `env()` returns them. With images, an
                observation of the environment's own space, or a batch with one more dimension.
            state: the policy's memory, [S] or [N, S]: `initial_state` where an episode starts, and
                then the result of the previous call. Required if the policy has a memory (S > 0).
            deterministic: take the likeliest action; otherwise draw one with `rng`.

        Returns:
            the action, [*A] for one observation (an integer if actions are discrete), [N, *A] for
            a batch. If `state` was given, the action and the next state.

        Raises:
            ConfigError: the observation or the state has the wrong shape, or the state is missing;
                an observation has a number that is not finite.
        """
        rows, single = self._checked(obs)
        with self._lock:  # the actor's arrays are used again
            if len(rows) != self._rows:
                self._actor, self._rows = self.actor(len(rows)), len(rows)
            actor = self._actor
            actor.state[:] = self._checked_state(state, len(rows), single)
            if deterministic:
                drawn = actor.likeliest(rows).copy()
            else:
                drawn = actor.draw(rows, self.network.noise(self.rng, len(rows))).copy()
            following = actor.state.copy()
        action: Any
        if self.action_map is not None:
            action = self.action_map(drawn)
        elif isinstance(self.spaces.action, gym.spaces.Box):
            action = drawn.astype(self.spaces.action.dtype)
        else:
            whole = not isinstance(self.spaces.action, gym.spaces.MultiBinary)
            action = np.add(drawn, self.spaces.first_action)
            action = action.astype(self.spaces.action.dtype) if whole else action
        if single:
            action, following = action[0], following[0]
        if (shape := self.spaces.shape) is not None:
            action = action.reshape(shape if single else (len(rows), *shape))
        return action if state is None else (action, following)

    def _checked(self, obs: Any) -> tuple[AnyArray, bool]:
        """[N, O] observations, and whether one observation was given."""
        if isinstance(self.spaces.observation, ObservationRows):
            return self.spaces.observation.rows(obs)
        try:
            rows = np.asarray(obs, np.float64)
        except (TypeError, ValueError):
            raise ConfigError(
                f"an observation is a {type(obs).__name__}, and {self.spec.id} has observations of "
                f"shape ({self.obs_dim},), as policy.env() returns them: gymnasium.spaces."
                "flatten(space, obs) makes one of an observation of the environment's own space"
            ) from None
        if rows.ndim not in (1, 2) or rows.shape[-1] != self.obs_dim or not rows.size:
            raise ConfigError(
                f"an observation has shape {rows.shape}, and {self.spec.id} has observations of "
                f"shape ({self.obs_dim},): give one of them or a batch [N, {self.obs_dim}], as "
                "policy.env() returns them"
            )
        shifted = np.subtract(rows, self.spec.offset or 0).astype(np.float32)
        if not np.isfinite(shifted).all():
            number = shifted[~np.isfinite(shifted)][0]
            raise ConfigError(f"an observation has {number}, and a policy needs finite numbers")
        return np.atleast_2d(shifted), rows.ndim == 1

    def _checked_state(self, state: FloatArray | None, rows: int, single: bool) -> FloatArray:
        shape = (self.state_size,) if single else (rows, self.state_size)
        if state is None and self.state_size:
            raise ConfigError(
                "this policy has a memory: begin an episode with state=policy.initial_state() and "
                "pass on what act returns, as in action, state = policy.act(obs, state)"
            )
        if state is not None and np.shape(state) != shape:
            raise ConfigError(
                f"the state has shape {np.shape(state)} where {shape} is needed; "
                "use policy.initial_state() for one episode, initial_state(N) for N"
            )
        return np.zeros(shape, np.float32) if state is None else np.asarray(state, np.float32)

    def use(self, snapshot: PolicySnapshot) -> None:
        """Acts with the parameters and the normaliser of another snapshot."""
        self.snapshot = snapshot
        self._actor.load(snapshot)

    def actor(self, lanes: int) -> Actor:
        """An actor of the policy for that many lanes; its actions are not yet rescaled."""
        actor = Actor(self.network, self.obs_dim, lanes, self.obs_clip)
        actor.load(self.snapshot)
        return actor

    def check_env(self) -> None:
        """Refuses an environment that is not trusted (`check_import`); `env` does not check it."""
        if self.missing:
            raise self.missing
        for key, path in self.spec.imports:
            check_import(key, path, self.origin.checkpoint, trust=self.trust, beside=True)

    def env(self, render_mode: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
        """A Gymnasium environment like the one used in training, for one episode at a time.

        It repeats actions, limits episodes and appends the clock as in training, and takes the
        actions of `act`. Observations with images are the environment's own. With equal seeds it
        returns the same observations as a lane. The exception is a `render_mode` with
        `env.backend=envpool`: then it is Gymnasium's task of the same id, if there is one.

        Args:
            render_mode: such as "rgb_array" or "human", if the environment has it.
            kwargs: further arguments of the environment, which replace those of the run.

        Raises:
            ConfigError: the environment does not exist, refuses its arguments, or cannot be drawn
                off screen here.
        """
        from walle.envs.single import make_single

        if self.missing:
            raise self.missing
        drawing: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        env = make_single(self.spec, pack=False, **drawing, **kwargs)
        if render_mode not in (None, "human"):
            seen = "render_mode" in self.spec.kwargs  # the policy may see what is drawn
            try:
                _prepare_drawing(env, follow=not seen)
            except ConfigError:
                env.close()
                raise
        return env


def load(path: str | Path, which: str | None = None, *, trust: bool = False) -> Policy:
    """The policy of a run.

    It acts as the run's own evaluations did, bit for bit on the same processor. It does not depend
    on the machine that trained it: a policy trained on a GPU acts anywhere. Without `trust`, no
    environment is made, and only walle's own modules are imported.

    Args:
        path: a run's directory, or a checkpoint file.
        which: "best" for the policy with the best evaluation, "last" for the newest; None takes
            the best if there is one.
        trust: import the modules that the checkpoint names; stderr lists each one.

    Raises:
        ConfigError: there is no such checkpoint, it cannot be read, or it needs `trust`.
    """
    file = find_checkpoint(Path(path), which)
    if file.name == checkpoint.LAST and file.parent.name == "checkpoints":
        state = checkpoint.load_last(file.parent, lambda line: warnings.warn(line, stacklevel=3))
    else:
        state = checkpoint.load(file)
    saved = {"env": {"id": "", "kwargs": {}}, "algo": {"name": ""}, "net": {"name": ""}, "seed": 0}
    needed = {"env_steps": 0, "config": saved, "snapshot": {"version": 0}}
    if state.get("policy") is not None:  # older versions stored none
        parts = ("activation", "critic_hidden", "log_std", "memory", "own", "policy_hidden")
        rest = dict.fromkeys(("exploration", "obs_clip", "spaces"))
        needed["policy"] = {"kind": "", "net": dict.fromkeys(parts), **rest}
    checkpoint.check(file, state, needed)
    try:
        return _loaded(file, state, trust=trust)
    except WalleError:
        raise
    except Exception as error:  # a value of another type, in a file without checksums
        raise CheckpointError(f"{file} cannot be loaded: {what_went_wrong(error)}") from error


def _loaded(file: Path, state: dict[str, Any], *, trust: bool) -> Policy:
    config, stored = state["config"], state.get("policy")
    resolved = None
    if "${" in str(config["env"]):
        from walle.config import loading  # imports omegaconf: few policies need it

        resolved = loading.with_variables
    settings = SimpleNamespace(**config["env"], info=tuple(state.get("info", ())))
    missing = None
    try:
        spec = EnvSpec.of(settings, config["net"]["name"], resolved)
    except ConfigError as error:  # only an environment needs its variables
        spec, missing = EnvSpec.of(settings, config["net"]["name"]), error
    named = {f"{group}.name": config[group]["name"] for group in ("algo", "net")}
    if stored is not None:
        named = {"net.name": stored["net"]["own"]["path"]} if stored["net"]["own"] else {}
    for key, name in named.items():
        check_import(key, name, file, trust=trust)
    if stored is None or stored["spaces"] is None:
        if missing:
            raise missing
        if not trust:
            raise ConfigError(
                f"{file} lacks its spaces, so that loading it makes env.id={spec.id!r}; {TRUST}"
            )
        for key, name in spec.imports:
            check_import(key, name, file, trust=trust)
        spaces = _spaces_of_env(spec)
    else:
        spaces = Spaces.stored(stored["spaces"])
    entries = layout_of(spaces.observation).vector
    offset = checkpoint.offset_of(file, state, entries)
    if isinstance(spaces.observation, ObservationRows) and spaces.observation.keys:
        seen = spaces.observation.of_policy
        spaces, spec = spaces._replace(observation=seen), replace(spec, keys=seen.keys)
    kept = layout_of(spaces.observation).vector  # the policy sees the first of the entries
    spec = replace(spec, offset=offset and offset[:kept])
    map_ = action_map(spaces.action, spec)
    actions = spaces.action if map_ is None else map_.given  # before they are rescaled
    if stored is None:
        network, obs_clip = _of_algorithm(config, spaces.observation, actions)
    else:
        net, exploration = NetSettings.from_values(stored["net"]), stored["exploration"]
        network = PolicySpec(stored["kind"], net, spaces.observation, actions, exploration)()
        obs_clip = stored["obs_clip"] and 1.0 * stored["obs_clip"]  # a number
    vector = np.zeros(network.layout.size + 2 * entries, np.float32)
    checkpoint.check(file, state, {"snapshot": {"vector": vector}})
    origin = Origin(file, config["algo"]["name"], state["env_steps"], config["seed"])
    snapshot = PolicySnapshot.loaded(state["snapshot"])
    parameters, *moments = snapshot.parts(network.layout.size)
    snapshot = snapshot._replace(vector=np.concatenate((parameters, *(x[:kept] for x in moments))))
    policy = Policy(network, snapshot, obs_clip, spec, spaces, origin, trust)
    policy.missing = missing
    return policy


def check_which(which: str | None) -> None:
    """Refuses an unknown name of a checkpoint with a `ConfigError`; None leaves the choice open."""
    if which is not None and which not in WHICH:
        raise ConfigError(f"which={which!r} is unknown; {nearest(which, WHICH)}")


def find_checkpoint(path: Path, which: str | None = None) -> Path:
    """The file that `load` reads; `path` may also be DIR/best, DIR/last or DIR/checkpoints."""
    if path.name in WHICH and not path.exists():
        path, which = path.parent, path.name
    check_which(which)
    if path.is_file():
        return path
    directory = path / "checkpoints"
    if path.name == "checkpoints" and not directory.exists():
        directory = path
    if not path.exists():
        raise ConfigError(f"{path} does not exist; give a run's directory or a checkpoint file")
    best, last = directory / checkpoint.BEST, directory / checkpoint.LAST
    if which == "best" and directory.is_dir() and not best.exists():
        raise ConfigError(
            f"{directory} has no {checkpoint.BEST}, because no evaluation has ended; use "
            "which=last, or train with eval.episodes above 0"
        )
    if best.exists() and which != "last":
        return best
    if last.exists() or (directory / checkpoint.PREVIOUS).exists():
        return last
    if runs := sorted(checkpoints.parent for checkpoints in path.glob("*/checkpoints")):
        hint = f" of its own, but runs below it have; give one, such as {runs[0]}"
    elif (path / "run.json").exists():
        from walle.system.commands import command_of

        hint = (
            " yet: a run writes one every checkpoint.every steps and at its end; if it was killed, "
            f"`{command_of('run')} resume={shlex.quote(str(path))}` starts it again"
        )
    else:
        hint = "; give a run's directory or a checkpoint file"
    raise ConfigError(f"{path} has no checkpoint{hint}")


def _of_algorithm(
    config: Mapping[str, Any], observation: gym.spaces.Box, actions: ActionSpace
) -> tuple[ActingPolicy, float | None]:
    """The network and the bound of observations, from the algorithm that learned the policy.

    Checkpoints of versions up to 0.2.0 need it, and so do algorithms that make their own network.
    """
    from walle import algos
    from walle.algos.base import CompilableSettings, Problem
    from walle.config.loading import stored_groups

    settings, net = stored_groups(config)
    if isinstance(settings, CompilableSettings):
        settings = replace(settings, compile="false")
    # Nothing will be learned, so a step is enough for its buffer.
    steps: Any = dict.fromkeys(("lanes", "total_steps", "schedule_steps", "batch_size"), 1)
    problem = Problem(observation, actions, **steps, seed=config["seed"], device="cpu")
    algorithm = algos.make(settings, NetSettings.of(net), problem)
    return algorithm.policy_factory(), algorithm.obs_clip


def _spaces_of_env(spec: EnvSpec) -> Spaces:
    from walle.envs.single import make_single

    env: Any = make_single(spec)
    with closing(env):
        actions = getattr(env, "env_action_space", env.action_space)
        return Spaces(env.observation_space, *from_zero(actions))


def stored_policy(algorithm: Algorithm, lane: Lanes) -> dict[str, Any] | None:
    """The description from which `load` makes the policy's network, as plain values.

    None if the algorithm makes its own network; `load` then gets it from the algorithm.
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
    """An algorithm's current policy; `lane` is a lane of the environment `spec`."""
    network, snapshot = algorithm.policy_factory(), algorithm.snapshot()
    return Policy(network, snapshot, algorithm.obs_clip, spec, Spaces.of(lane), origin)


def has_display() -> bool:
    """Whether a window can be opened."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def is_mujoco(env: Any) -> bool:
    """Whether an unwrapped environment has MuJoCo's model and data."""
    kinds = [type(getattr(env, name, None)).__name__ for name in ("model", "data")]
    return kinds == ["MjModel", "MjData"]


def _prepare_drawing(env: gym.Env[Any, Any], *, follow: bool) -> None:
    """Lets an environment draw off screen; with `follow` from a camera that follows a robot.

    Gymnasium's camera does not move, so a running robot leaves the picture, and the drawn floor
    ends after 20 or 40 m, unlike the simulation's.
    """
    inner: Any = env.unwrapped
    if not is_mujoco(inner):
        return
    _choose_mujoco_backend()
    import mujoco
    from gymnasium.envs.mujoco import MujocoEnv

    if (
        not follow
        or not isinstance(inner, MujocoEnv)
        or (inner.camera_id, inner.camera_name) != (None, None)
    ):
        return
    model: mujoco.MjModel = inner.model
    names = [model.camera(i).name for i in range(model.ncam)]
    if "track" not in names:  # the camera that follows the robot, in Gymnasium's models
        return
    inner.mujoco_renderer.camera_id = names.index("track")
    # Planes are drawn without an end, with their texture as large as before.
    for floor in np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE):
        size, material = model.geom_size[floor, :2], model.geom_matid[floor]
        if not size.all():
            continue
        if material >= 0 and not model.mat_texuniform[material]:
            model.mat_texrepeat[material] /= 2 * size  # from a plane's length to metres
            model.mat_texuniform[material] = True
        size[:] = 0.0


def _choose_mujoco_backend() -> None:
    """Sets MUJOCO_GL, unless it is set, to what draws off screen here; ConfigError if none does.

    Each backend is tried in its own process, since a library that fails cannot be unloaded.
    """
    if "MUJOCO_GL" in os.environ:
        return
    for name in _BACKENDS:
        trial = [sys.executable, "-c", _TRIAL.format(name)]
        if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            os.environ["MUJOCO_GL"] = name
            return
    raise ConfigError(
        f"MuJoCo cannot draw off screen here: install {' or '.join(_BACKENDS.values())}, on Debian "
        "and Ubuntu with `apt-get install libegl1 libgl1-mesa-dri libopengl0`; where there is a "
        "display, set MUJOCO_GL=glfw"
    )
