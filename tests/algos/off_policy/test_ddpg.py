import pytest
import torch

from tests.algos.off_policy.test_base import made
from tests.algos.off_policy.test_sac import GAMMA, a_batch, aimed
from walle.errors import ConfigError


@pytest.mark.slow
def test_it_aims_and_a_cut_episode_s_value_goes_on():
    action, value = aimed("ddpg", 15)
    assert action == pytest.approx(0.5, abs=0.1)
    assert value == pytest.approx(1 / (1 - GAMMA), rel=0.15)


@pytest.mark.slow
def test_a_terminated_episode_s_value_does_not():
    longer = ("algo.updates_per_step=1",)  # after 15 rounds the value still swings by a tenth
    _, value = aimed("ddpg", 40, "+env.kwargs.ends=terminated", *longer)
    # the observation does not tell the last step: one in eight successors is worth nothing
    assert value == pytest.approx(1 / (1 - GAMMA * 7 / 8), rel=0.15)


def test_the_target_by_hand(monkeypatch):
    algorithm = made("ddpg", "env=gym", "env.id=tests.toy:Aim-v0", "algo.gamma=0.5")
    asked = []

    def critic(vector, obs, action):
        asked.append((vector, action))
        return torch.tensor([[3.0, 4.0]])

    drawn = torch.tensor([[0.1], [0.2]])
    monkeypatch.setattr(algorithm, "critic", critic)
    monkeypatch.setattr(algorithm.policy, "act", lambda vector, obs: drawn)
    target = algorithm.target(algorithm.state, a_batch([1.0, 0.0]))
    assert target.tolist() == [1 + 0.5 * 3, 2.0]
    assert asked[0][0] is algorithm.state.critic_target
    assert asked[0][1] is drawn


def test_exploration_must_be_positive():
    with pytest.raises(ConfigError, match=r"algo\.exploration=0\.0 must be positive"):
        made("ddpg", "env=pendulum", "algo.exploration=0")
