import math

import numpy as np
import pytest
import torch
from torch import distributions as D

from walle.errors import ConfigError
from walle.nets.critics import Critic
from walle.nets.mlp import ACTING_ROWS, ACTIVATIONS, MLP, Layout, activation
from walle.nets.policies import CategoricalPolicy, GaussianPolicy, StateScalePolicy


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def gaussian():
    return GaussianPolicy(3, 2, (8,), torch.tanh, -0.5)


@pytest.fixture
def state_scale():
    return StateScalePolicy(3, 2, (8,), torch.tanh, -0.5)


@pytest.fixture
def categorical():
    return CategoricalPolicy(3, 4, (8,), torch.tanh)


def torch_gaussian(dist):
    mean, log_std = dist.chunk(2, -1)
    return D.Independent(D.Normal(mean, log_std.exp()), 1)


def test_layout_flattens_and_unflattens():
    layout = Layout({"a": (2, 3), "b": (4,)})
    vector = torch.arange(10.0)
    params = layout.unflatten(vector)
    assert layout.size == 10
    assert params["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert params["b"].tolist() == [6, 7, 8, 9]
    assert torch.equal(layout.flatten(params), vector)


def test_unflattened_parameters_are_views():
    layout = Layout({"a": (2,), "b": (1,)})
    vector = torch.zeros(3)
    vector[2] = 7
    assert layout.unflatten(vector)["b"].item() == 7


def test_a_network_that_memory_cannot_hold_is_refused_before_anything_is_allocated():
    with pytest.raises(ConfigError, match=r"90,000,900,001 parameters needs 1,440 GB"):
        Layout(MLP("policy", (1, 300_000, 300_000), torch.relu).shapes | {"log_std": (1,)})


def test_gaussian_agrees_with_torch_distributions(gaussian):
    p, q, action = torch.randn(5, 4), torch.randn(5, 4), torch.randn(5, 2)
    ours, theirs = gaussian, torch_gaussian(p)
    torch.testing.assert_close(ours.log_prob(p, action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(p), theirs.entropy())
    torch.testing.assert_close(ours.kl(p, q), D.kl_divergence(theirs, torch_gaussian(q)))


def drawn(policy, params, dist_params, noise):
    action = torch.empty(dist_params.shape[:-1] if noise.ndim < dist_params.ndim else noise.shape)
    action = action.to(torch.int64) if noise.ndim < dist_params.ndim else action
    policy.sample(dist_params, policy.scale_noise(params, noise), action)
    return action


def test_gaussian_action_and_mode(gaussian):
    params = {"log_std": torch.tensor([0.0, math.log(3.0)])}
    dist_params = torch.tensor([[1.0, 2.0]])
    assert gaussian.mode(gaussian.distribution(params, dist_params)).tolist() == [[1.0, 2.0]]
    action = drawn(gaussian, params, dist_params, torch.tensor([[1.0, -1.0]]))
    torch.testing.assert_close(action, torch.tensor([[2.0, -1.0]]))


@pytest.mark.parametrize("name", ["gaussian", "state_scale", "categorical"])
def test_acting_computes_what_dist_does(name, request, generator):
    policy = request.getfixturevalue(name)
    params = policy.layout.unflatten(policy.init(generator))
    obs = torch.randn(8, 3)
    dist_params = policy.acting(params, 8)(obs)
    torch.testing.assert_close(policy.distribution(params, dist_params), policy.dist(params, obs))


@pytest.mark.parametrize(("name", "apart"), [("gaussian", 0.0), ("state_scale", 0.05)])
def test_gaussians_start_near_zero_with_the_asked_scale(name, apart, request, generator):
    policy = request.getfixturevalue(name)
    params = policy.layout.unflatten(policy.init(generator))
    mean, log_std = policy.dist(params, torch.randn(100, 3)).chunk(2, -1)
    assert mean.abs().max() < 0.05
    assert (log_std + 0.5).abs().max() <= apart


def test_a_scale_that_depends_on_the_state_is_bounded_alike_for_acting_and_learning(state_scale):
    dist_params = torch.tensor([[1.0, 2.0, math.log(3.0), 50.0]])
    expected = torch.tensor([[1.0, 2.0, math.log(3.0), 2.0]])
    torch.testing.assert_close(state_scale.distribution({}, dist_params), expected)
    assert state_scale.mode(dist_params).tolist() == [[1.0, 2.0]]
    action = drawn(state_scale, {}, dist_params, torch.tensor([[1.0, -1.0]]))
    torch.testing.assert_close(action, torch.tensor([[4.0, 2.0 - math.exp(2.0)]]))
    draw = torch.Generator().manual_seed(0)
    obs = torch.randn(50, 3, generator=draw)
    vector = torch.randn(state_scale.layout.size, generator=draw)
    log_std = state_scale.dist(state_scale.layout.unflatten(vector), obs).chunk(2, -1)[1]
    assert log_std.std(0).min() > 0.1  # it does depend on the state


def test_categorical_agrees_with_torch_distributions(categorical):
    p, q = torch.randn(5, 4).log_softmax(-1), torch.randn(5, 4).log_softmax(-1)
    action = torch.tensor([0, 1, 2, 3, 0])
    theirs = D.Categorical(logits=p)
    torch.testing.assert_close(categorical.log_prob(p, action), theirs.log_prob(action))
    torch.testing.assert_close(categorical.entropy(p), theirs.entropy())
    expected = D.kl_divergence(theirs, D.Categorical(logits=q))
    torch.testing.assert_close(categorical.kl(p, q), expected)


def test_categorical_samples_by_inverse_transform(categorical):
    dist = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(5, 4)
    noise = torch.tensor([0.0, 0.05, 0.15, 0.59, 0.9999999])
    assert drawn(categorical, {}, dist, noise).tolist() == [0, 0, 1, 2, 3]


def test_categorical_sampling_frequencies(categorical):
    dist = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(40_000, 4)
    noise = torch.from_numpy(categorical.noise(np.random.default_rng(0), 40_000))
    found = torch.bincount(drawn(categorical, {}, dist, noise)) / 40_000
    torch.testing.assert_close(found, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=0.01, rtol=0)


@pytest.mark.parametrize("width", [1, 3])
def test_noise_is_drawn_step_by_step(width):
    """Two short rollouts draw what one long one draws: the stream does not depend on T."""
    policy = GaussianPolicy(3, width, (8,), torch.tanh, 0.0)
    rng = np.random.default_rng(1)
    short = np.concatenate([policy.noise(rng, 2), policy.noise(rng, 2)])
    assert np.array_equal(short, policy.noise(np.random.default_rng(1), 4))


def test_critic_gives_one_value_a_row(generator):
    critic = Critic(3, (8,), torch.tanh)
    params = critic.layout.unflatten(critic.init(generator))
    assert critic(params, torch.zeros(2, 5, 3)).shape == (2, 5)


def test_hidden_weights_are_orthogonal(generator):
    critic = Critic(8, (8,), torch.tanh)
    weight = critic.layout.unflatten(critic.init(generator))["critic.0.weight"]
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(8), atol=1e-5, rtol=0)


def test_only_the_critic_has_normalised_layers():
    assert activation("critic_norm_relu") is torch.relu
    assert activation("critic_norm_relu", critic=True) is activation("norm_relu")


def test_unknown_activation_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'tanh'"):
        activation("tahn")


@pytest.mark.parametrize("inputs", [1, 11, 105, 348])
@pytest.mark.parametrize("hidden", [(), (64, 64), (10,), (17, 1), (5, 33), (256, 256)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_row_has_the_same_bits_wherever_it_lies(inputs, hidden, name, generator):
    x = torch.randn(128, inputs, generator=generator)
    for outputs in (1, 2, 6, 17):
        mlp = MLP("policy", (inputs, *hidden, outputs), activation(name))
        params = mlp.init_uniform(generator)
        whole = mlp.acting(params, 128)(x).clone()
        for rows in (ACTING_ROWS, 3 * ACTING_ROWS):
            part = mlp.acting(params, rows)
            for first in range(0, 128 - rows, 5):
                assert torch.equal(part(x[first : first + rows]), whole[first : first + rows])
