"""Every registered algorithm in every mode it allows; every other mode refused with the reason."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from tests.conftest import read
from tests.test_training import learned
from walle.agent import checkpoint
from walle.algos import REGISTRY, load
from walle.algos.base import ALL_MODES
from walle.config import compose
from walle.errors import ConfigError
from walle.training import make_algorithm, make_problem, train

MODES = {
    "serial": ("sampler=serial",),
    "lock_step": ("sampler.n=2", "sampler.max_lag=0"),
    "overlapped": ("sampler.n=2", "sampler.max_lag=1"),
    "free": ("sampler.n=2", "sampler.max_lag=null"),
}
QUICK = (
    "env=pendulum",  # continuous actions, which every algorithm has
    "batch_size=64",
    "sampler.lanes=4",
    "total_steps=192",
    "eval.episodes=0",
    "logger.progress=quiet",
)
ALLOWED = [(name, mode) for name in REGISTRY for mode in load(name).capabilities.modes]
FORBIDDEN = [
    (name, mode) for name in REGISTRY for mode in MODES if mode not in load(name).capabilities.modes
]


def overrides(name, mode):
    """A run of three rounds in which the algorithm learns from the first one on."""
    settings = {field.name for field in fields(load(name).capabilities.settings)}
    few = {"learning_starts": 0, "updates_per_step": 0.1, "buffer_size": 300}
    own = [f"algo.{key}={value}" for key, value in few.items() if key in settings]
    env = ["env=cartpole"] if name in ("dqn", "pqn") else []  # the actions are discrete
    return [f"algo={name}", *QUICK, *env, *MODES[mode], *own]


ALL_QUICK = ("ppo", "a3c")  # the other algorithms' modes with processes are slow, but for SAC's lag


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(
            name,
            mode,
            marks=[]
            if mode == "serial" or name in ALL_QUICK or (name, mode) == ("sac", "overlapped")
            else pytest.mark.slow,
        )
        for name, mode in ALLOWED
    ],
)
def test_every_algorithm_trains_in_every_mode_it_allows(name, mode, tmp_path):
    outcome = train(compose(overrides(name, mode)), tmp_path)
    rows = read(tmp_path / "iterations.csv")
    assert len(rows) >= 3
    assert outcome.env_steps == int(rows[-1]["env_steps"]) >= 192
    versions = [int(row["policy_version"]) for row in rows]
    assert versions == list(range(len(rows)))
    lags = [int(row["lag_max"]) for row in rows]
    if mode != "free":  # whose lag is a matter of timing
        assert max(lags) == (1 if mode == "overlapped" else 0)


@pytest.mark.parametrize(("name", "mode"), FORBIDDEN)
def test_every_other_mode_is_refused_with_the_reason(name, mode):
    assert load(name).capabilities.reason
    with pytest.raises(ConfigError) as refused:
        compose(overrides(name, mode))
    assert load(name).capabilities.reason in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, mode in ALLOWED if mode == "lock_step"])
def test_learning_does_not_depend_on_the_number_of_samplers(name, tmp_path):
    for n in (1, 3):
        train(compose([*overrides(name, "lock_step"), f"sampler.n={n}"]), tmp_path / str(n))
    assert len(learned(tmp_path / "1")) == 3
    assert learned(tmp_path / "1") == learned(tmp_path / "3")


@pytest.mark.parametrize("name", REGISTRY)
def test_every_algorithm_goes_on_from_its_checkpoint(name, tmp_path):
    config = compose(overrides(name, load(name).capabilities.modes[0]))
    train(config, tmp_path)
    state = checkpoint.load(tmp_path / "checkpoints" / "last.pt")
    algorithm = make_algorithm(config, make_problem(config)[0])
    algorithm.load_state_dict(state["algorithm"])
    snapshot = algorithm.snapshot()
    assert state["snapshot"]["version"] >= 3
    assert (snapshot.vector == state["snapshot"]["vector"].numpy()).all()
    again = algorithm.state_dict()
    assert torch.equal(again["generator"], state["algorithm"]["generator"])


@pytest.mark.parametrize(
    "name", [name for name in REGISTRY if not load(name).capabilities.recurrent]
)
def test_a_memory_that_an_algorithm_cannot_learn_with_is_refused_with_the_cure(name):
    with pytest.raises(ConfigError) as refused:
        compose([f"algo={name}", "net=gru"])
    assert f"algo={name} cannot run with net=gru" in str(refused.value)
    assert "a memory needs sequences" in str(refused.value)
    assert "use net=mlp, or algo=ppo" in str(refused.value)


@pytest.mark.parametrize("name", REGISTRY)
def test_what_an_algorithm_says_of_its_modes_holds_together(name):
    modes = load(name).capabilities.modes
    assert modes
    assert set(modes) <= set(ALL_MODES) == set(MODES)
    assert (load(name).capabilities.reason == "") == (set(modes) == set(ALL_MODES))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "ppo_kl", "trpo", "a2c"])
def test_a_scale_that_depends_on_the_state_learns_too(name, tmp_path):
    asked = (*overrides(name, "lock_step"), "net.scale=state")
    train(compose(asked), tmp_path / "2")
    train(compose([*asked, "sampler.n=1"]), tmp_path / "1")
    assert len(learned(tmp_path / "1")) == 3
    assert learned(tmp_path / "1") == learned(tmp_path / "2")


def test_a_scale_that_depends_on_the_state_needs_continuous_actions():
    config = compose(["env=cartpole", "net.scale=state"])
    with pytest.raises(ConfigError, match="discrete actions, which have no scale"):
        make_algorithm(config, make_problem(config)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a2c", "ppo_kl"])
def test_steps_over_whole_rounds_stay_eager_where_rounds_vary(name):
    overrides = [f"algo={name}", "env=cartpole", "sampler.collect=episodes", "net.activation=elu"]
    config = compose(overrides)
    problem = make_problem(config)[0]
    line = make_algorithm(config, problem).warm_up()
    assert "eager: rounds differ in their number of steps" in line
    config = compose([*overrides, "algo.compile=true"])
    with pytest.raises(ConfigError, match=r"algo.compile=true: rounds differ"):
        make_algorithm(config, problem)
