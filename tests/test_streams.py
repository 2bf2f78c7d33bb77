import random
from itertools import product

import numpy as np
import pytest
import torch

from walle import streams


def test_no_two_streams_of_a_run_begin_alike():
    lanes, rounds = range(20), range(10)
    integers = [streams.agent_seed(0) & 0xFFFFFFFF]
    integers += [streams.env_seed(0, lane, role) for lane in lanes for role in streams.ROLES]
    integers += [streams.episode_env_seed(0, lane, r) for lane, r in product(lanes, rounds)]
    integers += [streams.evaluation_seed(0, lane, k) for lane, k in product(lanes, rounds)]
    integers += [streams.seed_anew(0, r) for r in rounds]
    integers += [streams.afterwards_seed(0, episode) for episode in range(50)]
    assert len(set(integers)) == len(integers) == 1 + 40 + 200 + 200 + 10 + 50
    noise = [streams.ActionNoise(0, lane) for lane in lanes]
    draws = [noise[lane].of_round(r).random() for lane, r in product(lanes, rounds)]
    draws += [streams.episode_action_noise(0, *key).random() for key in product(lanes, rounds)]
    draws += [streams.afterwards_noise(0, episode).random() for episode in range(50)]
    assert len(set(draws)) == len(draws) == 200 + 200 + 50


def test_another_seed_gives_other_streams():
    assert streams.env_seed(0, 1) != streams.env_seed(1, 1)
    assert streams.agent_seed(0) != streams.agent_seed(1)
    draws = [streams.ActionNoise(seed, 1).of_round(0).random() for seed in (0, 1)]
    assert draws[0] != draws[1]


def test_action_noise_of_a_round_does_not_depend_on_what_was_drawn_before():
    noise = streams.ActionNoise(0, 3)
    expected = noise.of_round(5).normal(size=7)
    noise.of_round(4).integers(10, size=3, dtype=np.uint32)  # leaves half a number behind
    assert (noise.of_round(5).normal(size=7) == expected).all()
    assert (streams.ActionNoise(0, 3).of_round(5).normal(size=7) == expected).all()


def test_a_streams_key_is_the_one_the_tree_shows():
    def sequence(*key):
        return np.random.SeedSequence(7, spawn_key=key)

    def philox(round_, *key):
        key = sequence(*key).generate_state(2, np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, round_])).random()

    def noise(*key):
        return np.random.Generator(np.random.PCG64(sequence(*key))).random()

    assert streams.env_seed(7, 5) == sequence(0, 5).generate_state(1)[0]
    assert streams.env_seed(7, 5, "evaluate") == sequence(1, 5).generate_state(1)[0]
    assert streams.episode_env_seed(7, 5, 3) == sequence(0, 5, 1, 3).generate_state(1)[0]
    assert streams.ActionNoise(7, 5).of_round(3).random() == philox(3, 0, 5, 0)
    assert streams.evaluation_seed(7, 5, 3) == sequence(1, 5, 3).generate_state(1)[0]
    assert streams.seed_anew(7, 3) == sequence(3, 3).generate_state(1)[0]
    assert streams.episode_action_noise(7, 5, 3).random() == noise(0, 5, 1, 3, 0)
    assert streams.afterwards_seed(7, 5) == sequence(4, 5).generate_state(1)[0]
    assert streams.afterwards_noise(7, 5).random() == noise(4, 5, 0)
    assert streams.agent_seed(7) == sequence(2).generate_state(1, np.uint64)[0] >> np.uint64(1)


def draws():
    return random.random(), np.random.random(), float(torch.rand((), dtype=torch.float64))


def test_global_generators_have_streams_of_their_own():
    with streams.kept_globals():
        streams.seed_globals(7, "train", 5, 3)
        words = np.random.SeedSequence(7, spawn_key=(5, 0, 5, 3)).generate_state(3).tolist()
        ours = torch.Generator().manual_seed(words[2])
        assert draws() == (
            random.Random(words[0]).random(),
            np.random.RandomState(words[1]).random(),
            float(torch.rand((), dtype=torch.float64, generator=ours)),
        )
        keys = [("train", 0, 1), ("train", 0, 1, 0), ("train", 1, 0), ("evaluate",)]
        keys += [("evaluate", 0), ("evaluate", 1), ("afterwards", 0), ("trial", 0)]
        found = []
        for key in keys:
            streams.seed_globals(7, *key)
            found += draws()
        assert len(set(found)) == 3 * len(keys)


def test_global_generators_are_given_back_after_an_error():
    @streams.kept_globals()
    def fail():
        streams.seed_globals(0, "trial", 0)
        raise ValueError("broke")

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with pytest.raises(ValueError, match="broke"):
        fail()
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before
