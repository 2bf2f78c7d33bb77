import pytest
import torch

from tests.algos.off_policy.test_base import made
from tests.algos.off_policy.test_sac import GAMMA, a_batch, aimed
from walle.learning.trees import leaves

AIM = ("env=gym", "env.id=tests.toy:Aim-v0")


@pytest.mark.slow
def test_it_aims_and_a_cut_episode_s_value_goes_on():
    action, value = aimed("td3", 15, "algo.target_noise=0.05")
    assert action == pytest.approx(0.5, abs=0.1)
    assert value == pytest.approx(1 / (1 - GAMMA), rel=0.15)


def test_the_target_by_hand(monkeypatch):
    algorithm = made("td3", *AIM, "algo.gamma=0.5")
    asked = []

    def critic(vector, obs, action):
        asked.append((vector, action))
        return torch.tensor([[3.0, 4.0], [5.0, 2.0]])

    monkeypatch.setattr(algorithm, "critic", critic)
    monkeypatch.setattr(algorithm.policy, "act", lambda *_: torch.tensor([[0.1], [0.9]]))
    target = algorithm.target(algorithm.state, a_batch([1.0, 1.0], [[1.0], [9.0]]))
    assert target.tolist() == [1 + 0.5 * 3, 2 + 0.5 * 2]
    vector, action = asked[0]
    assert vector is algorithm.state.critic_target
    torch.testing.assert_close(action, torch.tensor([[0.3], [1.0]]))  # 0.1 + 0.2; 0.9 + 0.5


def test_the_policy_moves_once_in_a_block():
    algorithm = made("td3", *AIM, "algo.policy_delay=3")
    rows = torch.rand(3, 16, algorithm.replay.width)
    before = algorithm.state
    after, _ = algorithm.updates.run(before, rows[None], torch.randn(1, 3, 1, 16, 1))
    assert (after.critic.adam.steps.item(), after.policy.adam.steps.item()) == (3, 1)
    tau = algorithm.settings.tau
    expected = before.critic_target + tau * (after.critic.vector - before.critic_target)
    torch.testing.assert_close(after.critic_target, expected)
    assert all(x.isfinite().all() for x in leaves(after))
