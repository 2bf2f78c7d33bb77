"""The slow environment waits as long as it is told; its delays are part of a lane's state."""

import time

import numpy as np
import pytest

from walle.config import compose
from walle.envs import EnvSpec, make_lanes, slow
from walle.errors import ConfigError

SLOW = "walle.envs.slow:Slow-v0"
PUSH = np.zeros((1, 1), np.float32)


@pytest.fixture
def waited(monkeypatch):
    """Seconds of every wait; nothing really waits."""
    found = []
    monkeypatch.setattr(slow.time, "sleep", found.append)
    return found


def steps(lanes, number):
    """The observations of some steps."""
    return [lanes.step(PUSH).obs.tolist() for _ in range(number)]


def lane(number=0, **kwargs):
    lanes = make_lanes(EnvSpec(SLOW, kwargs), [number], 3)
    lanes.reset()
    return lanes


def test_without_a_deviation_every_step_takes_the_same(waited):
    steps(lane(step_ms=20), 3)
    assert waited == [0.02] * 3


def test_delays_have_the_mean_and_the_deviation_that_were_asked_for(waited):
    steps(lane(step_ms=20, step_ms_std=10), 20_000)
    assert np.mean(waited) == pytest.approx(0.020, rel=0.02)
    assert np.std(waited) == pytest.approx(0.010, rel=0.05)
    assert min(waited) > 0
    assert np.std(np.log(waited)) == pytest.approx(np.sqrt(np.log(1.25)), rel=0.02)  # log-normal


def test_a_lane_waits_the_same_in_every_run_and_no_two_lanes_do(waited):
    for number in (0, 0, 1):
        steps(lane(number, step_ms=20, step_ms_std=10), 5)
    assert waited[:5] == waited[5:10] != waited[10:]


def test_delays_do_not_change_what_a_lane_observes(waited):
    assert steps(lane(step_ms=20, step_ms_std=10), 5) == steps(lane(step_ms=20), 5)


def test_a_lane_that_goes_on_elsewhere_waits_as_it_would_have(waited):
    first = lane(step_ms=20, step_ms_std=10)
    steps(first, 3)
    state = first.state()
    del waited[:]
    expected = steps(first, 5)
    other = lane(7, step_ms=20, step_ms_std=10)
    other.restore(state)
    assert steps(other, 5) == expected
    assert waited[:5] == waited[5:]


def test_the_setting_reaches_the_environment():
    config = compose(["env=slow", "env.step_ms=20", "env.step_ms_std=10"])
    assert config.env.kwargs == {"step_ms": 20.0, "step_ms_std": 10.0}
    with pytest.raises(ConfigError, match=r"env.step_ms_std=-1.0 must not be negative"):
        compose(["env=slow", "env.step_ms_std=-1"])


def test_it_really_waits():
    lanes = lane(step_ms=2)
    began = time.monotonic()
    steps(lanes, 5)
    assert time.monotonic() - began >= 0.01
