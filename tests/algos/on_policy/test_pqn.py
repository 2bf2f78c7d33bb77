import pytest
import torch

from tests.algos.on_policy.test_ppo import CONSTANT, GAMMA, trained
from walle.config import compose
from walle.training import train

SMALL = ("algo=pqn", "env=cartpole", "batch_size=64", "sampler.lanes=8", "algo.compile=false")


def test_targets_mix_the_best_value_and_the_next_target():
    algorithm, rollout = trained(3, *SMALL, "algo.q_lambda=0.5", "algo.gamma=0.9")
    x = algorithm.normalizers.experience(rollout)
    assert x.ended[:-1].any()
    batch = algorithm.batch(x, algorithm.vector)
    with torch.no_grad():
        best = algorithm.policy.values(algorithm.vector[:-1], x.states).amax(-1)
    unseen, later = iter(best[64:]), [None] * 8
    successor = {(t, lane): next(unseen) for t, lane in x.needs_final_obs.nonzero().tolist()}
    for t in reversed(range(8)):
        for lane in range(8):
            next_best = successor.get((t, lane), best[8 * t + 8 + lane] if t < 7 else None)
            mixed = next_best if (t, lane) in successor else (next_best + later[lane]) / 2
            later[lane] = x.reward[t, lane] + 0.9 * x.continues[t, lane] * mixed
            assert batch.target[8 * t + lane].item() == pytest.approx(later[lane].item(), abs=1e-5)


def test_the_loss_is_the_squared_error_of_the_action_taken():
    algorithm, rollout = trained(1, *SMALL)
    batch = algorithm.batch(algorithm.normalizers.experience(rollout), algorithm.vector)
    q = algorithm.policy.values(algorithm.vector[:-1], batch.obs)[range(64), batch.action]
    loss, _ = algorithm.loss(algorithm.vector, batch)
    assert loss.item() == pytest.approx((q - batch.target).square().mean().item(), rel=1e-5)


def test_epsilon_falls_in_a_line():
    algorithm, _ = trained(0, *SMALL, "algo.exploration_fraction=0.5", "algo.exploration_final=0.1")
    found = []
    for share in (0, 0.25, 0.5, 1):
        algorithm.env_steps = share * algorithm.problem.schedule_steps
        found.append(float(algorithm.snapshot().vector[algorithm.policy.layout.size - 1]))
    assert found == pytest.approx([1, 0.55, 0.1, 0.1])


@pytest.mark.slow
def test_values_of_a_constant_reward_reach_the_geometric_series():
    small = ("batch_size=64", "algo.compile=false", "algo.learning_rate=1e-2")
    algorithm, _ = trained(60, "algo=pqn", *CONSTANT, *small, "+env.kwargs.ends=truncated")
    values = algorithm.policy.values(algorithm.vector[:-1], torch.tensor([[0.5, -0.5]]))
    assert values.flatten().tolist() == pytest.approx([1 / (1 - GAMMA)] * 2, rel=0.05)


@pytest.mark.slow
def test_it_balances_the_pole(tmp_path):
    quiet = ("eval.every=50_000", "logger.progress=quiet", "sampler=serial")
    task = ("algo=pqn", "env=cartpole", "total_steps=1e5", "seed=1")
    result = train(compose([*task, *quiet]), tmp_path)
    assert result.return_mean >= 400  # of episodes with noise
