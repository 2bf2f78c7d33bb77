"""What a trial finds out about an environment."""

import time

import numpy as np
import pytest

from walle.envs import EnvSpec, gymnasium_lanes, make_lanes, probe
from walle.errors import ConfigError

LOCKED = "tests.toy:Locked-v0"


@pytest.mark.parametrize(
    ("spec", "saving"),
    [
        (EnvSpec("HalfCheetah-v5"), "pickle"),
        (EnvSpec("CartPole-v1"), "pickle"),
        (EnvSpec("FrozenLake-v1"), "pickle"),
        (EnvSpec("Blackjack-v1"), "pickle"),  # its observations are flattened
        (EnvSpec("tests.toy:Season-v0"), "pickle"),
        (EnvSpec("LunarLander-v3"), "replay"),
        (EnvSpec("Hopper-v5", backend="gymnasium"), "replay"),  # its pickle begins anew
        (EnvSpec(LOCKED), "replay"),
        (EnvSpec(LOCKED, {"leaves": 3}), "none"),
    ],
)
def test_the_way_to_save_an_environment_is_the_first_that_goes_on_exactly(spec, saving):
    found = probe.probe(spec, seed=0)
    assert found.env.saving == saving
    assert (found.state_bytes == 0) == (found.unsaved != "") == (saving == "none")


def test_why_a_state_cannot_be_saved_is_told():
    unsaved = probe.probe(EnvSpec(LOCKED, {"leaves": 3}), seed=0).unsaved
    assert "the same actions led to another observation than before" in unsaved


def test_an_episode_that_depends_on_the_one_before_cannot_be_replayed(monkeypatch):
    def dump(env):
        raise TypeError("cannot pickle it")

    monkeypatch.setattr("walle.envs.saving.dump", dump)
    assert probe.probe(EnvSpec("tests.toy:Season-v0"), seed=0).env.saving == "none"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["BipedalWalker-v3", "BipedalWalkerHardcore-v3"])
def test_a_world_that_keeps_something_of_earlier_episodes_is_found_out(name, seed):
    """After a few episodes the same actions give the same observation, but not for ever."""
    assert probe.probe(EnvSpec(name), seed).env.saving == "none"


@pytest.mark.parametrize("limit", [1500, None])
def test_there_is_room_for_all_actions_of_a_long_episode(limit):
    """A state that does not fit is never handed over, so all actions of the run would pile up."""
    spec = EnvSpec(LOCKED, {"limit": 1500}, episode_limit=limit, frame_skip=2)
    found = probe.probe(spec, seed=0)
    lanes = make_lanes(found.env, [0], seed=0)
    lanes.reset()
    for _ in range(749):
        lanes.step(np.zeros((1, 1), np.float32))
    assert lanes.state().shape[1] <= found.state_bytes


@pytest.mark.parametrize(("entry_bytes", "saving"), [(100, "pickle"), (100_000, "replay")])
def test_there_is_room_for_what_an_environment_remembers_of_a_long_episode(entry_bytes, saving):
    """As above: else all actions of the run would pile up, and be repeated when it is resumed."""
    spec = EnvSpec("tests.toy:Diary-v0", {"entry_bytes": entry_bytes}, episode_limit=500)
    found = probe.probe(spec, seed=0)
    assert found.env.saving == saving
    lanes = make_lanes(found.env, [0], seed=0)
    lanes.reset()
    for _ in range(499):
        lanes.step(np.zeros(1, np.int64))
    assert lanes.state().shape[1] <= found.state_bytes


@pytest.mark.parametrize(
    ("spec", "exact", "saving"),
    [
        (EnvSpec("CartPole-v1"), True, "pickle"),
        (EnvSpec("HalfCheetah-v5"), True, "pickle"),
        (EnvSpec("BipedalWalker-v3"), True, "none"),
        (EnvSpec("tests.toy:Lottery-v0"), False, "pickle"),
        (EnvSpec("tests.toy:Lottery-v0", {"begins": 6}), False, "pickle"),
        (EnvSpec("tests.toy:Numbered-v0"), False, "pickle"),
        (EnvSpec(LOCKED, {"leaves": 3}), False, "none"),
    ],
)
def test_environments_that_differ_with_equal_seeds_are_found_out(spec, exact, saving):
    """They draw from global generators, or share state."""
    state = np.random.get_state()[1].tolist()
    found = probe.probe(spec, seed=0).env
    assert (found.exact, found.saving) == (exact, saving)
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize("leaves", [None, 3])
def test_every_environment_of_a_trial_is_closed(tmp_path, leaves):
    told = tmp_path / "told"
    probe.probe(EnvSpec(LOCKED, {"told": str(told), "leaves": leaves}), seed=0)
    lines = told.read_text().splitlines()
    assert lines.count("made") == lines.count("closed") >= 4


def test_a_trial_of_a_slow_environment_is_short(monkeypatch):
    naps, sleep = [], time.sleep
    monkeypatch.setattr(time, "sleep", lambda s: naps.append(sleep(s)))
    found = probe.probe(EnvSpec("walle.envs.slow:Slow-v0", {"step_ms": 100}), seed=0)
    assert len(naps) <= 10  # a whole trial takes 62 steps
    assert found.env.saving == "pickle"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"raise_at": 1}, "the gearbox broke"), ({"nonsense": 1}, "nonsense")],
)
def test_an_environment_that_fails_is_refused(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        probe.probe(EnvSpec("tests.toy:Counter-v0", kwargs), seed=0)


@pytest.mark.parametrize("name", ["step", "reset"])
def test_an_environment_of_the_old_gym_is_refused_with_the_fix(monkeypatch, name):
    def of_gym(self, *action):
        return np.zeros(1, np.float32), 0.0, False, {}

    monkeypatch.setattr(f"tests.toy.Counter.{name}", of_gym)
    with pytest.raises(ConfigError, match=r"In Gymnasium step\(action\) returns obs, reward, term"):
        probe.probe(EnvSpec("tests.toy:Counter-v0"), seed=0)


def test_a_fault_after_many_steps_is_left_to_the_run():
    spec = EnvSpec("tests.toy:Counter-v0", {"raise_at": 9})
    assert probe.probe(spec, seed=0).env.saving == "none"


def test_flattened_observations_are_those_of_gymnasiums_wrapper():
    import gymnasium as gym

    ours = gymnasium_lanes.make_env(EnvSpec("Blackjack-v1"))
    theirs = gym.wrappers.FlattenObservation(gym.make("Blackjack-v1"))
    assert ours.observation_space == theirs.observation_space
    for seed in range(5):
        np.testing.assert_array_equal(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
