"""From an XML file to a compiled model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import mujoco
import numpy as np

from walle.envs.mujoco_warnings import catch_mujoco_warnings
from walle.errors import ConfigError, nearest


def xml_path(xml_file: str) -> Path:
    """Where an `xml_file` argument points, by Gymnasium's rule.

    A path beginning with `/`, `.` or `~` is the user's; anything else is a model Gymnasium ships.

    Raises:
        ConfigError: Gymnasium ships no such model.
    """
    if xml_file.startswith(("/", ".", "~")):
        return Path(xml_file).expanduser()
    directory = _gymnasium_models()
    if not (directory / xml_file).is_file():
        hint = nearest(xml_file, (path.name for path in directory.glob("*.xml")))
        raise ConfigError(
            f"xml_file={xml_file!r} is not a model that Gymnasium ships; {hint} The path of a "
            "model of your own begins with '/', './' or '~'"
        )
    return directory / xml_file


def compile_model(path: Path) -> mujoco.MjModel:
    """Compiles an XML file, with off whatever changes nothing but time, bit for bit.

    With one kinematic tree there is one island at most, so none need be looked for; and where no
    two geoms may ever touch, no contacts need be.

    Raises:
        ConfigError: there is no file, MuJoCo does not accept it, or nothing in it can be moved.
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
        # Older MuJoCo has no such flag, and looks for islands only when asked to.
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


def _gymnasium_models() -> Path:
    spec = importlib.util.find_spec("gymnasium")
    if spec is None or spec.origin is None:
        raise ConfigError("gymnasium, whose MuJoCo models are needed, is not installed")
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"
