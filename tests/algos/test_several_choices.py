"""Runs whose actions are several choices at once: MultiDiscrete and MultiBinary."""

import numpy as np
import pytest

import walle
from tests.test_training import learned
from walle.config import compose
from walle.errors import ConfigError
from walle.nets.policies import BernoulliPolicy, MultiCategoricalPolicy
from walle.policy.export import export
from walle.training import make_algorithm, make_problem, train

LEVERS = ("env=gym", "env.id=tests.toy_images:Levers-v0")
KINDS = ("dials", "switches")
SMALL = ("eval.episodes=0", "logger.progress=quiet", "batch_size=64", "sampler.lanes=4")


def levers(kind, *overrides):
    return [*LEVERS, f"+env.kwargs.actions={kind}", *SMALL, *overrides]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """PPO's run on each kind, learned until it knows the answers; read only."""
    found = {}
    for kind in KINDS:
        found[kind] = tmp_path_factory.mktemp(kind)
        more = ("batch_size=256", "sampler.lanes=16", "algo.gamma=0", "algo.learning_rate=1e-3")
        config = compose(levers(kind, *more, "sampler=serial", "total_steps=4096"))
        train(config, found[kind])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_ppo_learns_every_choice(trained, kind):
    found = walle.evaluate(trained[kind], episodes=20)
    most = 8 * (2 if kind == "dials" else 3)
    assert np.mean(found.returns) > 0.95 * most


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_policy_gives_the_environments_own_actions(trained, kind):
    policy = walle.load(trained[kind])
    with policy.env() as env:
        obs, _ = env.reset(seed=0)
        assert env.action_space.contains(policy.act(obs))
        assert env.action_space.contains(policy.act(obs, deterministic=False))
        rows = np.stack([env.reset(seed=seed)[0] for seed in range(5)])
    assert policy.act(rows).shape == (5, 2 if kind == "dials" else 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_policy_gives_the_same_actions(trained, kind, tmp_path):
    assert export(walle.load(trained[kind]), tmp_path / "policy.pt2") == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "a2c", "trpo", "ppo_kl"])
def test_learning_does_not_depend_on_the_number_of_samplers(name, tmp_path):
    kind = "dials" if name in ("ppo", "trpo") else "switches"
    for n in (1, 2):
        asked = levers(kind, f"algo={name}", f"sampler.n={n}", "total_steps=192")
        train(compose(asked), tmp_path / str(n))
    assert len(learned(tmp_path / "1")) == 3
    assert learned(tmp_path / "1") == learned(tmp_path / "2")


@pytest.mark.parametrize(
    ("kind", "policy"), [("dials", MultiCategoricalPolicy), ("switches", BernoulliPolicy)]
)
def test_the_policy_fits_the_actions(kind, policy):
    config = compose(levers(kind))
    assert isinstance(make_algorithm(config, make_problem(config)[0]).policy, policy)


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "xqc", "dqn"])
@pytest.mark.parametrize("kind", KINDS)
def test_off_policy_algorithms_refuse_them_by_name(name, kind):
    config = compose(levers(kind, f"algo={name}"))
    with pytest.raises(ConfigError, match=rf"algo={name} needs .* actions Multi.* use algo=ppo"):
        make_algorithm(config, make_problem(config)[0])


def test_a_scale_is_refused():
    config = compose(levers("dials", "net.scale=state"))
    with pytest.raises(ConfigError, match="discrete actions, which have no scale"):
        make_algorithm(config, make_problem(config)[0])
