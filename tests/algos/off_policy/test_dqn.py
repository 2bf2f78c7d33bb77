import numpy as np
import pytest
import torch

from tests.algos.on_policy.test_ppo import trained
from tests.test_training import learned
from walle.algos.off_policy.dqn import DQNState
from walle.config import compose
from walle.errors import ConfigError
from walle.learning.adam import TrainState
from walle.learning.replay import row_width
from walle.training import make_algorithm, make_problem, train

SMALL = (
    "algo=dqn",
    "net.policy_hidden=[16]",
    "algo.minibatch_size=16",
    "algo.learning_starts=96",
    "eval.episodes=0",
    "logger.progress=quiet",
    "batch_size=48",
    "sampler.lanes=6",
    "total_steps=240",
)


def made(*overrides):
    config = compose([*SMALL, "sampler=serial", *overrides])
    return make_algorithm(config, make_problem(config)[0])


def tabular(vector, obs):
    """Q(s, a) = the parameters of action a times s: two observations, three actions."""
    return obs @ vector.view(2, 3)


def state_of(values, target):
    vectors = [torch.tensor(x).flatten() for x in (values, target)]
    return DQNState(TrainState.start(vectors[0]), vectors[1], torch.zeros((), dtype=torch.int64))


def transitions(action, reward, continues):
    """A step from the first of two one-hot observations to the second."""
    return torch.tensor([[1.0, 0.0, action, 0.0, 1.0, reward, continues]])


VALUES = [[1.0, 2.0, 3.0], [5.0, 4.0, 0.0]]  # of the network that learns
TARGET = [[0.0, 0.0, 0.0], [10.0, 20.0, 30.0]]
NO_NOISE = torch.zeros(0, 1, 1)


@pytest.fixture
def two_states(monkeypatch):
    """An algorithm whose network is a table of two states and three actions."""
    algorithm = made(
        "env=cartpole",
        "algo.gamma=0.5",
        "algo.target_interval=3",
        "algo.tau=0.5",
        "algo.double=false",
    )
    algorithm.obs_dim = 2
    monkeypatch.setattr(algorithm.policy, "values", tabular)
    return algorithm


@pytest.mark.parametrize(("double", "expected"), [(False, 1 + 0.5 * 30), (True, 1 + 0.5 * 10)])
def test_the_target_is_the_reward_and_the_best_value_of_the_successor(two_states, double, expected):
    two_states.settings.double = double  # which chooses by VALUES, and takes the value of TARGET
    state = state_of(VALUES, TARGET)
    row = transitions(2.0, 1.0, 1.0)
    assert two_states.target(state, two_states.sample(row, NO_NOISE)).tolist() == [expected]
    ended = two_states.sample(transitions(2.0, 1.0, 0.0), NO_NOISE)
    assert two_states.target(state, ended).tolist() == [1.0]


def test_the_loss_is_hubers(two_states):
    far = state_of(VALUES, TARGET)  # Q = 3 and a target of 16
    _, metrics = two_states.value_gradient(
        far, two_states.sample(transitions(2.0, 1.0, 1.0), NO_NOISE)
    )
    assert metrics.tolist() == [13 - 0.5, 3]
    _, metrics = two_states.value_gradient(
        far, two_states.sample(transitions(2.0, 2.5, 0.0), NO_NOISE)
    )
    assert metrics[0].item() == 0.5 * 0.5**2


def test_the_target_moves_at_every_third_update(two_states):
    state, moved = state_of(VALUES, TARGET), []
    for _ in range(6):
        before = state
        state, _ = two_states.updates.run(
            state, transitions(2.0, 1.0, 1.0)[None, None], NO_NOISE[None, None]
        )
        moved.append(not torch.equal(state.target, before.target))
        if moved[-1]:
            torch.testing.assert_close(state.target, (before.target + state.values.vector) / 2)
    assert moved == [False, False, True] * 2


def test_epsilon_is_1_until_learning_starts_and_falls_in_a_line():
    algorithm = made("env=cartpole", "algo.exploration_fraction=0.8", "algo.exploration_final=0.1")
    found = []
    for steps in (0, 48, 48, 48, 96, 96):
        algorithm.env_steps += steps
        found.append(float(algorithm.snapshot().vector[algorithm.policy.layout.size - 1]))
    assert found == pytest.approx([1, 1, 0.55, 0.325, 0.1, 0.1])  # 192 steps long


@pytest.mark.slow
def test_a_value_reaches_the_sum_of_discounted_rewards():
    algorithm, _ = trained(
        12, "algo=dqn", "env=gym", "env.id=tests.toy:Constant-v0", "algo.gamma=0.5",
        "net.policy_hidden=[16]", "algo.learning_starts=128", "algo.learning_rate=0.01",
        "algo.compile=false",
    )  # fmt: skip
    values = algorithm.policy.values(algorithm.policy_vector, torch.tensor([[0.5, -0.5]]))
    np.testing.assert_allclose(values.detach(), [[2, 2]], atol=0.05)


@pytest.mark.slow
def test_learning_does_not_depend_on_the_number_of_samplers(tmp_path):
    for n in (1, 2):
        train(compose([*SMALL, "env=cartpole", f"sampler.n={n}"]), tmp_path / str(n))
    expected = learned(tmp_path / "1")
    assert len(expected) == 5
    assert float(expected[-1]["value_loss"]) > 0
    assert learned(tmp_path / "2") == expected


def test_actions_are_stored_as_one_number():
    algorithm = made("env=cartpole")
    assert algorithm.replay.width == row_width(4, 1)


@pytest.mark.parametrize(
    ("env", "cure"),
    [
        (("env=hopper",), "use algo=sac or ppo"),
        (("env=gym", "env.id=tests.toy_images:Levers-v0"), "use algo=ppo"),
    ],
)
def test_other_actions_are_refused_with_the_cure(env, cure):
    with pytest.raises(ConfigError, match=rf"algo=dqn needs Discrete actions.* {cure}"):
        made(*env)
