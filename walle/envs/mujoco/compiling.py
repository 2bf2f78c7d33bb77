"""Compiles an XML file into a model, without searches that cannot find anything in it.

In every step MuJoCo searches for bodies whose boxes overlap, and only then leaves out the pairs
that may never touch. Where few pairs are left, as of a robot that touches nothing but the floor,
the search takes up to a fifth of a step. For models that Gymnasium ships the pairs are listed
instead.
"""

from __future__ import annotations

import copy
import warnings
from functools import cache
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import numpy.typing as npt

from walle.envs.mujoco_warnings import catch_mujoco_warnings
from walle.errors import ConfigError, nearest

_MODELS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
_MOST = 16  # pairs; with more of them a search is quicker
_TRIED = 400  # steps in which both models must agree


def xml_path(xml_file: str) -> Path:
    """Where an `xml_file` argument points, by Gymnasium's rule.

    A path that begins with `/`, `.` or `~` is the user's own file; any other name is a model that
    Gymnasium ships.

    Raises:
        ConfigError: Gymnasium ships no such model.
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
    """Compiles an XML file, without the searches that cannot find anything in this model.

    The search for islands is off with one kinematic tree, and the search for contacts is off where
    no two geoms may ever touch, or replaced by a list in models that Gymnasium ships. Trajectories
    stay the same bit for bit. Every call returns a new model.

    Raises:
        ConfigError: there is no file, MuJoCo does not accept it, or it has no actuators.
    """
    return copy.copy(_shipped(path)) if path.parent == _MODELS else _compiled(path)


@cache
def _shipped(path: Path) -> mujoco.MjModel:
    """A model that Gymnasium ships; lanes are also made while others wait for a round's last."""
    return _compiled(path)


def _compiled(path: Path) -> mujoco.MjModel:
    if not path.is_file():
        raise ConfigError(f"xml_file: there is no file at {path.absolute()}")
    caught = catch_mujoco_warnings()
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"xml_file: {path} does not load as a MuJoCo model: {reason}") from error
    caught.flush(str(path))
    if path.parent == _MODELS:
        model = with_listed_pairs(model, path)
        caught.pending.clear()  # of the same model compiled again, and of its trial
    if model.nu == 0:
        raise ConfigError(f"xml_file: {path} has no actuators, so there is no action to choose")
    if model.ntree == 1:
        # MuJoCo before this flag looks for islands only when asked to.
        model.opt.disableflags |= getattr(mujoco.mjtDisableBit, "mjDSBL_ISLAND", 0)
    if not may_touch(model):
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    return model


def pairs_that_may_touch(model: mujoco.MjModel) -> npt.NDArray[np.intp]:
    """The pairs of geoms [K, 2] that could be in contact, by MuJoCo's rules for filtering pairs.

    A pair is left out when its contact bits do not meet, when both belong to one rigid body, or
    when one's body is the other's parent and not the world.
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


def may_touch(model: mujoco.MjModel) -> bool:
    """Whether any two geoms could ever be in contact."""
    return bool(model.npair or model.nflex or len(pairs_that_may_touch(model)))


def with_listed_pairs(model: mujoco.MjModel, path: Path) -> mujoco.MjModel:
    """The model of that file with its pairs listed, or itself if that would not be quicker.

    Contacts have the order and the parameters of those that MuJoCo finds by itself, so trajectories
    stay the same bit for bit. The tests compare long trajectories of all of Gymnasium's models that
    have such pairs; a short one is compared here, because another version of MuJoCo may have other
    rules.
    """
    pairs = pairs_that_may_touch(model)
    if model.npair or model.nflex or model.nexclude or not 0 < len(pairs) <= _MOST:
        return model
    spec = mujoco.MjSpec.from_file(str(path))
    for number, geom in enumerate(spec.geoms):
        geom.name = geom.name or f"geom {number}"
        geom.contype = geom.conaffinity = 0
    with warnings.catch_warnings():  # they came when the model was compiled before
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
    for step in range(_TRIED):
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
