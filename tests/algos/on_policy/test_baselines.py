import pytest
import torch

from tests.algos.on_policy.test_ppo import GAMMA, trained
from tests.algos.on_policy.test_trpo import CONSTANT_TRPO
from walle.algos.on_policy.baselines import LinearBaseline

SMALL = ("algo=trpo", "batch_size=256", "sampler.lanes=8", "algo.compile=false")


def test_a_linear_baseline_knows_how_much_of_the_episode_is_left():
    """Eight rewards of 1, then the end: a parabola in t comes close, a constant could not."""
    chosen = ("algo.baseline=linear", "algo.advantage=monte_carlo", "algo.ridge=1e-6")
    algorithm, _ = trained(10, *CONSTANT_TRPO, *chosen, "+env.kwargs.ends=terminated")
    t = torch.arange(8)
    found = algorithm.baseline(torch.tensor([[0.5, -0.5]]).expand(8, 2), t)
    expected = (1 - GAMMA ** (8 - t)) / (1 - GAMMA)
    assert (found - expected).abs().max() < 0.15


def test_ridge_regression_by_hand():
    # one observation of 1 at t = 0, target 3: features [1, 1, 0, 0, 1], so w = 3 x / (3 + ridge)
    baseline = LinearBaseline(1, ridge=1.5, device="cpu")
    obs, t = torch.ones(1, 1), torch.zeros(1)
    assert baseline(obs, t).item() == 0.0
    error = baseline.fit(obs, torch.tensor([3.0]), t)
    assert baseline(obs, t).item() == pytest.approx(3 * 3 / 4.5)
    assert error == pytest.approx(1.0)
    assert baseline(torch.zeros(1, 1), torch.tensor([50.0])).item() == pytest.approx(3 / 4.5)
