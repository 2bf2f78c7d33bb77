import pytest
import torch

from tests.algos.off_policy.test_base import made
from tests.algos.on_policy.test_ppo import trained
from walle.algos.off_policy.base import Sample
from walle.learning.adam import TrainState
from walle.learning.replay import Transitions

GAMMA = 0.9
AIM = (
    "env=gym",
    "env.id=tests.toy:Aim-v0",
    f"algo.gamma={GAMMA}",
    "algo.learning_rate=1e-2",
    "algo.tau=0.1",
    "algo.minibatch_size=64",
    "algo.learning_starts=256",
    "algo.updates_per_step=2",
    "net.policy_hidden=[32]",
    "net.critic_hidden=[32]",
    "batch_size=64",
    "sampler.lanes=8",
    "total_steps=1e4",
)
OBS = torch.tensor([[0.5, -0.5]])


def aimed(name, rounds, *overrides):
    """After learning to aim at 0.5: the action that is likeliest, and its value."""
    algorithm, _ = trained(rounds, f"algo={name}", *AIM, *overrides, native=True)
    state, policy = algorithm.state, algorithm.policy
    params = policy.layout.unflatten(state.policy.vector)
    action = policy.mode(policy.acting(params, 1)(OBS))
    return action.item(), algorithm.critic(state.critic.vector, OBS, action).mean().item()


def a_batch(continues, noise=((0.0,), (0.0,))):
    transitions = Transitions(
        obs=torch.zeros(2, 2),
        action=torch.zeros(2, 1),
        next_obs=torch.ones(2, 2),
        reward=torch.tensor([1.0, 2.0]),
        continues=torch.tensor(continues),
    )
    return Sample(transitions, torch.tensor(noise).unsqueeze(1))


@pytest.mark.slow
def test_it_aims():
    action, _ = aimed("sac", 15)
    assert action == pytest.approx(0.5, abs=0.1)


def test_the_target_by_hand(monkeypatch):
    algorithm = made("sac", "env=gym", "env.id=tests.toy:Aim-v0", "algo.gamma=0.5")
    asked = []

    def critic(vector, obs, action):
        asked.append((vector, obs, action))
        return torch.tensor([[3.0, 4.0], [5.0, 2.0]])

    drawn = torch.tensor([[0.1], [0.2]]), torch.tensor([-1.0, 2.0])
    monkeypatch.setattr(algorithm, "critic", critic)
    monkeypatch.setattr(algorithm.policy, "draw", lambda *_: drawn)
    temperature = TrainState.start(torch.tensor(0.1).log())
    state, batch = algorithm.state._replace(log_temperature=temperature), a_batch([1.0, 1.0])
    target = algorithm.target(state, batch)
    # 1 + 0.5 (3 + 0.1) and 2 + 0.5 (2 - 0.2)
    torch.testing.assert_close(target, torch.tensor([2.55, 2.9]))
    terminal = algorithm.target(state, a_batch([0.0, 0.0]))
    assert terminal.tolist() == [1.0, 2.0]
    vector, obs, action = asked[0]
    assert vector is state.critic_target
    assert obs is batch.transitions.next_obs
    assert action is drawn[0]


@pytest.mark.slow
def test_the_temperature_moves_the_entropy_to_its_target():
    algorithm, _ = trained(15, "algo=sac", *AIM, "algo.target_entropy=-0.5", native=True)
    policy = algorithm.state.policy
    noise = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    _, log_prob = algorithm.policy.draw(policy.vector, OBS.expand(4000, 2), noise)
    assert -log_prob.mean().item() == pytest.approx(-0.5, abs=0.3)


def test_the_target_entropy_is_minus_the_number_of_action_entries():
    assert made("sac", "env=hopper").target_entropy == -3
    assert made("sac", "env=hopper", "algo.target_entropy=-1.5").target_entropy == -1.5
