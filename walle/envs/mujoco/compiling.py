"""Compiles an XML file into a model."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import gymnasium
import mujoco

from walle.envs.mujoco.pairs import may_touch, with_listed_pairs
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
    no two geoms may ever touch, or replaced by a list in models that Gymnasium ships. Trajectories
    stay the same bit for bit. Every call gives a model of its own.

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
