"""The canary: a short rollout that shows whether two machines compute the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

import numpy as np

from walle.sampling.sampler_process import SamplerTask, SlotFiller
from walle.sampling.slots import RolloutShape, Slot
from walle.types import STEP_FIELDS, Lag, PolicySnapshot

LANES, STEPS = 4, 32


def canary_task(task: SamplerTask) -> SamplerTask:
    """A sampler with the first lanes of the run, as they begin, for one round."""
    lanes = task.lanes[:LANES]
    return replace(task, lanes=lanes, lag=Lag(0), rounds=1, start=(), episodes_over=None, core=None)


def canary_shape(shape: RolloutShape, lanes: int) -> RolloutShape:
    """The shape of the canary's rollout, given any shape of the run."""
    return shape._replace(steps=STEPS, lanes=lanes, packed_lanes=0, lane_state=0)


def canary_snapshot(snapshot: PolicySnapshot) -> PolicySnapshot:
    """The policy of the canary."""
    return snapshot._replace(version=0, rollout_steps=STEPS, episodes=None)


def collected_here(task: SamplerTask, shape: RolloutShape, snapshot: PolicySnapshot) -> str:
    """The digest of the canary as this process collects it."""
    slot = Slot.empty(shape)
    with closing(SlotFiller(task)) as filler:
        filler.fill(slot, snapshot, 0)
    return digest(slot)


def digest(slot: Slot) -> str:
    """A digest of every number of a rollout: 16 hexadecimal digits."""
    rollout, found = slot.filled, hashlib.sha256()
    finals = np.where(rollout.ended[..., None], rollout.final_obs, 0)
    for name in STEP_FIELDS:
        values = finals if name == "final_obs" else getattr(rollout, name)
        found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:16]


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """What may explain different bits: the processor and the versions that differ, in words."""
    found = [
        f"{name} {theirs[name]} there, {ours[name]} here"
        for name in ours
        if ours[name] != theirs.get(name)
    ]
    return ", ".join(found) or "the environment may use random numbers besides its seed"
