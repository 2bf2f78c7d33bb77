"""Every head of the passes in C++ has the loss, the numbers and the gradient of PyTorch's."""

import shutil
from itertools import product

import pytest
import torch

from tests.learning.sharing.test_team import in_threads, nothing
from walle.algos.on_policy.ppo_kl import PPOKLBatch
from walle.learning import losses
from walle.learning.adam import AdamSettings, AdamState
from walle.learning.native.passes import Columns, Loss, Passes
from walle.learning.sharing.shared_team import SharedTeam, TeamMemory
from walle.learning.sharing.team import ALONE
from walle.nets.critics import Critic
from walle.nets.policies import (
    BernoulliPolicy,
    CategoricalPolicy,
    GaussianPolicy,
    MultiCategoricalPolicy,
    StateScalePolicy,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

OBS, ROWS = 5, 150
NET = (7, 9), torch.tanh
POLICIES = {
    "gaussian": GaussianPolicy(OBS, 3, *NET, -0.5),
    "gaussian, wide": GaussianPolicy(OBS, 40, *NET, -0.5),
    "gaussian, scale of the state": StateScalePolicy(OBS, 3, *NET, -0.5),
    "categorical": CategoricalPolicy(OBS, 4, *NET),
    "categorical, wide": CategoricalPolicy(OBS, 40, *NET),
    "several choices": MultiCategoricalPolicy(OBS, (3, 1, 17), *NET),
    "switches": BernoulliPolicy(OBS, 3, *NET),
    "no policy": None,
}
LOSSES = {
    "clip": Loss("clip", value_weight=0.5, entropy_weight=0.02, clip=0.1),
    "clip, values too": Loss("clip", value_weight=0.5, entropy_weight=0.02, value_clip=0.1),
    "policy gradient": Loss("policy_gradient", value_weight=0.5, entropy_weight=0.02),
    "penalty": Loss("kl_penalty", eta=50.0, kl_target=1.0),
    "penalty with an excess": Loss("kl_penalty", eta=50.0, kl_target=1e-3),
}
BETA = 0.7
CASES = [
    *product([name for name in POLICIES if POLICIES[name]], LOSSES),
    ("no policy", "clip"),
    ("no policy", "clip, values too"),
]


def drawn(policy, critic):
    """Parameters of policy and critic, and rows of an older policy near by."""
    generator = torch.Generator().manual_seed(3)
    randn = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    nets = [net for net in (policy, critic) if net is not None]
    vector = torch.cat([net.init(generator) for net in nets])
    vector = vector + 0.3 * randn(len(vector))
    rows = Columns(obs=randn(ROWS, OBS), target=randn(ROWS), value=randn(ROWS))
    if policy is None:
        return vector, rows
    older = vector + 0.05 * randn(len(vector))
    dist = policy.dist(policy.layout.unflatten(older[: policy.layout.size]), rows.obs)
    action = policy.mode(dist)  # of the right shape and type
    if isinstance(policy, GaussianPolicy):
        action = action + randn(*action.shape)
    else:
        counts = torch.tensor(getattr(policy, "counts", [dist.shape[-1]]))
        counts = 2 * torch.ones(3) if isinstance(policy, BernoulliPolicy) else counts
        drawn = torch.rand(ROWS, len(counts), generator=generator) * counts
        action = drawn.long().view_as(action)
    log_prob = policy.log_prob(dist, action)
    return vector, rows._replace(action=action, log_prob=log_prob, advantage=randn(ROWS), dist=dist)


def expected(policy, critic, loss, vector, rows):
    """The loss of PyTorch, its numbers and its gradient."""
    vector = vector.clone().requires_grad_()
    size = policy.layout.size if policy else 0
    total, info = torch.zeros(()), {}
    if policy is not None:
        dist = policy.dist(policy.layout.unflatten(vector[:size]), rows.obs)
        log_prob = policy.log_prob(dist, rows.action)
        if loss.objective == "clip":
            arguments = log_prob, rows.log_prob, rows.advantage, loss.clip
            policy_loss, info = losses.ppo_clip(*arguments)
        elif loss.objective == "policy_gradient":
            policy_loss = losses.policy_gradient(log_prob, rows.advantage)
        else:
            kl, penalty = policy.kl(rows.dist, dist), (BETA, loss.eta, loss.kl_target)
            arguments = log_prob, rows.log_prob, rows.advantage, kl, *penalty
            policy_loss, info = losses.ppo_kl(*arguments)
        info |= {"policy_loss": policy_loss, "entropy": policy.entropy(dist).mean()}
        total = policy_loss - loss.entropy_weight * info["entropy"]
    if critic is not None:
        value = critic(critic.layout.unflatten(vector[size:]), rows.obs)
        info["value_loss"] = losses.value_loss(value, rows.target, rows.value, loss.value_clip)
        total = total + loss.value_weight * info["value_loss"]
    (gradient,) = torch.autograd.grad(total, vector)
    info |= {"loss": total, "grad_norm": gradient.norm()}
    return gradient, {name: x.item() for name, x in info.items()}


def step(policy, critic, loss, vector, rows, shards=1, team=ALONE):
    """A step of the library on all rows; the gradient is ten times Adam's first mean."""
    passes = Passes(policy, critic, "tanh", loss, AdamSettings(), shards)
    passes.join_team(team)
    if loss.objective == "kl_penalty":
        rows = PPOKLBatch(*rows, torch.tensor(BETA))
    return passes.minimise(
        vector,
        AdamState.zeros_like(vector),
        rows,
        epochs=1,
        minibatch_size=len(rows.obs),
        learning_rate=1e-3,
        generator=torch.Generator(),
    )


def networks(case):
    name, of_loss = case
    critic = None if LOSSES[of_loss].objective == "kl_penalty" else Critic(OBS, *NET)
    return POLICIES[name], critic, LOSSES[of_loss]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_gradient_and_the_numbers_are_those_of_pytorch(case):
    policy, critic, loss = networks(case)
    vector, rows = drawn(policy, critic)
    if loss.objective != "kl_penalty":
        rows = rows._replace(dist=None)
    gradient, info = expected(policy, critic, loss, vector, rows)
    result = step(policy, critic, loss, vector, rows)
    assert result.info == pytest.approx({name: info[name] for name in result.info}, rel=1e-4)
    if "excess" in case[1]:
        assert info["kl"] > 2 * loss.kl_target
    scale = float(gradient.abs().max())
    torch.testing.assert_close(10 * result.state.mean, gradient, atol=1e-5 * scale, rtol=1e-3)


@pytest.mark.parametrize(
    "case",
    [
        ("categorical, wide", "clip"),
        ("several choices", "policy gradient"),
        ("gaussian", "penalty with an excess"),
        ("no policy", "clip"),
    ],
    ids=" ".join,
)
def test_the_bits_do_not_depend_on_the_number_of_learners(case):
    torch.set_num_threads(1)
    arguments = networks(case)
    given = drawn(*arguments[:2])
    alone = step(*arguments, *given, shards=3)
    for size in (2, 3):
        memory = TeamMemory(size)

        def learner(rank, memory=memory):
            return step(*arguments, *given, 3, SharedTeam(rank, memory, "cpu", nothing))

        for result in in_threads(size, learner):
            assert result.vector.equal(alone.vector)
            assert result.info == alone.info


@pytest.mark.parametrize(
    ("field", "change", "error", "message"),
    [
        ("action", lambda x: x[:-1], ValueError, r"expected the shape \(150, 1\), got \(149, 1\)"),
        ("action", lambda x: x.float(), TypeError, r"expected contiguous torch\.int64"),
        ("advantage", lambda x: x[1:], ValueError, r"expected the shape \(150,\), got \(149,\)"),
        ("target", lambda x: None, ValueError, r"target: .* got no tensor"),
        ("obs", lambda x: x[:, 1:], ValueError, r"expected the shape \(150, 5\), got \(150, 4\)"),
        ("dist", lambda x: x[:, 1:], ValueError, r"expected the shape \(150, 4\), got \(150, 3\)"),
        ("log_prob", lambda x: x.double(), TypeError, r"got torch\.float64"),
    ],
)
def test_columns_of_another_shape_or_type_are_refused(field, change, error, message):
    policy, critic, loss = networks(("categorical", "clip"))
    vector, rows = drawn(policy, critic)
    with pytest.raises(error, match=message):
        step(policy, critic, loss, vector, rows._replace(**{field: change(getattr(rows, field))}))
    with pytest.raises(ValueError, match="expected the shape"):
        step(policy, critic, loss, vector[1:], rows)
