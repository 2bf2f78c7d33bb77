"""Lanes go on bit for bit from any rows of a state, in whatever lanes the rows are put."""

import numpy as np
import pytest

from walle.envs import EnvSpec, make_lanes
from walle.envs.mujoco.physics import BatchPhysics, LoopPhysics

BEFORE, AFTER = 45, 60
MOVED = [3, 0, 4]  # the lanes that go on elsewhere

SPECS = {
    "batched MuJoCo": EnvSpec("HalfCheetah-v5", episode_limit=50),
    "looped MuJoCo": EnvSpec("Ant-v5", episode_limit=50),
    "remembered": EnvSpec("Humanoid-v5"),
    "own robot": EnvSpec("tests.toy_robot:ROBOT"),
    "own looped robot": EnvSpec("tests.toy_robot:LOOPED"),
    "frame skip and clock": EnvSpec("Hopper-v5", frame_skip=2, time_feature=True, episode_limit=80),
    "pickled": EnvSpec("CartPole-v1"),
    "pickled, with a clock": EnvSpec("CartPole-v1", frame_skip=2, time_feature=True),
    "own environment": EnvSpec("tests.toy:Season-v0"),
    "replayed": EnvSpec("LunarLander-v3", saving="replay", episode_limit=50),
    "replayed, real actions": EnvSpec(
        "LunarLander-v3", {"continuous": True}, saving="replay", episode_limit=50
    ),
    "replayed, with a clock": EnvSpec(
        "LunarLander-v3", saving="replay", frame_skip=3, time_feature=True
    ),
    "replayed MuJoCo": EnvSpec("Hopper-v5", backend="gymnasium", saving="replay"),
    "replayed own environment": EnvSpec("tests.toy:Locked-v0", saving="replay"),
}


def actions_of(lanes, steps):
    random, space = np.random.default_rng(0), lanes.action_space
    shape = (steps, len(lanes), *space.shape)
    if np.issubdtype(space.dtype, np.integer):
        return random.integers(space.n, size=shape)
    return random.uniform(-1, 1, shape).astype(np.float32)


def future(lanes, actions):
    """All that the lanes give, as arrays by lane; last observations of episodes only."""
    steps = []
    for action in actions:
        step = lanes.step(action)
        ended = step.terminated | step.truncated
        final = np.zeros_like(step.obs) if step.final_obs is None else step.final_obs.copy()
        final[~ended] = 0
        steps.append([np.array(x) for x in (*step[:4], final)])
    return [np.stack(x) for x in zip(*steps, strict=True)]


def moved(spec, after_reset=False):
    """Lanes that go on from rows of other lanes, these lanes, and the actions to come."""
    ours = make_lanes(spec, range(5), seed=0)
    actions = actions_of(ours, BEFORE + AFTER)
    ours.reset()
    for action in [] if after_reset else actions[:BEFORE]:
        ours.step(action)
    theirs = make_lanes(spec, range(20, 20 + len(MOVED)), seed=9)
    theirs.restore(ours.state()[MOVED])
    return ours, theirs, actions[BEFORE:]


@pytest.mark.parametrize("after_reset", [False, True])
@pytest.mark.parametrize("kind", SPECS)
def test_rows_of_a_state_go_on_in_other_lanes_bit_for_bit(kind, after_reset):
    ours, theirs, actions = moved(SPECS[kind], after_reset)
    expected, found = future(ours, actions), future(theirs, actions[:, MOVED])
    for whole, part in zip(expected, found, strict=True):
        assert part.tobytes() == np.ascontiguousarray(whole[:, MOVED]).tobytes()
    _, _, terminated, truncated, _ = found
    assert (terminated | truncated).any(), "no episode ended, so its successor was not compared"
    ours.close()
    theirs.close()


@pytest.mark.parametrize("kind", ["batched MuJoCo", "own robot", "pickled", "replayed"])
def test_a_state_can_be_handed_on_without_a_step_between(kind):
    ours, theirs, actions = moved(SPECS[kind])
    again = make_lanes(SPECS[kind], range(30, 33), seed=11)
    again.restore(theirs.state())
    expected, found = future(ours, actions), future(again, actions[:, MOVED])
    for whole, part in zip(expected, found, strict=True):
        assert part.tobytes() == np.ascontiguousarray(whole[:, MOVED]).tobytes()


@pytest.mark.parametrize("kind", ["frame skip and clock", "pickled", "replayed"])
def test_zeros_at_the_end_of_a_row_change_nothing(kind):
    """Rows of a pickle differ in their lengths, and a slot has room for more."""
    ours, theirs, actions = moved(SPECS[kind])
    if kind != "frame skip and clock":
        theirs.restore(np.pad(ours.state()[MOVED], ((0, 0), (0, 64))))
    expected, found = future(ours, actions)[0], future(theirs, actions[:, MOVED])[0]
    assert found.tobytes() == np.ascontiguousarray(expected[:, MOVED]).tobytes()


def test_a_reset_after_restoring_begins_the_episodes_that_would_have_come():
    for spec in (SPECS["batched MuJoCo"], SPECS["pickled"], SPECS["replayed"]):
        ours, theirs, _ = moved(spec)
        assert theirs.reset().tobytes() == ours.reset()[MOVED].tobytes()


def test_the_two_engines_of_mujoco_are_both_tried():
    engines = {"batched MuJoCo": BatchPhysics, "looped MuJoCo": LoopPhysics}
    engines |= {"own robot": BatchPhysics, "own looped robot": LoopPhysics}
    for kind, engine in engines.items():
        lanes = make_lanes(SPECS[kind], [0], seed=0)
        assert isinstance(lanes._inner._physics, engine)
