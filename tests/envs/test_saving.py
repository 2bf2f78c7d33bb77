"""States: pickled environments, episodes that are replayed, generators."""

import builtins
import os
import pickle
import sys

import gymnasium as gym
import numpy as np
import pytest

from tests import toy
from walle.envs import EnvSpec, make_lanes, saving
from walle.envs.gymnasium_lanes import GymnasiumLanes, make_env
from walle.envs.saving import pack, unpack
from walle.errors import RestoreError

CARTPOLE = EnvSpec("CartPole-v1")
CARTPOLE_MODULE = "gymnasium.envs.classic_control.cartpole"


class Asks:
    """Its pickle calls a function when it is loaded."""

    def __init__(self, function, *arguments):
        self._asked = function, arguments

    def __reduce__(self):
        return self._asked


def asking_for(module, name):
    """A pickle that loads `name` from `module`, which need not be imported here."""
    return f"c{module}\n{name}\n.".encode()


def test_a_pickled_environment_goes_on_whatever_follows_it():
    env = make_env(CARTPOLE)
    env.reset(seed=3)
    env.step(1)
    loaded = saving.load(saving.dump(env) + b"\0" * 100, make_env(CARTPOLE))
    for _ in range(5):
        assert env.step(0)[0].tobytes() == loaded.step(0)[0].tobytes()


@pytest.mark.parametrize(
    "function",
    [os.system, builtins.eval, builtins.exec, builtins.getattr, builtins.__import__, open],
)
def test_a_pickle_that_asks_for_a_function_is_refused(function):
    with pytest.raises(RestoreError, match=r"cannot be loaded: .* is no part of"):
        saving.load(pickle.dumps(Asks(function, "1")), make_env(CARTPOLE))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("subprocess", "Popen"),
        ("gymnasium.envs.registration", "make"),  # a function of a module that CartPole's has
        (CARTPOLE_MODULE, "np.load"),
        (CARTPOLE_MODULE, "logger"),
        (CARTPOLE_MODULE, "DependencyNotInstalled"),  # a class that such a module imports
        ("torch.serialization", "load"),
    ],
)
def test_a_pickle_may_load_only_classes_of_the_environments_own_modules(module, name):
    with pytest.raises(RestoreError, match=f"{module}.{name} is no part of this environment"):
        saving.load(asking_for(module, name), make_env(CARTPOLE))


def test_a_refused_module_is_not_even_imported():
    assert "this" not in sys.modules
    with pytest.raises(RestoreError):
        saving.load(asking_for("this", "s"), make_env(CARTPOLE))
    assert "this" not in sys.modules


def test_another_class_of_the_environments_own_module_is_loaded():
    """An environment may make objects only later in an episode."""
    env = gym.make("tests.toy:Season-v0")
    env.reset(seed=0)
    env.unwrapped.helper = toy.Recall()
    loaded = saving.load(saving.dump(env), gym.make("tests.toy:Season-v0"))
    assert isinstance(loaded.unwrapped.helper, toy.Recall)


@pytest.mark.parametrize("end", [0, 1, 10, 500])
def test_a_pickle_that_is_cut_is_refused(end):
    with pytest.raises(RestoreError, match="the state of an environment cannot be loaded"):
        saving.load(saving.dump(make_env(CARTPOLE))[:end], make_env(CARTPOLE))


def test_damaged_bytes_are_refused_or_give_an_environment_but_nothing_else():
    state = saving.dump(make_env(CARTPOLE))
    random, refused = np.random.default_rng(0), 0
    for place in random.integers(2, len(state), 300):
        damaged = bytearray(state)
        damaged[place] ^= 1 << random.integers(8)
        try:
            found = saving.load(bytes(damaged), make_env(CARTPOLE))
        except RestoreError:
            refused += 1
        else:
            assert isinstance(found, gym.Env)
    assert refused > 100


@pytest.mark.parametrize("seed", [None, 5])
def test_an_episode_begins_again_from_its_seed_or_its_generator(seed):
    env = make_env(CARTPOLE)
    env.reset(seed=1)
    episode = saving.EpisodeReplay()
    episode.start(env, seed)
    expected = env.reset(seed=seed)[0]
    for action in (0, 1, 1):
        episode.add(np.int64(action))
    again, other = saving.EpisodeReplay.of(episode.state() + b"\0" * 9), make_env(CARTPOLE)
    other.reset(seed=2)
    assert again.replay_start(other).tobytes() == expected.tobytes()
    assert other.np_random.random() == env.np_random.random()
    assert [(type(a), a) for a in again.actions(np.zeros((), np.int64))] == [
        (np.int64, 0),
        (np.int64, 1),
        (np.int64, 1),
    ]
    assert again.state() == episode.state()


def test_an_episode_without_actions_has_none():
    again = saving.EpisodeReplay.of(saving.EpisodeReplay().state())
    assert again.actions(np.zeros(3, np.float32)) == []


def test_a_replay_that_does_not_find_the_way_back_is_refused():
    spec = EnvSpec("tests.toy:Locked-v0", {"leaves": 40}, saving="replay")
    ours, theirs = make_lanes(spec, [0], seed=0), make_lanes(spec, [7], seed=1)
    ours.reset()
    for steps in (39, 5):
        theirs.restore(ours.state())
        for _ in range(steps):
            ours.step(np.zeros((1, 1), np.float32))
    with pytest.raises(
        RestoreError, match=r"Locked-v0 cannot continue in lane 7: .*np_random only"
    ):
        theirs.restore(ours.state())


@pytest.mark.parametrize("actions", ["half", "row of dials"])  # of float64 and of integers
def test_a_replay_repeats_the_actions_in_the_environments_own_type(actions):
    kwargs = {"actions": actions, "handle": True}
    spec = EnvSpec("tests.toy_spaces:Shifts", kwargs, saving="replay", action="raw")
    ours, theirs = make_lanes(spec, [0], seed=0), make_lanes(spec, [7], seed=1)
    ours.reset()
    action = np.ones((1, 2), np.float32 if actions == "half" else np.int64)  # as a policy has them
    for _ in range(3):
        ours.step(action)
    theirs.restore(ours.state())
    assert theirs.step(action).obs.tobytes() == ours.step(action).obs.tobytes()


@pytest.mark.parametrize(("before", "now"), [("pickle", "replay"), ("replay", "pickle")])
def test_a_state_that_was_saved_in_another_way_is_refused(before, now):
    ours = GymnasiumLanes(EnvSpec("CartPole-v1", saving=before), [0], 0)
    ours.reset()
    theirs = GymnasiumLanes(EnvSpec("CartPole-v1", saving=now), [0], 0)
    with pytest.raises(RestoreError, match="CartPole-v1 saved its state in another way before"):
        theirs.restore(ours.state())


def test_lanes_that_cannot_be_saved_give_nothing_and_take_nothing():
    lanes = GymnasiumLanes(EnvSpec("CartPole-v1", saving="none"), [0], 0)
    lanes.reset()
    assert lanes.state() is None
    with pytest.raises(RestoreError):
        lanes.restore(np.zeros((1, 80), np.uint8))


def generators(*seeds):
    return [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]


def test_a_generator_goes_on_from_its_words():
    ours, theirs = generators(0, 1)
    ours.integers(10, size=3, dtype=np.uint32)  # leaves half a number behind
    unpack(pack(ours), theirs)
    for _ in range(3):
        assert ours.integers(10, dtype=np.uint32) == theirs.integers(10, dtype=np.uint32)
    assert ours.normal(size=9).tolist() == theirs.normal(size=9).tolist()


def test_a_generator_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="a generator of the kind Philox cannot be packed"):
        pack(np.random.Generator(np.random.Philox(0)))


def test_actions_that_version_0_3_stored_in_64_bits_are_read():
    episode = saving.EpisodeReplay()
    episode.start(make_env(CARTPOLE), 3)
    episode.add(np.array([1, 2]))
    (action,) = episode.actions(np.zeros(2, np.int32))
    assert (action.tolist(), action.dtype) == ([1, 2], np.int32)
