"""MuJoCo's own messages: the known noise dropped, everything else a Python warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_KNOWN_NOISE = "settotalmass"


@contextmanager
def quiet_mujoco() -> Iterator[None]:
    """Routes MuJoCo's messages through `warnings` while a model is compiled.

    MuJoCo 4 reports the deprecated attribute `settotalmass` in Gymnasium's half-cheetah model at
    every compilation, on the terminal and in MUJOCO_LOG.TXT. A user can do nothing about it.
    """
    try:
        import mujoco
    except ModuleNotFoundError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_warn)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _warn(message: str) -> None:
    if _KNOWN_NOISE not in message:
        warnings.warn(f"MuJoCo: {message}", RuntimeWarning, stacklevel=2)
