import errno
import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import walle
from tests.conftest import read
from walle.agent import checkpoint
from walle.agent.evaluation import Evaluation, Evaluator
from walle.config import validate
from walle.errors import WorkerError
from walle.system.run_files import read_status
from walle.training import train


def test_an_evaluation_without_a_number_is_never_the_best(run, monkeypatch):
    returns = iter([math.nan, 5.0, 1.0])
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_: Evaluation([next(returns)], [1]))
    _, directory = run("env=cartpole", "eval.every=256", "eval.episodes=1", "sampler=serial")
    assert checkpoint.load(directory / "checkpoints" / "best.pt")["env_steps"] == 512


def test_a_policy_is_the_best_when_it_is_saved(run, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(checkpoint.CheckpointFiles, "save_best", full)
    with pytest.raises(OSError, match="no room"):
        run("env=cartpole", "sampler=serial", "eval.episodes=1")
    state = checkpoint.load(tmp_path / "run0" / "checkpoints" / "last.pt")
    assert (state["best"], state["env_steps"]) == (None, 768)


def test_rows_are_on_the_disk_before_the_checkpoint_that_counts_them(run, monkeypatch):
    done, sync, replace = [], os.fdatasync, os.replace

    def synced(descriptor):
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def replaced(source, target):
        replace(source, target)
        done.append(Path(target).name)

    monkeypatch.setattr("os.fdatasync", synced)
    monkeypatch.setattr("os.replace", replaced)
    run("env=cartpole", "sampler=serial", "eval.episodes=1")
    files = {"iterations.csv", "episodes.csv", "timing.csv", "eval.csv"}
    assert files <= {*done[: done.index("last.pt")]}


def test_a_run_is_evaluated_at_its_end_unless_an_evaluation_has_no_episodes(run):
    settings = ("env=cartpole", "sampler=serial", "eval.every=null", "eval.episodes=1")
    _, directory = run(*settings)
    assert [row["env_steps"] for row in read(directory / "eval.csv")] == ["768"]
    checkpoints = directory / "checkpoints"
    assert checkpoint.load(checkpoints / "best.pt")["env_steps"] == 768
    state = checkpoint.load(checkpoints / "last.pt")
    longer = validate(OmegaConf.create(state["config"] | {"total_steps": 1024}))
    assert train(longer, directory, resumed=state).eval_mean is not None
    assert [row["env_steps"] for row in read(directory / "eval.csv")] == ["768", "1024"]
    outcome, directory = run(*settings, "eval.every=256", "eval.episodes=0")
    assert (outcome.eval_mean, outcome.objective("eval")) == (None, outcome.return_mean)
    assert not (directory / "eval.csv").exists()
    assert walle.load(directory).origin.checkpoint.name == "last.pt"


@pytest.fixture
def stuck(tmp_path):
    """The settings of a run whose first evaluation hangs, and the file that it touches then."""
    file, begun = tmp_path / "stuck", tmp_path / "run0" / "status.json"
    kwargs = f"+env.kwargs={{begun: {begun}, stuck: {file}}}"
    task = ("env=gym", "env.id=tests.toy:Stuck-v0", "env.episode_limit=9", "sampler.n=2")
    return (*task, kwargs, "eval.every=256", "eval.episodes=1"), file


def test_an_interrupt_breaks_off_an_evaluation_that_hangs(run, stuck):
    settings, file = stuck

    def interrupt():
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result, directory = run(*settings)
    thread.join()
    assert file.exists()
    assert result.signal == signal.SIGINT
    assert read_status(directory)["state"] == "interrupted"
    assert len(read(directory / "iterations.csv")) == 1  # the round is not lost
    assert checkpoint.load(directory / "checkpoints" / "last.pt")["env_steps"] == 256


@pytest.mark.parametrize("sampler", ["serial", "process"])
def test_rounds_and_evaluations_of_many_slow_steps_are_not_ended(run, sampler, capfd):
    sleepy = ("env=gym", "env.id=tests.toy:Sleepy-v0", "env.episode_limit=60")
    sleeps = "+env.kwargs={chance: 1.0, most_ms: 60}"  # 1.9 s a round, 1.8 s an evaluation
    short = ("batch_size=64", "total_steps=64", "algo.minibatch_size=64", "sampler.lanes=4")
    limit = ("sampler.timeout_s=0.5", "eval.every=64", "eval.episodes=1", f"sampler={sampler}")
    result, _ = run(*sleepy, sleeps, *short, *limit)
    assert result.eval_mean == 60
    assert "has made no step" not in capfd.readouterr().out


@pytest.mark.slow
def test_an_evaluation_that_hangs_is_named_and_ends_the_run(run, stuck, tmp_path):
    settings, _ = stuck
    with pytest.raises(WorkerError, match="evaluation has made no step for 6 s"):
        run(*settings, "sampler.timeout_s=3")
    assert read_status(tmp_path / "run0")["state"] == "failed"
