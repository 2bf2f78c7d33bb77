import pytest
import torch

from tests.algos.on_policy.test_ppo import CONSTANT, GAMMA, stale, trained
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
    assert torch.cosine_similarity(*steps, dim=0) > 0.7  # 0.77 to 0.97 over sixteen seeds


def test_the_rows_of_the_fisher_matrix_come_from_other_lanes_each_time():
    algorithm, _ = trained(0, *SMALL, "env=hopper", "algo.fisher_every=8")  # of 8 lanes
    lane = torch.arange(256.0).unsqueeze(1) % 8
    first, second = (algorithm.fisher_rows(lane) for _ in range(2))
    assert len(first) == len(second) == 32
    assert len(first.unique()) > 4
    assert not torch.equal(first, second)
    rows = torch.arange(250.0)  # of a round that 8 does not divide
    assert len(algorithm.fisher_rows(rows).unique()) == 32
    algorithm.settings.fisher_every = 1
    assert algorithm.fisher_rows(lane) is lane


CONSTANT_TRPO = (
    "algo=trpo",
    "algo.compile=false",
    *(o for o in CONSTANT if "learning_rate" not in o and "sch" not in o),
)


@pytest.mark.slow
def test_values_of_a_constant_reward_reach_the_geometric_series():
    algorithm, _ = trained(30, *CONSTANT_TRPO, "+env.kwargs.ends=truncated")
    value = algorithm.baseline(torch.tensor([[0.5, -0.5]]))
    assert value.item() == pytest.approx(1 / (1 - GAMMA), rel=0.05)


@pytest.mark.parametrize(
    "override",
    [
        "correction=some",
        "shrink=1",
        "cg_damping=-1",
        "tries=0",
    ],
)
def test_bad_settings_are_refused(override):
    with pytest.raises(ConfigError, match=f"algo.{override.partition('=')[0]}="):
        compose(["algo=trpo", f"algo.{override}"])


@pytest.mark.slow
def test_every_correction_gives_another_step_under_lag():
    found = []
    for correction in ("none", "truncated", "vtrace"):
        algorithm, rollout = trained(1, *SMALL, "env=hopper", f"algo.correction={correction}")
        algorithm.update(rollout)
        found.append(algorithm.update(stale(rollout))["policy_loss"])
    assert len(set(found)) == 3
