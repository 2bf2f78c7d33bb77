"""From an XML file to a model, and from MuJoCo's warnings to Python's."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import mujoco

# Gymnasium's HalfCheetah uses an attribute that MuJoCo 4 calls deprecated. Nobody can act on it.
_HARMLESS = "compiler attribute 'settotalmass' is deprecated"


class MujocoWarnings:
    """Holds MuJoCo's warnings until it is safe to raise them as Python warnings.

    MuJoCo calls back from the middle of its C code, where a Python exception (a warning turned
    into an error, say) ends the process. So the callback only keeps the text, and whoever drives
    the physics calls `flush` afterwards. With a callback in place MuJoCo neither prints nor writes
    MUJOCO_LOG.TXT into the working directory.
    """

    def __init__(self) -> None:
        self.pending: list[str] = []

    def __call__(self, message: str) -> None:
        """MuJoCo's callback."""
        if not message.startswith(_HARMLESS):
            self.pending.append(message)

    def flush(self, where: str) -> None:
        """Issues a RuntimeWarning for every message held, each beginning with `where`."""
        messages, self.pending = self.pending, []
        for message in messages:
            warnings.warn(f"{where}: MuJoCo: {message}", RuntimeWarning, stacklevel=2)


def catch_warnings() -> MujocoWarnings:
    """Makes MuJoCo's warnings in this process go through a `MujocoWarnings`, and returns it.

    MuJoCo has one callback a process: all callers share it. A callback that somebody else has
    installed stays, and gets the warnings instead.
    """
    current = mujoco.get_mju_user_warning()
    if isinstance(current, MujocoWarnings):
        return current
    caught = MujocoWarnings()
    if current is None:
        mujoco.set_mju_user_warning(caught)
    return caught


def xml_path(xml_file: str) -> Path:
    """Where an `xml_file` argument points, by Gymnasium's rule.

    A path beginning with `/`, `.` or `~` is the user's; anything else is a model Gymnasium ships.

    Raises:
        FileNotFoundError: nothing is there.
    """
    if xml_file.startswith(("/", ".", "~")):
        path = Path(xml_file).expanduser()
    else:
        path = _gymnasium_models() / xml_file
    if not path.is_file():
        raise FileNotFoundError(
            f"xml_file={xml_file!r}: no file at {path.absolute()}. A model of your own needs a path "
            "that begins with '/', './' or '~'."
        )
    return path


def compile_model(path: Path) -> mujoco.MjModel:
    """Compiles an XML file, with island discovery off where that changes nothing but time.

    With one kinematic tree there is one island at most, so looking for islands gives the same
    trajectory, bit for bit, some percent later.

    Raises:
        ValueError: MuJoCo does not accept the file.
    """
    caught = catch_warnings()
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise ValueError(f"{path} does not load as a MuJoCo model: {error}") from error
    caught.flush(str(path))
    if model.ntree == 1:
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    return model


def _gymnasium_models() -> Path:
    spec = importlib.util.find_spec("gymnasium")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("gymnasium, whose MuJoCo models are needed, is not installed")
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"
