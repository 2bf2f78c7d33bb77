"""Runs with a replay buffer and several learners: their bits, compiled too, and a death."""

import json
import multiprocessing
import os
import shutil
import signal

import pytest
import torch

from tests.conftest import read
from walle.agent import checkpoint
from walle.algos.off_policy.base import OffPolicy
from walle.config import compose
from walle.training import train

SMALL = (
    "eval.episodes=0",
    "logger.progress=quiet",
    "env=pendulum",
    "sampler=serial",
    "net.policy_hidden=[16,16]",
    "net.critic_hidden=[16,16]",
    "algo.minibatch_size=16",
    "algo.learning_starts=48",
    "algo.buffer_size=100",  # the last rounds overwrite the first ones
    "algo.updates_per_step=0.25",
    "batch_size=24",
    "sampler.lanes=6",
    "total_steps=192",
    "learner.shards=2",
)
UPDATES = [0, 0, 6, 6, 6, 6, 6, 6]  # of each round


@pytest.fixture
def run(tmp_path):
    """Trains eight small rounds; later overrides win. Returns the directory."""
    count = iter(range(100))

    def _run(*overrides):
        directory = tmp_path / f"run{next(count)}"
        train(compose([*overrides[:1], *SMALL, *overrides[1:]]), directory)
        return directory

    return _run


def tensors(directory):
    state = checkpoint.load(directory / "checkpoints" / "last.pt")
    return [*state["algorithm"]["tensors"], state["algorithm"]["generator"]]


def metrics(directory):
    names = (
        "gradient_steps",
        "critic_loss",
        "policy_loss",
        "q",
        "entropy",
        "temperature",
        "env_steps",
    )
    return [[row.get(name) for name in names] for row in read(directory / "iterations.csv")]


def same(ours, theirs):
    assert metrics(ours) == metrics(theirs)
    assert all(map(torch.equal, tensors(ours), tensors(theirs)))
    return True


@pytest.mark.parametrize(
    "options",
    [
        ("algo=sac", "algo.compile=false"),
        pytest.param(("algo=td3", "algo.compile=false"), marks=pytest.mark.slow),
        pytest.param(("algo=xqc", "algo.compile=false"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_two_learners_give_the_bits_of_one(run, options):
    one = run(*options)
    two = run(*options, "learner.n=2")
    assert [int(row[0]) for row in metrics(one)] == UPDATES
    assert same(two, one)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_compiled_updates_have_the_same_bits_for_two_learners(run):
    eager = run("algo=sac", "algo.compile=false")
    one = run("algo=sac", "algo.compile=true")
    assert same(run("algo=sac", "algo.compile=true", "learner.n=2"), one)
    for ours, theirs in zip(tensors(one)[:-1], tensors(eager)[:-1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    assert not tensors(one)[0].equal(tensors(eager)[0])


@pytest.mark.slow
def test_a_run_goes_on_after_a_learners_death_in_an_update(run, monkeypatch):
    options = ("algo=sac", "algo.compile=false")
    unbroken = run(*options)
    learn, calls = OffPolicy.learn, []

    def killing(self, *drawn):
        calls.append(None)
        if len(calls) == 4:  # the buffer was full, and has lost its oldest rows
            (learner,) = [p for p in multiprocessing.active_children() if p.name == "learner-1"]
            os.kill(learner.pid, signal.SIGKILL)
        return learn(self, *drawn)

    monkeypatch.setattr(OffPolicy, "learn", killing)
    broken = run(*options, "learner.n=2")
    assert len(calls) == 7
    (found,) = json.loads((broken / "status.json").read_text())["replacements"]
    assert (found["sampler"], found["exact"]) == ("learner-1", True)
    assert same(broken, unbroken)
