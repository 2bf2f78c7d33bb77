import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tests.conftest import read
from tests.system.test_workers import LIMIT_S, gone, status, wait_until
from walle.agent import checkpoint
from walle.config import compose
from walle.config.files import example_directory
from walle.errors import ConfigError, WorkerDeathError, WorkerError
from walle.learning.sharing import learners
from walle.nets.factory import NetSettings
from walle.system.machine import usable_cores
from walle.training import make_algorithm, make_problem, train

FATAL = ("learner.restarts=0",)
SLOW = ("env=slow", "env.step_ms=200")  # minutes a round
TWO = ("learner.n=2", "learner.shards=2")
IN_CPP = ("env=hopper", "algo.compile=true")
SERIAL = ("sampler=serial", "env=hopper", "total_steps=512")


def without_times(row):
    return {name: value for name, value in row.items() if not name.endswith(("_s", "_share"))}


def vectors(directory):
    state = checkpoint.load(directory / "checkpoints" / "last.pt")["algorithm"]
    return {name: x for name, x in state.items() if name.endswith("vector")}


@pytest.mark.parametrize(
    "options",
    [
        ("learner.shards=2",),
        ("learner.shards=3", "algo.minibatch_size=96"),  # a remainder of 64 rows for three
        ("learner.shards=2", "algo=ppo_kl", "algo.value_minibatch_size=64"),
        pytest.param(("learner.shards=2", "algo.log_std_end=-2"), marks=pytest.mark.slow),
        pytest.param(
            ("learner.shards=2", "env=cartpole", "algo.target_kl=0.01", "algo.learning_rate=3e-3"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("learner.shards=4", "algo.minibatch_size=48", "algo.compile=true", "sampler.lanes=16"),
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
            ],
        ),
    ],
    ids=" ".join,
)
def test_learners_give_the_bits_of_one(run, options):
    number = options[0][-1]
    _, one = run(*SERIAL, *options)
    _, several = run(*SERIAL, *options, f"learner.n={number}")
    for row, other in zip(
        read(several / "iterations.csv"), read(one / "iterations.csv"), strict=True
    ):
        assert without_times(row) == without_times(other)
    expected = vectors(one)
    assert expected
    for name, vector in vectors(several).items():
        assert vector.equal(expected[name])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["learner.n=3"], r"learner\.n=3 is more than learner\.shards=2 .*set learner\.shards=3"),
        (["learner.shards=3"], r"minibatch_size=1024 .*learner\.shards=3; .*: 1023 or 1026"),
        (["algo=ppo_kl", "learner.shards=3"], r"algo\.value_minibatch_size=256 cannot"),
        (
            ["algo=sac", "learner.n=2"],
            r"learner\.n=2 is more than learner\.shards=1 .*shards=2, or",
        ),
        (["algo=sac", "learner.shards=3"], r"minibatch_size=256 .*learner\.shards=3; .*255 or 258"),
    ],
)
def test_shards_that_do_not_fit_are_refused(asked, message):
    with pytest.raises(ConfigError, match=message):
        compose(asked)


def test_shards_without_a_step_to_divide_are_refused():
    search = f"hydra.searchpath=[file://{example_directory('parallel_trpo_2016')}/conf]"
    config = compose([search, "algo=parallel_trpo_2016", "learner.shards=2", "env=hopper"])
    problem, _ = make_problem(config)
    with pytest.raises(ConfigError, match=r"learner\.shards=2 with algo=\S+TRPO, whose updates"):
        make_algorithm(config, problem)


def test_as_many_learners_as_shards_and_idle_cores():
    cores = len(usable_cores())
    open_n = ["learner.n=null", "learner.shards=4"]
    assert compose(open_n).learners == min(4, cores)
    assert compose(["learner.n=null", "algo.minibatch_size=64"]).learners == 1
    overlapped = compose([*open_n, "sampler.max_lag=1", f"sampler.n={cores}", "batch_size=4096"])
    assert overlapped.learners == 1


def test_numbers_that_differ_from_the_agents_end_the_run(run, monkeypatch):
    changed = learners.checksum
    monkeypatch.setattr(learners, "checksum", lambda vector: changed(vector) ^ 1)
    with pytest.raises(WorkerError, match=r"learner-1 failed:\n.*parameters are not the agent's"):
        run(*SERIAL, *TWO)


def test_a_learner_that_fails_is_named_with_its_traceback(run, monkeypatch):
    made, calls = NetSettings.of, []

    def broken_for_the_learner(group):
        calls.append(None)
        net = made(group)
        return net if len(calls) == 1 else net._replace(activation="tnah")

    monkeypatch.setattr(NetSettings, "of", broken_for_the_learner)
    with pytest.raises(WorkerError, match=r"(?s)learner-1 failed:.*'tnah' is unknown"):
        run(*SERIAL, *TWO)


@pytest.fixture
def started(tmp_path, request):
    """A long run with two learners and two samplers, past its first iteration or as asked."""
    asked = getattr(request, "param", ())
    command = [sys.executable, "-m", "walle.run", "env=cartpole", "total_steps=1e9"]
    options = (
        "eval.episodes=0",
        *(() if "sampler=serial" in asked else ("sampler.n=2",)),
        "learner.n=2",
        "learner.shards=2",
        "algo.compile=false",
        *asked,
    )
    run = subprocess.Popen(
        [*command, *options, "logger.progress=lines", f"hydra.run.dir={tmp_path}"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    file = tmp_path / "iterations.csv"
    try:
        if set(SLOW) <= set(asked):
            wait_until((tmp_path / "episodes.csv").exists)  # the learners have joined
            time.sleep(1)
        else:
            wait_until(lambda: file.exists() and file.read_text().count("\n") > 1)
        yield run, psutil.Process(run.pid).children(recursive=True)
    finally:
        run.kill()
        run.communicate()


def learner_of(everything):
    """The learner is the worker that maps the memory that learners share."""
    (found,) = [p for p in everything if maps_learners_memory(p)]
    return found


def maps_learners_memory(process):
    return any("memfd:walle-learners" in part.path for part in process.memory_maps())


@pytest.mark.parametrize(
    "started",
    [
        pytest.param(FATAL, marks=pytest.mark.slow),
        pytest.param((*FATAL, *IN_CPP), marks=pytest.mark.slow),
        pytest.param((*FATAL, *SLOW), marks=pytest.mark.slow),
        pytest.param((*FATAL, *SLOW, "sampler=serial"), marks=pytest.mark.slow),
    ],
    indirect=True,
    ids=["learning", "learning in C++", "collecting", "collecting serially"],
)
def test_a_killed_learner_ends_a_run_without_restarts_and_is_named(started, tmp_path):
    run, everything = started
    learner = learner_of(everything)
    learner.kill()
    begin = time.monotonic()
    _, stderr = run.communicate(timeout=LIMIT_S)
    assert time.monotonic() - begin < 20
    assert run.returncode == 1
    assert f"learner-1 (pid {learner.pid}) was killed by SIGKILL" in stderr
    assert status(tmp_path)["state"] == "failed"
    assert gone(everything)


@pytest.mark.slow
@pytest.mark.parametrize("learns", [("env=cartpole", "algo.compile=false"), IN_CPP], ids=" ".join)
def test_a_run_goes_on_after_a_learners_death(run, tmp_path, learns):
    asked = (*learns, "sampler.n=2", "learner.n=2", "learner.shards=2", "total_steps=2048")
    _, unbroken = run(*asked)
    file = tmp_path / "run1" / "iterations.csv"

    def kill():
        wait_until(lambda: file.exists() and file.read_text().count("\n") > 3)
        (learner,) = [p for p in multiprocessing.active_children() if p.name == "learner-1"]
        os.kill(learner.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    _, directory = run(*asked)
    killer.join()
    assert vectors(directory)["vector"].equal(vectors(unbroken)["vector"])
    assert len(read(directory / "iterations.csv")) == len(read(unbroken / "iterations.csv"))
    (found,) = json.loads((directory / "status.json").read_text())["replacements"]
    assert (found["sampler"], found["exact"]) == ("learner-1", True)


@pytest.mark.slow
def test_learners_that_die_twice_before_the_first_round_are_both_reported(run, monkeypatch):
    join, deaths = learners.Learners.join, iter(["learner-1 (pid 7) was killed by SIGKILL"] * 2)

    def joining(self, algorithm, device):
        if death := next(deaths, None):
            raise WorkerDeathError(death)
        join(self, algorithm, device)

    monkeypatch.setattr(learners.Learners, "join", joining)
    _, directory = run("env=cartpole", "algo.compile=false", *TWO)
    found = json.loads((directory / "status.json").read_text())["replacements"]
    assert [each["sampler"] for each in found] == ["learner-1", "learner-1"]


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["agent", "group"])
def test_an_interrupted_run_ends_its_learners(started, tmp_path, whom):
    run, everything = started
    if whom == "agent":
        run.send_signal(signal.SIGTERM)
    else:
        os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=LIMIT_S)
    assert run.returncode == (143 if whom == "agent" else 130)
    assert (tmp_path / "checkpoints" / "last.pt").exists()
    assert gone(everything)


@pytest.mark.slow
@pytest.mark.parametrize("started", [(), IN_CPP], indirect=True, ids=["in Python", "in C++"])
def test_a_run_whose_learner_hangs_can_be_interrupted(started, tmp_path):
    run, everything = started
    learner_of(everything).suspend()
    time.sleep(1)  # the agent waits for it in an update
    run.terminate()
    run.communicate(timeout=LIMIT_S)
    assert run.returncode == 143
    assert (tmp_path / "checkpoints" / "last.pt").exists()
    assert gone(everything)


@pytest.mark.slow
def test_when_the_agent_is_killed_its_learners_end(started):
    run, everything = started
    run.kill()
    assert gone(everything)


@pytest.mark.slow
def test_learners_next_to_samplers(tmp_path):
    options = (
        "env=cartpole",
        "sampler.n=2",
        "learner.n=2",
        "learner.shards=2",
        "batch_size=256",
        "total_steps=512",
    )
    config = compose([*options, "eval.episodes=0", "logger.progress=quiet", "sampler.max_lag=1"])
    outcome = train(config, tmp_path)
    assert outcome.env_steps == 512
