"""Compiles an XML file into a model."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import mujoco
import numpy as np

from walle.envs.mujoco_warnings import catch_mujoco_warnings
from walle.errors import ConfigError, nearest

_MODELS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"


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
    no two geoms may ever touch. Trajectories stay the same bit for bit.

    Raises:
        ConfigError: there is no file, MuJoCo does not accept it, or it has no actuators.
    """
    if not path.is_file():
        raise ConfigError(f"xml_file: there is no file at {path.absolute()}")
    caught = catch_mujoco_warnings()
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"xml_file: {path} does not load as a MuJoCo model: {reason}") from error
    caught.flush(str(path))
    if model.nu == 0:
        raise ConfigError(f"xml_file: {path} has no actuators, so there is no action to choose")
    if model.ntree == 1:
        # MuJoCo before this flag looks for islands only when asked to.
        model.opt.disableflags |= getattr(mujoco.mjtDisableBit, "mjDSBL_ISLAND", 0)
    if not may_touch(model):
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    return model


def may_touch(model: mujoco.MjModel) -> bool:
    """Whether any two geoms could ever be in contact, by MuJoCo's rules for filtering pairs.

    A pair is left out when its contact bits do not meet, when both belong to one rigid body, or
    when one's body is the other's parent and not the world.
    """
    if model.npair or model.nflex:
        return True
    types, affinities = model.geom_contype, model.geom_conaffinity
    meet = types[:, None] & affinities[None] != 0
    meet |= meet.T
    body = model.body_weldid[model.geom_bodyid]
    parent = model.body_weldid[model.body_parentid[body]]
    family = (body[:, None] == parent[None]) & (body[:, None] != 0)
    if model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_FILTERPARENT:
        family[:] = False
    apart = (body[:, None] == body[None]) | family | family.T
    return bool(np.any(meet & ~apart))
