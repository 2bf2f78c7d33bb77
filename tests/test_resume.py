"""A run that is killed and resumed ends with the same bits as one that never was.

Six rounds are compared with a run that wrote a checkpoint after the third round, was killed after
the fourth, and was resumed: every column of every CSV file but times, and every number of the
last checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from typing import NamedTuple

import gymnasium as gym
import pytest
import torch

from tests.conftest import read
from walle.agent import checkpoint
from walle.agent.agent import Agent
from walle.algos import engines
from walle.config import compose as compose_anew
from walle.config.files import example_directory
from walle.envs.observations import space_values
from walle.errors import ConfigError
from walle.learning import step
from walle.training import train

compose = cache(lambda *overrides: compose_anew(list(overrides)))
ROUNDS, CHECKPOINT, KILLED = 6, 3, 4
SMALL = (
    "batch_size=128",
    "sampler.lanes=8",
    f"total_steps={ROUNDS * 128}",
    "eval.every=256",
    "eval.episodes=2",
    "checkpoint.every=null",
    "logger.progress=quiet",
    "env.episode_limit=40",
    "algo.compile=false",
)
TASKS = {
    "halfcheetah": ("env=halfcheetah",),
    "ant": ("env=ant",),  # its lanes step in a Python loop
    "cartpole": ("env=cartpole",),  # its state is a pickle
    "lunar_lander": ("env=lunar_lander",),  # its state is an episode's actions
    "robot": ("env=gym", "env.id=tests.toy_robot:ROBOT"),
    "own": ("env=gym", "env.id=tests.toy:Season-v0"),  # its episodes depend on those before
    "pendulum": ("env=pendulum",),
}
QUICK = {  # what makes an algorithm learn from the first rounds on, in little time
    "ppo": ("algo.epochs=2", "algo.minibatch_size=64"),
    "ppo_kl": ("algo.epochs=2",),
    "trpo": (),
    "parallel_trpo_2016": (  # in examples/, whose rounds change their size
        f"hydra.searchpath=[file://{example_directory('parallel_trpo_2016')}/conf]",
        "algo.adapt=adaptive",
    ),
    "a2c": (),
    "pqn": ("algo.epochs=2",),
    **dict.fromkeys(
        ("ddpg", "td3", "sac", "xqc", "dqn"),
        (
            *("algo.learning_starts=150", "algo.updates_per_step=0.1", "algo.minibatch_size=32"),
            *("algo.buffer_size=300", "net.policy_hidden=[16,16]", "net.critic_hidden=[16,16]"),
        ),
    ),
}
COLLECT = {
    "fixed": (),
    "episodes": ("sampler.collect=episodes", "env.episode_limit=12"),
    "gru": ("net=gru", "net.hidden=16", "net.sequence=8", "algo.minibatch_size=64"),
}


class Case(NamedTuple):
    """A run, and the settings that change when it is resumed."""

    task: str
    algo: str
    lag: int = 0
    collect: str = "fixed"
    then: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def overrides(self):
        return self.words(*self.more)

    @property
    def resumed(self):
        return self.words(*self.more, *self.then)

    def words(self, *more):
        serial = "sampler=serial" in more
        samplers = () if serial else ("sampler.n=2", f"sampler.max_lag={self.lag}")
        small = (*SMALL, *QUICK[self.algo], *samplers, *COLLECT[self.collect])
        return [*TASKS[self.task], f"algo={self.algo}", *small, *more]

    def __str__(self):
        parts = (self.algo, self.task, f"lag {self.lag}", self.collect, *self.more, *self.then)
        return ", ".join(parts)


class KilledError(BaseException):
    """Ends a run as SIGKILL would: nothing is saved."""


def dies(monkeypatch, how):
    """A run now writes its checkpoint after round 3, and ends by `how` after round 4."""
    iterate = Agent._iterate

    def iterated(dying, *arguments):
        iterate(dying, *arguments)
        if dying.iteration == CHECKPOINT:
            dying.save_last()
        if dying.iteration == KILLED:
            dying._state_to_save = lambda: None
            how()

    monkeypatch.setattr(Agent, "_iterate", iterated)


def killed():
    raise KilledError


def killed_run(overrides, directory, how=killed):
    with pytest.MonkeyPatch.context() as patch:
        dies(patch, how)
        with pytest.raises(KilledError):
            train(compose(*overrides), directory)


def resume(overrides, directory):
    config = compose(*overrides)
    state = checkpoint.earlier_state(directory, print, total_steps=config.total_steps)
    assert state["iteration"] == CHECKPOINT
    train(config, directory, resumed=state)


def rows(directory, samplers):
    """All CSV files without times; without names of samplers unless `samplers` asks for them."""
    found = {}
    for name in ("iterations", "episodes", "eval", "timing"):
        table = read(directory / f"{name}.csv")
        columns = [
            column
            for column in (table[0] if table else ())
            if not column.endswith(("_s", "_share"))
            and (samplers or column not in ("sampler", "process"))
        ]
        found[name] = [{column: row[column] for column in columns} for row in table]
    if not samplers:
        del found["timing"]  # a row for each process
    return found


def flat(value, name=""):
    """Every number and tensor of a checkpoint by its name, but for times, the settings, and the
    blocks in which replay rows were written."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in ("wall_s", "lengths", "config", "lanes", "replay_blocks"):
                yield from flat(each, f"{name}/{key}")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from flat(each, f"{name}/{i}")
    else:
        yield name, value


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bytes_of(a) == bytes_of(b)
    return type(a) is type(b) and (a == b or (a != a and b != b))


def bytes_of(tensor):
    return tensor.numpy().tobytes()


def lanes_of(state):
    """Round, observation and memory of each lane; states are taken only now and then."""
    return {
        number: (block["round"], bytes_of(block["obs"][i]), bytes_of(block["memory"][i]))
        for block in state["lanes"]
        for i, number in enumerate(block["numbers"].tolist())
    }


def assert_same_run(whole, resumed, *, samplers):
    expected, found = rows(whole, samplers), rows(resumed, samplers)
    for name, table in expected.items():
        assert found[name] == table, name
    assert len(expected["iterations"]) >= ROUNDS - 1
    for name in ("last.pt", "best.pt"):
        ours, theirs = (checkpoint.load(each / "checkpoints" / name) for each in (whole, resumed))
        a, b = dict(flat(ours)), dict(flat(theirs))
        assert a.keys() == b.keys(), name
        assert [key for key in a if not same(a[key], b[key])] == [], name
        assert lanes_of(ours) == lanes_of(theirs) if name == "last.pt" else True


def check(case, tmp_path):
    train(compose(*case.overrides), tmp_path / "whole")
    killed_run(case.overrides, tmp_path / "resumed")
    iterations = len(read(tmp_path / "resumed" / "iterations.csv"))
    assert iterations == KILLED, "nothing is left to cut"
    resume(case.resumed, tmp_path / "resumed")
    found = read(tmp_path / "resumed" / "iterations.csv")
    compiling = [int(row["iteration"]) for row in found if float(row["compile_s"]) > 0]
    assert compiling == [1, CHECKPOINT + 1]  # the analysis takes both for warm-up
    samplers = not any("sampler" in override for override in case.then)
    assert_same_run(tmp_path / "whole", tmp_path / "resumed", samplers=samplers)


SERIAL = ("sampler=serial",)
THREE = ("sampler.n=3",)
ONE_LEARNER = ("learner.n=1",)
COVERING = [
    Case("halfcheetah", "ppo", then=THREE),
    Case("cartpole", "ppo", lag=1, collect="gru", then=THREE),
    Case("lunar_lander", "trpo", collect="episodes", more=SERIAL),
    Case("ant", "a2c", more=SERIAL),
    Case("own", "ppo_kl", lag=1, then=("sampler.n=1",)),
    Case("robot", "sac", more=SERIAL),
    Case("pendulum", "td3", lag=1, then=THREE),
    Case("cartpole", "dqn", lag=1, then=THREE),
]


QUICKEST = (0, 5)  # processes, and a replay buffer; the rest is slow


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if i in QUICKEST else pytest.mark.slow, id=str(case))
        for i, case in enumerate(COVERING)
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(case, tmp_path):
    check(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [COVERING[1], COVERING[5]],
    ids=str,
)
def test_a_run_that_was_interrupted_before_its_first_round_goes_on(case, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    config = compose(*case.overrides)
    train(config, tmp_path / "whole")
    monkeypatch.setattr(engines, "choose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "resumed")
    monkeypatch.undo()
    state = checkpoint.earlier_state(tmp_path / "resumed", print)
    assert state["iteration"] == 0
    train(config, tmp_path / "resumed", resumed=state)
    assert_same_run(tmp_path / "whole", tmp_path / "resumed", samplers=True)


INTERRUPTED = [
    Case("cartpole", "ppo", more=SERIAL),
    Case("cartpole", "ppo", more=("sampler.n=1",)),
    Case("cartpole", "ppo", more=("sampler.n=2",)),
    Case("cartpole", "ppo", more=(*SERIAL, "learner.n=2", "learner.shards=2")),
    Case("pendulum", "sac", more=SERIAL),  # the rows of the round leave the buffer again
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (i > 0)) for i, case in enumerate(INTERRUPTED)],
    ids=str,
)
def test_a_signal_undoes_a_long_update(case, tmp_path, monkeypatch):
    overrides, calls, take_step = (*case.overrides, "checkpoint.every=128"), [], step.take_step

    def interrupted(*arguments):
        calls.append(0)
        if len(calls) == 3:  # steps of the update
            os.kill(os.getpid(), signal.SIGINT)
        return take_step(*arguments)

    iterate = Agent._iterate

    def third(agent, *arguments):
        if agent.iteration == 2:  # as after an update of more than a second
            agent._is_long = True
            monkeypatch.setattr(step, "take_step", interrupted)
        iterate(agent, *arguments)

    train(compose(*overrides), tmp_path / "whole")
    monkeypatch.setattr(Agent, "_iterate", third)
    result = train(compose(*overrides), tmp_path / "resumed")
    monkeypatch.undo()
    assert (result.signal, len(calls)) == (signal.SIGINT, 3)
    state = checkpoint.earlier_state(tmp_path / "resumed", print)
    assert state["iteration"] == 2
    train(compose(*overrides), tmp_path / "resumed", resumed=state)
    assert_same_run(tmp_path / "whole", tmp_path / "resumed", samplers=True)


@pytest.mark.parametrize("leaves", [3, 21])  # the trial notices, or only the restored lanes do
def test_an_environment_that_cannot_go_on_begins_new_episodes_and_says_so(tmp_path, capsys, leaves):
    env = ("env=gym", "env.id=tests.toy:Locked-v0", f"+env.kwargs.leaves={leaves}")
    overrides = [*env, *SMALL, *QUICK["ppo"], *SERIAL, "logger.progress=lines"]
    killed_run(overrides, tmp_path)
    foretold = "if resumed, the run will start new episodes: Locked-v0 cannot continue in lane 0"
    assert (foretold in capsys.readouterr().out) == (leaves == 3)
    resume(overrides, tmp_path)
    assert "sampler-0 starts new episodes: the state of this environment" in capsys.readouterr().out
    iterations, episodes = read(tmp_path / "iterations.csv"), read(tmp_path / "episodes.csv")
    assert [row["iteration"] for row in iterations] == [str(n + 1) for n in range(ROUNDS)]
    assert len(episodes) == int(iterations[-1]["episodes"]) > 0
    # Each of its episodes has 40 steps, and none goes on from one that was given up.
    assert {row["length"] for row in episodes} == {"40"}


def test_a_resumed_free_running_run_says_that_its_numbers_differ(tmp_path, capsys):
    free = ("sampler.n=2", "sampler.max_lag=null", "logger.progress=lines")
    overrides = [*TASKS["pendulum"], "algo=ppo", *SMALL, *QUICK["ppo"], *free]
    train(compose(*overrides, "total_steps=256"), tmp_path)
    capsys.readouterr()
    train(compose(*overrides), tmp_path, resumed=checkpoint.earlier_state(tmp_path, print))
    assert "free-running: numbers differ from those of a run without a stop" in (
        capsys.readouterr().out
    )


CONTINUOUS = ("halfcheetah", "ant", "robot", "pendulum")
MATRIX = [
    Case(task, algo, lag, collect, then)
    for algo, tasks in (
        ("ppo", TASKS),
        ("ppo_kl", TASKS),
        ("trpo", TASKS),
        ("a2c", TASKS),
        *((name, CONTINUOUS) for name in ("ddpg", "td3", "sac", "xqc")),
        *((name, ("cartpole", "lunar_lander")) for name in ("dqn", "pqn")),
    )
    for i, (collect, lag) in enumerate(
        (collect, lag)
        for collect in COLLECT
        for lag in (0, 1)
        if (algo == "ppo" or collect != "gru") and (tasks is TASKS or collect == "fixed")
    )
    for task in [list(tasks)[(i + 2 * len(algo)) % len(tasks)]]
    for then in [[(), THREE, ("sampler.n=1",)][i % 3]]
]


@pytest.mark.slow
@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_every_algorithm_in_every_mode_goes_on_bit_for_bit(case, tmp_path):
    check(case, tmp_path)


FURTHER = [
    Case("cartpole", "ppo", lag=3, then=THREE),
    Case("halfcheetah", "ppo", then=SERIAL),
    Case("lunar_lander", "ppo", then=THREE),
    Case("cartpole", "parallel_trpo_2016", collect="episodes"),
    Case("halfcheetah", "ppo", more=("env.frame_skip=2", "env.time_feature=true"), then=THREE),
    Case("halfcheetah", "ppo", more=("env.backend=gymnasium",), then=THREE),
    Case("cartpole", "ppo", more=("learner.n=2", "learner.shards=2"), then=ONE_LEARNER),
    Case("robot", "a2c", lag=1, more=("learner.n=2", "learner.shards=2"), then=THREE),
    Case("cartpole", "ppo", more=("algo.compile=true",)),
    Case("pendulum", "sac", more=("algo.compile=true",)),
    Case("pendulum", "sac", more=("learner.n=2", "learner.shards=2"), then=ONE_LEARNER),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", FURTHER, ids=str)
def test_other_settings_go_on_bit_for_bit(case, tmp_path):
    check(case, tmp_path)


ENDLESS = 40  # rounds: the run is killed long before


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [Case("cartpole", "ppo", lag=1, collect="gru"), Case("pendulum", "sac")],
    ids=str,
)
def test_a_run_that_is_really_killed_goes_on_bit_for_bit(case, tmp_path):
    steps = (f"total_steps={ENDLESS * 128}", "checkpoint.every=128")
    overrides = [*case.overrides, *steps]
    train(compose(*overrides), tmp_path / "whole")
    directory = tmp_path / "resumed"
    run = subprocess.Popen([*WALLE, *overrides, f"hydra.run.dir={directory}"])
    for rounds in (3, 12):  # the second time the resumed run is killed
        wait_for_rounds(directory, rounds, run)
        run.kill()
        run.wait()
        assert len(read(directory / "iterations.csv")) < ENDLESS
        run = subprocess.Popen([*WALLE, f"resume={directory}"])
    assert run.wait(timeout=500) == 0
    assert_same_run(tmp_path / "whole", directory, samplers=True)
    status = json.loads((directory / "status.json").read_text())
    assert (status["state"], status["attempts"]) == ("completed", 3)


WALLE = (sys.executable, "-W", "ignore", "-m", "walle.run")


def wait_for_rounds(directory, rounds, run):
    path, deadline = directory / "iterations.csv", time.monotonic() + 60
    while not path.exists() or path.read_text().count("\n") <= rounds:
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_an_environment_that_can_no_longer_be_saved_ends_no_run(tmp_path, capsys):
    """Its trial was too short to show it; a resume starts new episodes."""
    task = ("env=gym", "env.id=tests.toy:Scribe", "sampler=serial", "sampler.lanes=2")
    overrides = [*SMALL, *task, "env.episode_limit=9", "logger.progress=lines"]
    train(compose(*overrides), tmp_path)
    state = checkpoint.earlier_state(tmp_path, print)
    train(compose(*overrides, "total_steps=1024"), tmp_path, resumed=state)
    assert "sampler-0 starts new episodes" in capsys.readouterr().out


def test_a_run_whose_environment_has_other_spaces_is_not_resumed(tmp_path):
    words = (*SMALL, "env=pendulum", "sampler=serial", "eval.episodes=0")
    train(compose(*words), directory := tmp_path / "run")
    state = checkpoint.load(directory / "checkpoints" / "last.pt")
    state["policy"]["spaces"]["action"] = space_values(gym.spaces.Box(-9, 9, (1,)))
    more = compose(*words, "total_steps=2048")
    with pytest.raises(ConfigError, match=r"^resume=.*now has actions in Box\(-2.0.* had Box\(-9"):
        train(more, directory, (), state)
