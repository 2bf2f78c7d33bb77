"""Stops the timers inside of MuJoCo, which nobody reads here."""

from __future__ import annotations

import ctypes
from functools import cache

import mujoco


@cache
def stop_timers() -> None:
    """Makes MuJoCo's steps read no clock, in this process and from now on.

    MuJoCo's Python package sets the C variable `mjcb_time`, so that every step reads a clock some
    thirty times and adds up `MjData.timer` (`benchmarks/physics.py` says what that takes). No
    function of the package clears the variable: `set_mjcb_time(None)` sets the package's clock.
    A clock of the user's own stays.
    """
    variable = clock_variable()
    if variable is not None and mujoco.get_mjcb_time() is None:
        variable.value = None


def clock_variable() -> ctypes.c_void_p | None:
    """MuJoCo's `mjcb_time`; None where the system does not find it."""
    library = ctypes.CDLL(mujoco._callbacks.__file__)  # which finds it in MuJoCo's own library
    try:
        return ctypes.c_void_p.in_dll(library, "mjcb_time")
    except ValueError:
        return None
