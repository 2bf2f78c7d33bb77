from itertools import product

import numpy as np

from walle import streams


def test_no_two_streams_of_a_run_begin_alike():
    lanes, rounds = range(20), range(10)
    integers = [streams.agent_seed(0) & 0xFFFFFFFF]
    integers += [streams.env_seed(0, lane, role) for lane in lanes for role in streams.ROLES]
    integers += [streams.episode_env_seed(0, lane, r) for lane, r in product(lanes, rounds)]
    assert len(set(integers)) == len(integers) == 1 + 40 + 200
    draws = [streams.action_noise(0, lane).random() for lane in lanes]
    draws += [streams.episode_action_noise(0, *key).random() for key in product(lanes, rounds)]
    assert len(set(draws)) == len(draws) == 20 + 200


def test_another_seed_gives_other_streams():
    assert streams.env_seed(0, 1) != streams.env_seed(1, 1)
    assert streams.agent_seed(0) != streams.agent_seed(1)
    assert streams.action_noise(0, 1).random() != streams.action_noise(1, 1).random()


def test_a_streams_key_is_the_one_the_tree_shows():
    def sequence(*key):
        return np.random.SeedSequence(7, spawn_key=key)

    def noise(*key):
        return np.random.Generator(np.random.PCG64(sequence(*key))).random()

    assert streams.env_seed(7, 5) == sequence(0, 5).generate_state(1)[0]
    assert streams.env_seed(7, 5, "evaluate") == sequence(1, 5).generate_state(1)[0]
    assert streams.episode_env_seed(7, 5, 3) == sequence(0, 5, 1, 3).generate_state(1)[0]
    assert streams.action_noise(7, 5).random() == noise(0, 5, 0)
    assert streams.episode_action_noise(7, 5, 3).random() == noise(0, 5, 1, 3, 0)
    assert streams.agent_seed(7) == sequence(2).generate_state(1, np.uint64)[0] >> np.uint64(1)
