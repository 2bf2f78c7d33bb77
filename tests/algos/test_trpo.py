import numpy as np
import pytest
import torch

from tests.algos.test_ppo import CONSTANT, GAMMA, stale, trained
from walle.algos.baselines import LinearBaseline
from walle.algos.episodes import EpisodeClock
from walle.config import compose
from walle.errors import ConfigError

SMALL = ("algo=trpo", "batch_size=256", "sampler.lanes=8", "algo.compile=false")


@pytest.mark.parametrize("env", ["hopper", "cartpole"])
def test_a_round_keeps_the_bound_and_improves_the_surrogate(env):
    algorithm, rollout = trained(0, *SMALL, f"env={env}", "algo.max_kl=0.02")
    before = algorithm.vector
    metrics = algorithm.update(rollout)
    assert 0.002 < metrics["kl"] <= 0.02
    assert metrics["improvement"] > 0
    assert not torch.equal(algorithm.vector, before)


def test_the_reported_kl_is_the_measured_one():
    algorithm, rollout = trained(1, *SMALL, "env=hopper")
    old, obs = algorithm.vector, algorithm.normalizers.experience(rollout).obs.flatten(0, 1)
    metrics = algorithm.update(rollout)
    layout = algorithm.policy.layout
    dists = [algorithm.policy.dist(layout.unflatten(v), obs) for v in (old, algorithm.vector)]
    assert float(algorithm.policy.kl(*dists).mean()) == pytest.approx(metrics["kl"], rel=1e-3)


def test_a_search_that_fails_leaves_the_policy_as_it_was():
    algorithm, rollout = trained(1, *SMALL, "env=cartpole", "algo.tries=1", "algo.max_kl=1e6")
    before = algorithm.vector.clone()
    metrics = algorithm.update(rollout)
    assert metrics["step_fraction"] == metrics["improvement"] == metrics["kl"] == 0.0
    assert torch.equal(algorithm.vector, before)


def test_the_fisher_matrix_of_a_part_of_the_round_gives_nearly_the_same_step():
    steps = []
    for every in (1, 2):
        algorithm, rollout = trained(0, *SMALL, "env=hopper", f"algo.fisher_every={every}")
        before = algorithm.vector
        algorithm.update(rollout)
        steps.append(algorithm.vector - before)
    assert not torch.equal(*steps)
    assert torch.cosine_similarity(*steps, dim=0) > 0.9


CONSTANT_TRPO = (
    "algo=trpo",
    "algo.compile=false",
    *(o for o in CONSTANT if "learning_rate" not in o and "sch" not in o),
)


@pytest.mark.parametrize(
    ("baseline", "advantage"), [("neural", "gae"), ("linear", "gae"), ("linear", "monte_carlo")]
)
def test_values_of_a_constant_reward_reach_the_geometric_series(baseline, advantage):
    chosen = (f"algo.baseline={baseline}", f"algo.advantage={advantage}", "algo.ridge=1e-3")
    rounds = 30 if baseline == "neural" else 90  # whose bootstrap extrapolates in t
    algorithm, _ = trained(rounds, *CONSTANT_TRPO, *chosen, "+env.kwargs.ends=truncated")
    value = algorithm.baseline(torch.tensor([[0.5, -0.5]]), torch.tensor([3]))
    assert value.item() == pytest.approx(1 / (1 - GAMMA), rel=0.05)


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


def test_the_clock_runs_on_from_rollout_to_rollout():
    clock = EpisodeClock(3)
    ended = np.array([[0, 0], [1, 0], [0, 0]], bool)
    assert clock(ended, np.array([0, 2])).T.tolist() == [[0, 1, 0], [0, 1, 2]]
    again = EpisodeClock(3)
    again.load_state_dict(clock.state_dict())
    assert again(ended[:1], np.array([2, 0])).T.tolist() == [[3], [1]]


def test_a_lane_that_comes_twice_goes_on_in_its_second_column():
    clock = EpisodeClock(1)
    assert clock(np.zeros((2, 2), bool), np.array([0, 0])).T.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "override",
    [
        "baseline=quadratic",
        "advantage=td",
        "correction=some",
        "shrink=1",
        "cg_damping=-1",
        "tries=0",
    ],
)
def test_bad_settings_are_refused(override):
    with pytest.raises(ConfigError, match=f"algo.{override.partition('=')[0]}="):
        compose(["algo=trpo", f"algo.{override}"])


def test_there_is_nothing_to_compile_with_a_linear_baseline():
    with pytest.raises(ConfigError, match="takes no gradient steps"):
        compose(["algo=trpo", "algo.baseline=linear", "algo.compile=true"])


def test_every_correction_gives_another_step_under_lag():
    found = []
    for correction in ("none", "truncated", "vtrace"):
        algorithm, rollout = trained(1, *SMALL, "env=hopper", f"algo.correction={correction}")
        algorithm.update(rollout)
        found.append(algorithm.update(stale(rollout))["policy_loss"])
    assert len(set(found)) == 3
