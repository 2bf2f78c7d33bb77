"""Turns MuJoCo's messages into Python warnings, except one that no user can act on."""

from __future__ import annotations

import warnings

# Gymnasium's half-cheetah model uses an attribute that MuJoCo 4 reports as deprecated at every
# compilation, on the terminal and in MUJOCO_LOG.TXT. A user can do nothing about it.
_KNOWN_NOISE = "compiler attribute 'settotalmass' is deprecated"


class MujocoWarnings:
    """MuJoCo's warnings, held until it is safe to issue them.

    MuJoCo calls back from the middle of its C code, where a Python exception ends the process, and
    a warning is an exception under `python -W error`. So the callback only keeps the text, and the
    caller of the physics looks at `pending` and calls `flush`.
    """

    def __init__(self) -> None:
        self.pending: list[str] = []

    def __call__(self, message: str) -> None:
        """Keeps a message; MuJoCo calls this."""
        if not message.startswith(_KNOWN_NOISE):
            self.pending.append(message)

    def flush(self, where: str) -> None:
        """Issues a RuntimeWarning for every message held, each beginning with `where`."""
        messages, self.pending = self.pending, []
        for message in messages:
            warnings.warn(f"{where}: MuJoCo: {message}", RuntimeWarning, stacklevel=3)


def catch_mujoco_warnings() -> MujocoWarnings:
    """Diverts MuJoCo's warnings, in this process and from now on, into the object returned.

    MuJoCo has one callback a process, so all callers share one object. A callback that another
    program installed stays in place and keeps receiving the warnings; so this object receives none,
    as where MuJoCo is not installed.
    """
    try:
        import mujoco
    except ModuleNotFoundError:
        return MujocoWarnings()
    current = mujoco.get_mju_user_warning()
    if isinstance(current, MujocoWarnings):
        return current
    caught = MujocoWarnings()
    if current is None:
        mujoco.set_mju_user_warning(caught)
    return caught
