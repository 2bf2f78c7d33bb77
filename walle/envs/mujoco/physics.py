"""The physics of L lanes of one model: step them, start episodes, read MuJoCo's fields.

Two engines give bit-identical trajectories. `BatchPhysics` calls MuJoCo 4's batch loop in C.
`LoopPhysics` keeps one MjData a lane and loops in Python; it serves older MuJoCo versions, models
with sleeping or plugins, and fields that `mj_step` does not compute.
"""

from __future__ import annotations

import ctypes
import importlib.util
import warnings
from functools import cache
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from walle.errors import ConfigError, nearest
from walle.types import AnyArray, IntArray

Array = npt.NDArray[np.float64]

# Fields that mj_step does not compute, and the function that computes them after it.
_AFTER_STEP = {
    "cacc": mujoco.mj_rnePostConstraint,
    "cfrc_int": mujoco.mj_rnePostConstraint,
    "cfrc_ext": mujoco.mj_rnePostConstraint,
    "subtree_linvel": mujoco.mj_subtreeVel,
    "subtree_angmom": mujoco.mj_subtreeVel,
}
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_ARENA = ("efc_", "efm_", "iefc_", "iacc", "ifrc_", "island_", "map_", "dof_island", "tree_island")
# Gymnasium's half-cheetah model uses an attribute that MuJoCo 4 reports as deprecated at every
# compilation, on the terminal and in MUJOCO_LOG.TXT. A user can do nothing about it.
_KNOWN_NOISE = "compiler attribute 'settotalmass' is deprecated"
pending_warnings: list[str] = []  # see `catch_mujoco_warnings`


class Fields:
    """MuJoCo's arrays for all lanes: `fields.qpos` is [L, nq], `fields.xpos` [L, nbody, 3].

    Names are MjData's. Values are those after `mj_step`: `qpos` and `qvel` are the new state, and
    all that MuJoCo derives from them belongs to the start of the last substep.
    """

    def __init__(self, arrays: dict[str, Array]) -> None:
        for name, array in arrays.items():
            view = array.view()  # read-only: the array may be the simulation's own state
            view.flags.writeable = False
            self.__dict__[name] = view

    def rows(self, rows: slice) -> Fields:
        """The arrays of some of the lanes."""
        return Fields({name: array[rows] for name, array in self.__dict__.items()})

    def __getattr__(self, name: str) -> Array:
        """Raises: Python calls this only for a field that is not kept."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"field {name!r} is not among those kept here: {', '.join(self.__dict__)}. Name it in "
            "the robot's `fields`, and in `remembers` for its value from before the step"
        )


class BatchPhysics:
    """All lanes in one call of `mujoco.batch`."""

    saves = True  # `state` holds everything that the lanes' future depends on

    def __init__(self, model: mujoco.MjModel, lanes: int, fields: tuple[str, ...]) -> None:
        from mujoco.batch import Batch

        self._batch: Any = Batch(model, lanes, nthread=1)
        self._ctrl: Array = self._batch.bind("ctrl")
        self._qpos: Array = self._batch.bind("qpos")
        self._qvel: Array = self._batch.bind("qvel")
        self.fields = Fields({name: self._batch.bind(name) for name in fields})  # live views
        self._state: Array = self._batch.state
        self._fresh_state: Array = self._state[0].copy()

    def step(self, action: AnyArray, substeps: int, lanes: IntArray | None = None) -> None:
        """Sets the controls of all lanes, [L, nu], and advances `lanes` (None: all) in time."""
        self._ctrl[:] = action
        self._batch.step(lanes, substeps)

    def reset(self, lanes: IntArray, qpos: Array, qvel: Array) -> None:
        """Puts `lanes` into fresh states: time 0, no warm start, `qpos` [n, nq], `qvel` [n, nv]."""
        self._state[lanes] = self._fresh_state
        self._qpos[lanes] = qpos
        self._qvel[lanes] = qvel
        self._batch.forward(lanes)

    def state(self) -> Array:
        """MuJoCo's mjSTATE_INTEGRATION of every lane, warm start included: [L, K]."""
        return self._state.copy()

    def restore(self, state: Array) -> None:
        """Continues from a `state`; derived fields are correct after the next step."""
        self._state[:] = state

    def warned(self) -> list[int]:
        """The lanes in which MuJoCo has counted a warning."""
        return [i for i, counters in enumerate(self._batch.warning) if counters[:, 1].any()]


class LoopPhysics:
    """One persistent MjData a lane, stepped in a Python loop."""

    def __init__(self, model: mujoco.MjModel, lanes: int, fields: tuple[str, ...]) -> None:
        self._model = model
        self._datas = [mujoco.MjData(model) for _ in range(lanes)]
        # Sleeping trees and the data of plugins are not part of MuJoCo's state.
        self.saves = not _has_hidden_state(model)
        self._after = list({id(f): f for f in map(_AFTER_STEP.get, fields) if f}.values())
        # Making a view costs more than copying it, and a call costs more than the numbers it
        # copies. So views are made once, and one concatenation fetches all fields of a lane.
        self._ctrls = [data.ctrl for data in self._datas]
        self._sources = [[getattr(d, name).reshape(-1) for name in fields] for d in self._datas]
        self._rows: Array = np.empty((lanes, sum(source.size for source in self._sources[0])))
        columns, start = {}, 0
        for name in fields:
            array = getattr(self._datas[0], name)
            columns[name] = self._rows[:, start : start + array.size].reshape(lanes, *array.shape)
            start += array.size
        self.fields = Fields(columns)

    def step(self, action: AnyArray, substeps: int, lanes: IntArray | None = None) -> None:
        """See `BatchPhysics.step`."""
        model, step = self._model, mujoco.mj_step
        for i in range(len(self._datas)) if lanes is None else lanes:
            data = self._datas[i]
            self._ctrls[i][:] = action[i]
            step(model, data, substeps)
            for compute in self._after:
                compute(model, data)
            np.concatenate(self._sources[i], out=self._rows[i])

    def reset(self, lanes: IntArray, qpos: Array, qvel: Array) -> None:
        """See `BatchPhysics.reset`."""
        for i, lane_qpos, lane_qvel in zip(lanes, qpos, qvel, strict=True):
            data = self._datas[i]
            mujoco.mj_resetData(self._model, data)
            data.qpos[:] = lane_qpos
            data.qvel[:] = lane_qvel
            mujoco.mj_forward(self._model, data)
            np.concatenate(self._sources[i], out=self._rows[i])

    def state(self) -> Array:
        """See `BatchPhysics.state`."""
        rows: Array = np.empty((len(self._datas), mujoco.mj_stateSize(self._model, _STATE)))
        for data, row in zip(self._datas, rows, strict=True):
            mujoco.mj_getState(self._model, data, row, _STATE)
        return rows

    def restore(self, state: Array) -> None:
        """See `BatchPhysics.restore`."""
        for data, row in zip(self._datas, state, strict=True):
            mujoco.mj_setState(self._model, data, row, _STATE)

    def warned(self) -> list[int]:
        """See `BatchPhysics.warned`."""
        return [i for i, d in enumerate(self._datas) if any(w.number for w in d.warning)]


def make_physics(
    model: mujoco.MjModel, lanes: int, fields: tuple[str, ...]
) -> BatchPhysics | LoopPhysics:
    """The fastest engine that computes `fields` as `mj_step` on a persistent MjData would.

    Raises:
        ConfigError: a field does not exist, has no fixed size, or is never computed.
    """
    data = mujoco.MjData(model)
    arrays = [name for name in dir(data) if isinstance(getattr(data, name, None), np.ndarray)]
    for name in fields:
        if name not in arrays:
            hint = nearest(name, arrays)
            raise ConfigError(f"field {name!r} is not an array of MuJoCo's MjData; {hint}")
        if name.startswith(_ARENA):
            raise ConfigError(f"field {name!r} changes its size with the contacts: it has no batch")
        if getattr(data, name).size == 0:
            raise ConfigError(f"field {name!r} has no entries in this model")
        if name == "qfrc_inverse":
            raise ConfigError(f"field {name!r} is not computed by mj_step: it is always zero")
    stop_timers()
    # Such a model or field needs an MjData of its own for every lane.
    if not batch_available() or _has_hidden_state(model) or _AFTER_STEP.keys() & set(fields):
        return LoopPhysics(model, lanes, fields)
    return BatchPhysics(model, lanes, fields)


def _has_hidden_state(model: mujoco.MjModel) -> bool:
    sleeps = model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP
    return bool(sleeps or model.nplugin)


@cache
def stop_timers() -> None:
    """Makes MuJoCo's steps read no clock, in this process and from now on.

    MuJoCo's Python package sets the C variable `mjcb_time`, so that every step reads a clock some
    thirty times and adds up `MjData.timer` (`benchmarks/physics.py` measures the cost). No
    function of the package clears the variable: `set_mjcb_time(None)` sets the package's clock.
    A user's own clock stays.
    """
    variable = clock_variable()
    if variable is not None and mujoco.get_mjcb_time() is None:
        variable.value = None


def clock_variable() -> ctypes.c_void_p | None:
    """MuJoCo's `mjcb_time`; None where the system does not find it."""
    library = ctypes.CDLL(mujoco._callbacks.__file__)  # which loads MuJoCo's own library
    try:
        return ctypes.c_void_p.in_dll(library, "mjcb_time")
    except ValueError:
        return None


def batch_available() -> bool:
    """Whether the installed MuJoCo steps many simulations in one call, as 4.0 and later do."""
    return importlib.util.find_spec("mujoco.batch") is not None


def catch_mujoco_warnings() -> None:
    """Diverts MuJoCo's warnings, in this process and from now on, into `pending_warnings`.

    MuJoCo calls back from the middle of its C code, where a Python exception ends the process, and
    a warning is an exception under `python -W error`. So the callback only keeps the text, and the
    caller of the physics issues it. A callback that another program installed stays.
    """
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_keep_warning)


def _keep_warning(message: str) -> None:
    if not message.startswith(_KNOWN_NOISE):
        pending_warnings.append(message)


def issue_mujoco_warnings(where: str) -> None:
    """Issues a RuntimeWarning for every pending warning, each starting with `where`."""
    messages = pending_warnings.copy()
    pending_warnings.clear()
    for message in messages:
        warnings.warn(f"{where}: MuJoCo: {message}", RuntimeWarning, stacklevel=3)
