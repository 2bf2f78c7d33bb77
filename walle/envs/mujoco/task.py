"""Tasks: a compiled model, the first states of episodes, and rewards and ends of all lanes."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import numpy.typing as npt

from walle.envs.mujoco import physics
from walle.envs.mujoco.physics import Array, Fields
from walle.errors import ConfigError, RolloutError, nearest
from walle.types import AnyArray, BoolArray

_MODELS = Path(gym.__file__).parent / "envs" / "mujoco" / "assets"
_MOST_PAIRS = 16  # with more pairs MuJoCo's own search is faster
_TRIAL_STEPS = 400  # in which both models must agree
State = tuple[Array, Array]  # `qpos` [nq] and `qvel` [nv] where an episode starts
# the reward of a step, [L], and whether it reached a terminal state, [L]
RewardAndEnd = tuple[npt.NDArray[np.floating], BoolArray]


class LaneError(RolloutError):
    """The result of a lane cannot be used; `index` is the index of the first such lane."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class Task(ABC):
    """A model with the batched functions that make it a task."""

    model: mujoco.MjModel  # compiled, shared by all lanes
    frame_skip: int  # physics steps per environment step
    dt: float  # seconds of simulated time per environment step
    rest: Array  # [nq] the model's initial positions; its velocities are zero
    fields: tuple[str, ...] = ("qpos", "qvel")  # MuJoCo's, which the task reads
    remembers: tuple[str, ...] = ()  # fields that the reward needs from before the step
    observation_size: int  # entries of one lane's observation

    def load(self, path: Path, frame_skip: int) -> None:
        """Compiles the model; a task calls this before anything else."""
        if frame_skip < 1:
            raise ConfigError(f"frame_skip={frame_skip}: at least one physics step is needed")
        self.frame_skip = frame_skip
        self.model = compile_model(path)
        self.dt = float(self.model.opt.timestep) * frame_skip
        self.rest = self.model.qpos0.copy()

    @abstractmethod
    def begin(self, random: np.random.Generator) -> State:
        """Draws the state in which an episode starts."""

    @abstractmethod
    def observe(self, now: Fields, out: Array) -> None:
        """Writes the observations of all lanes into `out`, [L, observation_size]."""

    @abstractmethod
    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """The reward of the step from `before` to `now`, and the lanes whose episode it ended."""

    @property
    def action_space(self) -> gym.spaces.Box:
        """The actuators' control ranges."""
        low, high = self.model.actuator_ctrlrange.astype(np.float32).T
        return gym.spaces.Box(low, high, dtype=np.float32)


@dataclass(kw_only=True)
class GymnasiumTask(Task):
    """A task that Gymnasium has too; its dataclass fields are Gymnasium's constructor arguments."""

    xml_file: str  # a path beginning with `/`, `.` or `~`, or a model that Gymnasium ships
    frame_skip: int

    def __post_init__(self) -> None:
        self.load(xml_path(self.xml_file), self.frame_skip)


def near_rest(task: Task, random: np.random.Generator, scale: float, *, normal: bool) -> State:
    """The model's initial state with noise on every position and velocity.

    Positions get uniform noise in [-scale, scale); velocities the same, or, if `normal`, Gaussian
    noise of standard deviation `scale`.
    """
    nq, nv = len(task.rest), task.model.nv
    if normal:
        qpos = task.rest + random.uniform(-scale, scale, nq)
        return qpos, scale * random.standard_normal(nv)
    noise = random.uniform(-scale, scale, nq + nv)
    return task.rest + noise[:nq], noise[nq:]


def never(lanes: int) -> BoolArray:
    """[L] booleans, all False: no lane terminated."""
    return np.zeros(lanes, dtype=np.bool_)


def xml_path(xml_file: str) -> Path:
    """The file that an `xml_file` argument names, by Gymnasium's rule.

    A path that starts with `/`, `.` or `~` is the user's own file; any other name is a model that
    Gymnasium ships.
    """
    if xml_file.startswith(("/", ".", "~")):
        return Path(xml_file).expanduser()
    if not (_MODELS / xml_file).is_file():
        hint = nearest(xml_file, (path.name for path in _MODELS.glob("*.xml")))
        raise ConfigError(
            f"xml_file={xml_file!r} is not a model that Gymnasium ships; {hint} The path of a "
            "model of your own begins with '/', './' or '~'"
        )
    return _MODELS / xml_file


def compile_model(path: Path) -> mujoco.MjModel:
    """Compiles an XML file; switches off searches that can find nothing in its model.

    The search for islands is off with one kinematic tree. The search for contacts is off if no two
    geoms may ever touch; in models that Gymnasium ships, a list of the pairs that may touch can
    replace it. Trajectories stay the same bit for bit. Every call returns a new model.

    Raises:
        ConfigError: there is no file, MuJoCo does not accept it, or it has no actuators.
    """
    return copy.copy(_shipped(path)) if path.parent == _MODELS else _compiled(path)


def _compiled(path: Path) -> mujoco.MjModel:
    if not path.is_file():
        raise ConfigError(
            f"xml_file: there is no file at {path.absolute()}; a relative path begins in the "
            "working directory: Path(__file__).with_name(...) lies beside a module"
        )
    physics.catch_mujoco_warnings()
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"xml_file: {path} does not load as a MuJoCo model: {reason}") from error
    physics.issue_mujoco_warnings(str(path))
    if path.parent == _MODELS:
        model = with_listed_pairs(model, path)
        physics.pending_warnings.clear()  # they are the same warnings again
    if model.nu == 0:
        raise ConfigError(f"xml_file: {path} has no actuators, so there is no action to choose")
    if model.ntree == 1:  # an older MuJoCo without this flag searches for islands only on request
        model.opt.disableflags |= getattr(mujoco.mjtDisableBit, "mjDSBL_ISLAND", 0)
    if not may_touch(model):
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    return model


_shipped = cache(_compiled)  # a sampler that makes new lanes keeps the round waiting


def may_touch(model: mujoco.MjModel) -> bool:
    """Whether any two geoms could ever be in contact."""
    return bool(model.npair or model.nflex or len(_pairs_that_may_touch(model)))


def _pairs_that_may_touch(model: mujoco.MjModel) -> npt.NDArray[np.intp]:
    """The pairs of geoms [K, 2] that could be in contact, by MuJoCo's rules for filtering pairs.

    A pair is left out if its contact bits do not meet, if both geoms belong to one rigid body, or
    if the body of one is the parent of the other's body and is not the world.
    """
    types, affinities = model.geom_contype, model.geom_conaffinity
    meet = types[:, None] & affinities[None] != 0
    meet |= meet.T
    body = model.body_weldid[model.geom_bodyid]
    parent = model.body_weldid[model.body_parentid[body]]
    family = (body[:, None] == parent[None]) & (body[:, None] != 0)
    if model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_FILTERPARENT:
        family[:] = False
    apart = (body[:, None] == body[None]) | family | family.T
    return np.argwhere(np.triu(meet & ~apart))


def with_listed_pairs(model: mujoco.MjModel, path: Path) -> mujoco.MjModel:
    """The model in the file `path` with a list of the pairs that may touch, or `model` itself.

    In every step MuJoCo searches for bodies whose boxes overlap, and only then drops the pairs that
    may never touch. Where few pairs remain, as for a robot that touches only the floor, the search
    takes up to a fifth of a step. `model` itself is returned if the list would not save that time.

    Contacts have the order and the parameters of those that MuJoCo finds by itself, so trajectories
    stay the same bit for bit. The tests compare long trajectories of all of Gymnasium's models that
    have such pairs; a short one is compared here, because another version of MuJoCo may have
    different rules.
    """
    pairs = _pairs_that_may_touch(model)
    if model.npair or model.nflex or model.nexclude or not 0 < len(pairs) <= _MOST_PAIRS:
        return model
    spec = mujoco.MjSpec.from_file(str(path))
    for number, geom in enumerate(spec.geoms):
        geom.name = geom.name or f"geom {number}"
        geom.contype = geom.conaffinity = 0
    with warnings.catch_warnings():  # the first compilation issued them
        warnings.simplefilter("ignore")
        unlisted = spec.compile()
        for pair in pairs:
            first, second = (unlisted.geom(int(i)).name for i in pair)
            spec.add_pair(geomname1=first, geomname2=second)
        listed = spec.compile()
    for k in range(listed.npair):
        _set_parameters(listed, k, int(listed.pair_geom1[k]), int(listed.pair_geom2[k]))
    return listed if np.array_equal(_trajectory(listed), _trajectory(model)) else model


def _trajectory(model: mujoco.MjModel) -> npt.NDArray[np.float64]:
    """The states after random controls, most of them at the ends of the actuators' ranges."""
    random, data = np.random.default_rng(0), mujoco.MjData(model)
    states = []
    for step in range(_TRIAL_STEPS):
        if step % 5 == 0:
            data.ctrl[:] = random.uniform(-10, 10, model.nu)
        mujoco.mj_step(model, data)
        states.append(np.concatenate((data.qpos, data.qvel, data.qacc_warmstart)))
    return np.array(states)


def _set_parameters(model: mujoco.MjModel, k: int, first: int, second: int) -> None:
    """Sets a listed pair's parameters as MuJoCo's `mj_contactParam` does for a contact."""
    m, both = model, [first, second]
    priority = m.geom_priority[both]
    if priority[0] != priority[1]:
        both = [both[int(np.argmax(priority))]] * 2
    solmix = m.geom_solmix[both]
    weight = solmix[0] / solmix.sum() if solmix.sum() else 0.5
    solref = m.geom_solref[both]
    is_mixed = bool((solref[:, 0] > 0).all())
    m.pair_solref[k] = weight * solref[0] + (1 - weight) * solref[1] if is_mixed else solref.min(0)
    solimp = m.geom_solimp[both]
    m.pair_solimp[k] = weight * solimp[0] + (1 - weight) * solimp[1]
    m.pair_dim[k] = m.geom_condim[both].max()
    m.pair_friction[k] = m.geom_friction[both].max(0)[[0, 0, 1, 2, 2]]
    m.pair_margin[k] = m.geom_margin[[first, second]].sum()
    m.pair_gap[k] = m.geom_gap[both].max()
