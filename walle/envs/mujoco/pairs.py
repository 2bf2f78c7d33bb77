"""Lists the pairs of geoms that may touch in a model, so that MuJoCo need not search for them.

MuJoCo looks in every step for bodies whose boxes overlap, and leaves out the pairs that may never
touch only then. Where few pairs are left, as of a robot that touches nothing but the floor, that
takes up to a fifth of a step.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import mujoco
import numpy as np
import numpy.typing as npt

_MOST = 16  # pairs; with more of them a search is quicker
_TRIED = 400  # steps in which both models must agree


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
    have such pairs; a short one is compared here, since another version of MuJoCo may have other
    rules.
    """
    pairs = pairs_that_may_touch(model)
    if model.npair or model.nflex or model.nexclude or not 0 < len(pairs) <= _MOST:
        return model
    spec = mujoco.MjSpec.from_file(str(path))
    for number, geom in enumerate(spec.geoms):
        geom.name = geom.name or f"geom {number}"
        geom.contype = geom.conaffinity = 0
    unlisted = _compiled(spec)
    for pair in pairs:
        first, second = (unlisted.geom(int(i)).name for i in pair)
        spec.add_pair(geomname1=first, geomname2=second)
    listed = _compiled(spec)
    for k in range(listed.npair):
        _set_parameters(listed, k, int(listed.pair_geom1[k]), int(listed.pair_geom2[k]))
    return listed if np.array_equal(_trajectory(listed), _trajectory(model)) else model


def _compiled(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """Compiles without the warnings, which the model was compiled with before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return spec.compile()


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
    """Gives a listed pair what MuJoCo gives a contact of these geoms (`mj_contactParam`)."""
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
