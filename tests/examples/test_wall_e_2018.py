"""examples/wall_e_2018: WALL-E's networks, AMSGrad and step sizes."""

import pickle

import pytest
import torch
from wall_e_2018.algorithm import Moments, amsgrad, per_root_width
from wall_e_2018.net import WallECritic, WallEPolicy

import walle
from tests.algos.on_policy.test_ppo import trained
from tests.examples.conftest import EXAMPLES
from tests.test_reproductions import composed
from walle.config import compose
from walle.errors import ConfigError
from walle.nets.mlp import MLP, Layout
from walle.training import make_algorithm, make_problem, train

PAPER = (
    f"hydra.searchpath=[file://{EXAMPLES}/wall_e_2018/conf]",
    "algo=wall_e_2018",
    "net=wall_e_2018",
    "env=hopper",
    "batch_size=256",
    "sampler.lanes=8",
)


def test_the_sweep_has_the_networks_and_step_sizes_of_the_code():
    """By hand: O = 17 and the time, A = 6; √(180 · 60) = 103.9, √(180 · 5) = 30."""
    config = composed("wall_e_2018", ["sampler.n=1"])
    algorithm = make_algorithm(config, make_problem(config)[0])
    shapes = algorithm.policy.layout.shapes
    assert [shapes[f"policy.{i}.weight"] for i in range(4)] == [
        *((180, 18), (103, 180), (60, 103), (6, 60)),
    ]
    assert shapes["log_std"] == (6, 6)  # 12 copies of a log variance move as fast
    critic = algorithm.value._critic.layout.shapes
    assert [critic[f"critic.{i}.weight"][0] for i in range(4)] == [180, 30, 5, 1]
    assert algorithm.settings.learning_rate == pytest.approx(9e-4 / 103**0.5)
    assert algorithm.value._settings.value_learning_rate == pytest.approx(1e-2 / 30**0.5)


def test_initial_weights_by_their_formulas():
    """Uniform within ±0.05 has deviation 0.05 / √3; normal 1 / √inputs."""
    generator = torch.Generator().manual_seed(0)
    policy, critic = WallEPolicy(20, 4, torch.tanh, -0.5), WallECritic(40, torch.tanh)
    params = policy.layout.unflatten(policy.init(generator))
    assert params["policy.1.weight"].std().item() == pytest.approx(0.05 / 3**0.5, rel=0.05)
    assert params["policy.1.weight"].abs().max() <= 0.05
    assert params["policy.1.bias"].abs().max() == 0
    values = critic.layout.unflatten(critic.init(generator))
    assert values["critic.1.weight"].std().item() == pytest.approx(400**-0.5, rel=0.05)
    assert values["critic.0.bias"].abs().max() == 0


def test_copies_of_a_log_std_add_up_and_begin_where_one_would():
    policy = pickle.loads(pickle.dumps(WallEPolicy(3, 2, torch.tanh, -0.5)))
    params = policy.layout.unflatten(policy.init(torch.Generator()))
    assert params["log_std"].shape == (2, 2)
    torch.testing.assert_close(policy.dist(params, torch.zeros(3))[2:], torch.full((2,), -0.5))
    params = {"log_std": torch.tensor([[0.0, 1.0], [0.5, -1.5]])}
    noise = policy.scale_noise(params, torch.ones(1, 2))
    torch.testing.assert_close(noise, torch.tensor([[0.5, -0.5]]).exp())


def test_copies_of_log_stds_move_as_fast_as_wall_e_s_log_variances():
    """A sign-like step of size α: 2 A log variances move 2 A α, A log deviations A α, the half."""
    actions, rate = 6, 0.1
    copies = torch.zeros(actions, requires_grad=True)  # of one log standard deviation
    variances = torch.zeros((10 * 10 * actions) // 48, requires_grad=True)  # logvar_speed
    assert len(variances) == 2 * actions
    for log_std, parameters in ((copies.sum(), copies), (variances.sum() / 2, variances)):
        (grad,) = torch.autograd.grad(log_std.exp(), parameters)
        with torch.no_grad():
            parameters -= rate * grad.sign()  # Adam's first step
    assert copies.sum().item() == pytest.approx(variances.sum().item() / 2)


def test_step_sizes_by_hand():
    """HalfCheetah with the time: middle layers of 103 and 30 units."""
    for rate, hidden, expected in (
        (9e-4, (180, 103, 60), 8.868e-5),
        (1e-2, (180, 30, 5), 1.8257e-3),
        (0.5, (), 0.5),
    ):
        layout = Layout(MLP("x", (18, *hidden, 1), torch.tanh).shapes)
        assert per_root_width(rate, layout) == pytest.approx(expected, rel=1e-4)


def test_amsgrad_by_hand(monkeypatch):
    """Two steps of a gradient of 4, then 1: the second moment falls, the largest does not."""
    for name, value in (("BETA_1", 0.5), ("BETA_2", 0.75), ("EPSILON", 0.5)):
        monkeypatch.setattr(f"wall_e_2018.algorithm.{name}", value)
    vector, moments = torch.zeros(1), Moments(*torch.zeros(3, 1))
    for grad in (4.0, 1.0):
        vector, moments = amsgrad(vector, torch.tensor([grad]), moments, torch.tensor(0.1))
    # m = 2, then 1.5; v = 4, then 3.25; the largest v is 4 both times
    assert moments.square.item() == pytest.approx(3.25)
    assert moments.largest.item() == pytest.approx(4.0)
    assert vector.item() == pytest.approx(-0.1 * 2 / 2.5 - 0.1 * 1.5 / 2.5)


def test_amsgrad_resumes_with_its_largest_moments():
    algorithm, rollout = trained(1, *PAPER)
    assert algorithm.moments.largest.max() > 0
    other, _ = trained(0, *PAPER)
    other.load_state_dict(algorithm.state_dict())
    for each in (algorithm, other):
        each.update(rollout)
    assert torch.equal(algorithm.vector, other.vector)
    assert torch.equal(algorithm.moments.largest, other.moments.largest)


def test_steps_end_where_the_kl_is_too_large():
    algorithm, rollout = trained(0, *PAPER, "algo.learning_rate=0.5")
    metrics = algorithm.update(rollout)
    assert metrics["gradient_steps"] < 20
    assert metrics["kl"] > 4 * 0.003


def test_a_policy_with_these_networks_is_loaded_and_acts(tmp_path):
    quiet = ("logger.progress=quiet", "eval.episodes=0", "total_steps=256", "sampler=serial")
    train(compose([*PAPER, *quiet]), tmp_path)
    policy = walle.load(tmp_path, "last")
    assert policy.act(policy.env().reset(seed=0)[0]).shape == (3,)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("net.policy_hidden=[64]", r"net.policy_hidden=\[64\]: .* use net.policy_hidden=\[\]"),
        ("net.scale=state", r"use net.scale=constant"),
    ],
)
def test_settings_that_the_networks_do_not_have_are_refused(typed, message):
    with pytest.raises(ConfigError, match=message):
        compose([*PAPER, typed])


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("env=cartpole", "needs continuous actions"),
        ("algo=sac", r"makes policies and state-value functions of on-policy"),
    ],
)
def test_problems_that_the_networks_cannot_have_are_refused(typed, message):
    config = compose([*PAPER, typed])
    with pytest.raises(ConfigError, match=message):
        make_algorithm(config, make_problem(config)[0])
