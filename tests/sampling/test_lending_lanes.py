"""Lanes that are lent in mid-round: who steps them leaves no trace in the rollout."""

import numpy as np
import pytest
import torch

from walle.envs import EnvSpec, make_lanes
from walle.nets.policies import GaussianPolicy
from walle.sampling.actor import Actor
from walle.sampling.lane_group import LaneGroup
from walle.sampling.sampler import LaneSampler
from walle.sampling.slots import RolloutShape, Slot
from walle.timing import SAMPLER_SECTIONS, Timer
from walle.types import STEP_FIELDS, PolicySnapshot

LANES, STEPS, OBS, ACTIONS = 5, 12, 17, 6


class Lends:
    """Lends the last two lanes at step 7 of every round; `returns` them stepped elsewhere."""

    def __init__(self, policy, *, returns):
        self._policy, self._returns = policy, returns
        self.rollout = self.round = None

    def asked(self, step):
        return step == 7

    def lend(self, states, step):
        self._states, self._step = states, step
        return 3

    def take_back(self, lanes):
        if not self._returns:
            return None
        part = self.rollout.columns(LANES - lanes, LANES)
        group = make_group(self._policy)([3, 4])
        states, timer = self._states.of(slice(3, 5)), Timer(SAMPLER_SECTIONS)
        return group.go_on(states, snapshot(self._policy), part, self.round, self._step, timer)


def make_group(policy):
    def make(numbers):
        lanes = make_lanes(EnvSpec("HalfCheetah-v5"), numbers, seed=7)
        return LaneGroup(lanes, Actor(policy, OBS, len(numbers), 10.0), numbers, seed=7)

    return make


def snapshot(policy):
    vector = policy.init(torch.Generator().manual_seed(0)).numpy()
    return PolicySnapshot(0, np.concatenate((vector, np.repeat(np.float32([0, 1]), OBS))))


def collected(returns):
    policy = GaussianPolicy(OBS, ACTIONS, (8,), torch.tanh, -0.5)
    lender = None if returns is None else Lends(policy, returns=returns)
    sampler = LaneSampler(make_group(policy), range(LANES), lender=lender)
    found = []
    for round_ in range(3):
        slot = Slot.empty(RolloutShape(STEPS, LANES, (OBS,), "float32", (ACTIONS,), "float32"))
        if lender:
            lender.rollout, lender.round = slot.rollout, round_
        sampler.fill(slot.rollout, snapshot(policy), round_, Timer(SAMPLER_SECTIONS))
        found.append(slot.rollout)
    sampler.close()
    return found


@pytest.mark.parametrize("returns", [True, False])
def test_lent_lanes_leave_no_trace(returns):
    for rollout, expected in zip(collected(returns), collected(None), strict=True):
        for name in (*STEP_FIELDS, "lane", "state"):
            np.testing.assert_array_equal(getattr(rollout, name), getattr(expected, name))
