import numpy as np
import pytest
import torch

from tests.algos.on_policy.test_ppo import trained
from tests.conftest import read
from tests.test_training import learned
from walle.agent import checkpoint
from walle.agent.agent import Agent
from walle.agent.checkpoint import ReplayFiles
from walle.algos.off_policy.base import due_blocks
from walle.config import compose
from walle.errors import ConfigError
from walle.learning.adam import TrainState
from walle.learning.replay import Transitions
from walle.training import make_algorithm, make_problem, train

NAMES = ("ddpg", "td3", "sac", "xqc")
SMALL = (
    "net.policy_hidden=[16,16]",
    "net.critic_hidden=[16,16]",
    "algo.minibatch_size=16",
    "algo.learning_starts=100",
    "eval.episodes=0",
    "logger.progress=quiet",
    "batch_size=48",
    "sampler.lanes=6",
    "total_steps=240",
)


@pytest.fixture
def run(tmp_path):
    """Trains five small rounds; later overrides win. Returns the directory."""
    count = iter(range(100))

    def _run(*overrides):
        directory = tmp_path / f"run{next(count)}"
        train(compose([*overrides[:1], *SMALL, *overrides[1:]]), directory)
        return directory

    return _run


def made(name, *overrides):
    config = compose([f"algo={name}", "sampler=serial", *SMALL, *overrides])
    return make_algorithm(config, make_problem(config)[0])


def test_updates_are_due_for_the_steps_after_the_start():
    due = [due_blocks(steps, 0.5, starts=100, block=2) for steps in range(30, 181, 30)]
    assert due == [0, 0, 0, 5, 12, 20]
    assert due[-1] == (180 - 100) * 0.5 / 2


@pytest.mark.slow
def test_the_step_size_falls_to_0_at_the_last_update():
    """A constant gradient moves parameters by the step size, here of a part with every second
    update of 140."""
    algorithm = made("td3", "env=hopper", "algo.schedule=linear", "algo.learning_rate=0.5")
    part = TrainState.start(torch.zeros(1))
    for n in range(80):
        moved, before = algorithm.adam_step(part, torch.ones(1), updates=2), part.vector
        expected = torch.full((1,), -0.5 * max(0.0, 1 - 2 * n / 140))
        torch.testing.assert_close(moved.vector - before, expected, atol=1e-5, rtol=1e-5)
        part = moved


@pytest.mark.parametrize("per_step", [0.1, 0.3, 1.0, 2.5])
def test_what_is_owed_depends_on_the_steps_alone(per_step):
    assert due_blocks(1000, per_step, starts=7, block=3) == int(per_step * 993 / 3 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ddpg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("td3", "sac"))]
)
def test_learning_does_not_depend_on_the_number_of_samplers(run, name):
    # pendulum has one action entry and hopper three, and ends episodes early
    env = "pendulum" if name == "td3" else "hopper"
    expected = learned(run(f"algo={name}", f"env={env}", "sampler=serial"))
    assert len(expected) == 5
    assert float(expected[-1]["critic_loss"]) > 0
    for n in (1, 2, 3) if name == "sac" else (2,):
        assert learned(run(f"algo={name}", f"env={env}", f"sampler.n={n}")) == expected


@pytest.mark.slow
def test_overlapped_learning_does_not_depend_on_it_either(run):
    overlapped = ("algo=sac", "env=hopper", "sampler.max_lag=1")
    one, three = (learned(run(*overlapped, f"sampler.n={n}")) for n in (1, 3))
    assert one == three


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sampler=serial", "sampler.max_lag=1", "sampler.max_lag=null"])
@pytest.mark.parametrize("name", [pytest.param("td3", marks=pytest.mark.slow), "sac"])
def test_every_mode_takes_the_same_updates(run, name, mode):
    samplers = () if mode == "sampler=serial" else ("sampler.n=2",)
    directory = run(f"algo={name}", "env=pendulum", mode, *samplers, "algo.updates_per_step=0.5")
    rows = read(directory / "iterations.csv")
    for row in rows:
        steps, done = (
            int(row["env_steps"]),
            sum(int(r["gradient_steps"]) for r in rows[: rows.index(row) + 1]),
        )
        owed = max(0, steps - 100) // 2
        assert done == (owed // 2 * 2 if name == "td3" else owed)


def test_nothing_is_learned_before_the_start(run):
    rows = read(run("algo=sac", "env=pendulum", "sampler.n=1") / "iterations.csv")
    assert [row["gradient_steps"] for row in rows] == ["0", "0", "44", "48", "48"]
    assert [row["critic_loss"] == "" for row in rows] == [True, True, False, False, False]


def test_a_signal_may_break_off_the_first_gradient_steps(run, monkeypatch):
    long, iterate = [], Agent._iterate

    def noted(agent, *arguments):
        long.append(agent._is_long)
        iterate(agent, *arguments)

    monkeypatch.setattr(Agent, "_iterate", noted)
    rounds = ("batch_size=60", "total_steps=240", "algo.learning_starts=120")
    run("algo=sac", "env=pendulum", *rounds, "algo.updates_per_step=0.1")
    assert long == [True, True, True, False]


@pytest.mark.parametrize("name", NAMES[:3])
def test_actions_are_random_until_the_start_and_the_policy_s_from_then_on(name):
    algorithm, rollout = trained(0, f"algo={name}", *SMALL, "env=pendulum")
    random = np.array(-np.log(2), np.float32)
    assert (rollout.log_prob == random).all()
    for _ in range(2):
        assert algorithm.snapshot().vector[algorithm.policy.layout.size] == 1
        algorithm.update(rollout)
    algorithm.update(rollout)
    assert algorithm.snapshot().vector[algorithm.policy.layout.size] == 0
    algorithm, rollout = trained(3, f"algo={name}", *SMALL, "env=pendulum")
    assert (rollout.log_prob != random).all()


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_from_its_state(name):
    ours, rollout = trained(3, f"algo={name}", *SMALL, "env=pendulum")
    theirs = made(name, "env=pendulum", "seed=5")
    theirs.load_state_dict(ours.state_dict())
    inserted = ours.replay.inserted
    theirs.replay.restore(ours.replay.rows(0, inserted), inserted)
    assert ours.update(rollout) == theirs.update(rollout)
    assert (ours.snapshot().vector == theirs.snapshot().vector).all()


IMAGES = ("env=gym", "env.id=tests.toy_images:Look", "net=cnn")  # rows of bytes


@pytest.mark.parametrize("case", [*NAMES, "dqn", "images"])
def test_rewards_of_minibatches_are_divided_by_the_deviation_of_returns(case):
    name = "dqn" if case == "images" else case
    task = {"dqn": (*SMALL[:2], "env=cartpole"), "images": IMAGES}.get(
        case, (*SMALL[:2], "env=pendulum")
    )
    normalized = "algo.normalize_rewards=true"
    algorithm, rollout = trained(2, f"algo={name}", *SMALL[2:], *task, normalized)
    rewards, obs = algorithm.rewards, algorithm.obs_dim
    expected = rewards._moments.variance**-0.5
    assert 0 < expected != 1
    rows = algorithm.replay.rows(0, algorithm.replay.inserted)
    drawn = algorithm._draw(2).minibatches
    raw, found = (Transitions.split(x, obs) for x in (rows, drawn))
    scaled = found.reward.flatten()
    assert scaled.any()
    nearest = (scaled[:, None] - raw.reward * expected).abs().amin(-1)
    assert nearest.max() < 1e-4 * scaled.abs().max()
    assert torch.isin(found.continues, raw.continues).all()
    assert torch.isin(found.action, raw.action).all()
    before = rewards._moments.count
    algorithm.update(rollout)
    assert rewards._moments.count == before + rollout.env_steps


def test_rewards_are_those_of_the_environment_unless_normalised():
    algorithm, _ = trained(2, "algo=sac", *SMALL, "env=pendulum")
    raw = algorithm.replay.rows(0, algorithm.replay.inserted)[:, -2]
    assert torch.isin(algorithm._draw(2).minibatches[..., -2], raw).all()
    assert "rewards" not in algorithm.state_dict()


def test_the_buffer_lies_beside_the_checkpoint(run):
    directory = run("algo=sac", "env=pendulum", "sampler.n=1")
    state = checkpoint.load(directory / "checkpoints" / "last.pt")
    assert state["replay"] == {"inserted": 240, "size": 240}
    algorithm = made("sac", "env=pendulum")
    algorithm.load_state_dict(state["algorithm"])
    ReplayFiles(directory / "checkpoints" / "replay").load(algorithm.replay, **state["replay"])
    assert len(algorithm.replay) == 240
    assert algorithm.replay.rows(0, 240).isfinite().all()
    assert torch.equal(algorithm.state_dict()["generator"], state["algorithm"]["generator"])


@pytest.mark.parametrize("name", NAMES)
def test_discrete_actions_are_refused(name):
    with pytest.raises(
        ConfigError, match=r"continuous actions.* 2 discrete actions.*algo=dqn or ppo"
    ):
        made(name, "env=cartpole")


def test_actions_in_their_own_units_are_refused():
    with pytest.raises(ConfigError, match=r"run from \[-2\.\] to \[2\.\]; use env.action=rescale"):
        made("sac", "env=pendulum", "env.action=clip")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algo.tau=0", r"algo\.tau=0\.0 must lie in \(0, 1\]"),
        ("algo.gamma=1.5", r"algo\.gamma=1\.5 must lie"),
        ("algo.learning_starts=-1", r"algo\.learning_starts=-1 must not be negative"),
        ("algo.updates_per_step=0", r"algo\.updates_per_step=0\.0 must be positive"),
        ("algo.buffer_size=0", r"algo\.buffer_size=0 must be positive"),
        ("sampler.collect=episodes", r"algo=sac, whose buffer holds steps.*sampler\.collect=fixed"),
        (
            "algo.compile=maybe",
            r"algo\.compile='maybe' is unknown; choose one of: auto",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        compose(["algo=sac", override])


@pytest.mark.parametrize(
    ("name", "override"),
    [("buffer_size", "total_steps=1e12"), ("minibatch_size", "algo.minibatch_size=1e10")],
)
def test_what_memory_cannot_hold_is_refused(name, override):
    with pytest.raises(ConfigError, match=rf"algo.{name}=\d+ needs .* the largest that fits"):
        made("sac", "env=pendulum", "algo.buffer_size=1e12", override)


@pytest.mark.slow
def test_the_best_checkpoint_is_without_the_buffer(run):
    directory = run("algo=sac", "env=pendulum", "eval.every=96", "eval.episodes=1")
    best, last = (checkpoint.load(directory / "checkpoints" / f"{n}.pt") for n in ("best", "last"))
    assert "replay" in last
    assert "replay" not in best
    algorithm = made("sac", "env=pendulum")
    algorithm.load_state_dict(best["algorithm"])
    assert (algorithm.snapshot().vector == best["snapshot"]["vector"].numpy()).all()
