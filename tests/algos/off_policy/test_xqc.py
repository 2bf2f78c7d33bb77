import pytest
import torch

from tests.algos.off_policy.test_base import made
from tests.algos.off_policy.test_sac import AIM, OBS, a_batch
from tests.algos.on_policy.test_ppo import trained
from walle.errors import ConfigError
from walle.learning import losses
from walle.learning.adam import TrainState


def toy(*overrides):
    return made("xqc", "env=gym", "env.id=tests.toy:Aim-v0", *overrides)


@pytest.mark.slow
def test_it_aims():
    algorithm, _ = trained(36, "algo=xqc", *AIM, "algo.learning_rate=3e-3", native=True)
    policy = algorithm.policy
    params = policy.layout.unflatten(algorithm.policy_vector)
    assert policy.mode(policy.acting(params, 1)(OBS)).item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("continues", "expected"), [(1.0, [1.55, 2.4]), (0.0, [1.0, 2.0])])
def test_the_target_by_hand(monkeypatch, continues, expected):
    algorithm, targets, asked = toy("algo.gamma=0.5"), [], []
    # distributions at (s', a') of two critics: values 1 and 2, and 2 and 1, so 1 for both rows
    logits = torch.zeros(2, 4, 101)
    for critic, row, atom in ((0, 2, 60), (0, 3, 70), (1, 2, 70), (1, 3, 60)):
        logits[critic, row, atom] = 1e3

    def train(vector, *pairs, rows):
        asked.append((vector, *pairs))
        return logits[:, rows] + 0 * vector.sum(), torch.zeros(())

    def cross_entropy(predicted, target):
        targets.append(target)
        return predicted.sum()

    drawn = torch.tensor([[0.1], [0.2]]), torch.tensor([-1.0, 2.0])
    monkeypatch.setattr(algorithm.normed_critic, "train", train)
    monkeypatch.setattr(algorithm.policy, "draw", lambda *_: drawn)
    monkeypatch.setattr(losses, "cross_entropy", cross_entropy)
    temperature = TrainState.start(torch.tensor(0.1).log())
    state = algorithm.state._replace(log_temperature=temperature)
    algorithm.critic_gradient(state, a_batch([continues, continues]))
    # 1 + 0.5 (1 + 0.1) and 2 + 0.5 (1 - 0.2); or the reward alone
    assert (targets[0] @ algorithm.atoms).tolist() == pytest.approx(expected, abs=1e-5)
    assert asked[0][0] is state.critic_target
    assert asked[0][1].tolist() == [[0.0, 0.0]] * 2 + [[1.0, 1.0]] * 2
    assert asked[0][2].flatten().tolist() == pytest.approx([0, 0, 0.1, 0.2])


def test_a_step_projects_weights_and_moves_target_and_moments():
    algorithm = toy("algo.tau=0.25")
    state, nets = algorithm.state, algorithm.normed_critic
    gradient = torch.linspace(-1, 1, nets.layout.size)
    seen = torch.arange(state.critic_moments.numel(), dtype=torch.float32)
    after, numbers = algorithm.critic_step(state, gradient, torch.cat((torch.ones(2), seen)))
    assert numbers.tolist() == [1, 1]
    vector = after.critic.vector
    torch.testing.assert_close(vector, nets.project(vector))
    assert not vector.allclose(state.critic.vector)
    torch.testing.assert_close(after.critic_target, 0.75 * state.critic_target + 0.25 * vector)
    moved = 0.99 * state.critic_moments.flatten() + 0.01 * seen
    torch.testing.assert_close(after.critic_moments.flatten(), moved)


def test_the_target_entropy_is_minus_half_the_number_of_action_entries():
    assert made("xqc", "env=hopper").target_entropy == -1.5
    assert made("xqc", "env=hopper", "algo.target_entropy=-1").target_entropy == -1


def test_a_shard_of_one_row_is_refused():
    with pytest.raises(ConfigError, match=r"minibatch_size=1 .*two rows a shard.* use 2 or more"):
        toy("algo.minibatch_size=1")


def test_layers_that_normalise_are_refused():
    for name in ("norm_relu", "critic_norm_relu"):
        with pytest.raises(ConfigError, match=f"={name}: xqc normalises its layers; use relu"):
            toy(f"net.activation={name}")
