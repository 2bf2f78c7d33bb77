import pytest
import torch

from tests.algos.on_policy.test_ppo import stale, trained
from walle.algos.on_policy.ppo_kl import adapt
from walle.errors import ConfigError

TARGET = 0.003
SMALL = ("algo=ppo_kl", "env=hopper", "batch_size=256", "sampler.lanes=8")


@pytest.mark.parametrize(
    ("beta", "rate", "kl", "expected"),
    [
        (1.0, 1.0, 0.003, (1.0, 1.0)),  # on target
        (1.0, 1.0, 0.0061, (1.5, 1.0)),  # too far
        (1.0, 1.0, 0.0014, (1 / 1.5, 1.0)),  # too short
        (25.0, 1.0, 0.01, (35.0, 1 / 1.5)),  # penalty at its bound: smaller steps
        (35.0, 0.09, 0.01, (35.0, 0.09)),  # steps at their bound
        (1 / 25, 1.0, 0.001, (1 / 35, 1.5)),  # penalty at its lower bound: larger steps
        (1 / 35, 10.1, 0.001, (1 / 35, 10.1)),
    ],
)
def test_adaptation_by_hand(beta, rate, kl, expected):
    assert adapt(beta, rate, kl, TARGET) == pytest.approx(expected)


def test_the_policy_stops_at_four_times_the_target():
    algorithm, rollout = trained(0, *SMALL, "algo.learning_rate=0.05")
    metrics = algorithm.update(rollout)
    assert metrics["gradient_steps"] < 20
    assert metrics["kl"] > 4 * TARGET


def test_small_steps_use_all_epochs():
    algorithm, rollout = trained(0, *SMALL, "algo.learning_rate=1e-5")
    assert algorithm.update(rollout)["gradient_steps"] == 20
    assert algorithm.beta == pytest.approx(1 / 1.5)


def test_the_value_function_sees_the_previous_round_too():
    algorithm, rollout = trained(1, *SMALL)
    assert len(algorithm.previous.target) == 256
    seen = []
    algorithm.value.fit = lambda obs, target: seen.append((len(obs), len(target)))
    algorithm.fit_value(algorithm.batch(algorithm.normalizers.experience(rollout)))
    assert seen == [(512, 512)]


def test_only_lagging_experience_is_corrected():
    found = []
    for correction in ("none", "truncated", "vtrace"):
        chosen = (f"algo.correction={correction}", "algo.epochs=2", "algo.value_epochs=1")
        algorithm, rollout = trained(1, *SMALL, *chosen)
        found.append([algorithm.update(x)["policy_loss"] for x in (rollout, stale(rollout))])
    fresh, late = zip(*found, strict=True)
    assert len(set(fresh)) == 1
    assert len(set(late)) == 3


def test_fitting_explains_more_variance():
    algorithm, rollout = trained(3, *SMALL)
    metrics = algorithm.update(rollout)
    assert metrics["explained_variance"] > metrics["explained_variance_old"]


def test_a_constant_scale_of_rewards_reaches_the_targets():
    found = []
    for scale in ("1", "0.5"):
        off = ("algo.normalize_rewards=false", "algo.gae_lambda=1", f"algo.reward_scale={scale}")
        algorithm, rollout = trained(0, *SMALL, *off)
        found.append(algorithm.normalizers.experience(rollout).reward)
    torch.testing.assert_close(found[1], found[0] / 2)
    with pytest.raises(ConfigError, match=r"out again; use algo.normalize_rewards=false"):
        trained(0, *SMALL, "algo.reward_scale=0.5")
