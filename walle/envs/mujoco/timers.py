"""Stops the timers inside of MuJoCo, which nobody reads here."""

from __future__ import annotations

import ctypes
from functools import cache

import mujoco


@cache
def stop_timers() -> None:
    """Makes MuJoCo's steps read no clock, in this process and from now on.

    MuJoCo's Python package sets the C variable `mjcb_time`, so that every step reads a clock some
    thirty times and adds up `MjData.timer`. That took 5% (Humanoid) to 27% (Reacher) of a step. No
    function of the package clears the variable: `set_mjcb_time(None)` sets the package's clock.
    A clock of the user's own stays.
    """
    if mujoco.get_mjcb_time() is not None:
        return
    library = ctypes.CDLL(mujoco._callbacks.__file__)  # it finds the variable in MuJoCo's own
    try:
        clock = ctypes.c_void_p.in_dll(library, "mjcb_time")
    except ValueError:  # the system looks for symbols otherwise: steps are only slower then
        return
    clock.value = None
