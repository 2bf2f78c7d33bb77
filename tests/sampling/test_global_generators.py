"""Environments that draw from `random`, NumPy's or torch's global generator."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

import walle
from tests.conftest import SMALL, read
from tests.sampling.test_replaced_samplers import Disturber, learned, replacements
from walle.agent import checkpoint
from walle.config import compose
from walle.policy import video
from walle.sampling.sampler_process import SlotFiller
from walle.sampling.slots import Slot
from walle.training import make_algorithm, make_problem, make_tasks, rollout_shape, train

LOTTERY = (
    "env=gym",
    "env.id=tests.toy:Lottery-v0",
    "algo.minibatch_size=64",
    "eval.every=256",
    "eval.episodes=2",
)


def results(directory):
    evaluations = read(directory / "eval.csv")
    return learned(directory) | {"eval": [row | {"wall_s": ""} for row in evaluations]}


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


# the trial's first steps show it, or later ones
@pytest.mark.parametrize("begins", [0, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("one", "other"),
    [("sampler.n=2", "sampler.n=2"), ("sampler.n=1", "sampler=serial")],
)
def test_samplers_draw_different_numbers_and_the_same_again(run, one, other, begins):
    runs = [run(*LOTTERY, f"+env.kwargs.begins={begins}", how)[1] for how in (one, other)]
    assert results(runs[0]) == results(runs[1])
    returns = [row["return"] for row in read(runs[0] / "episodes.csv")]
    assert len(set(returns)) == len(returns) > 90
    means = [row["return_mean"] for row in read(runs[0] / "eval.csv")]
    assert len(set(means)) == len(means) == 3
    assert json.loads((runs[0] / "run.json").read_text())["bits_may_differ"]


def test_other_environments_are_not_said_to_differ(run):
    for threads in (1, 2):
        _, directory = run("env=cartpole", "total_steps=256", f"learner.threads={threads}")
        differ = json.loads((directory / "run.json").read_text())["bits_may_differ"]
        assert differ is (threads > 1)


def test_a_line_says_once_that_results_depend_on_the_samplers(run, capsys):
    _, directory = run(*LOTTERY, "sampler.n=1", "logger.progress=lines", "total_steps=256")
    line = "tests.toy:Lottery-v0: environments with equal seeds differ"
    assert capsys.readouterr().out.count(line) == 1
    resume(directory, "sampler.n=1", "logger.progress=lines", "total_steps=512")
    assert line not in capsys.readouterr().out


def resume(directory, *overrides):
    config = compose([*SMALL, *LOTTERY, *overrides])
    train(config, directory, resumed=checkpoint.earlier_state(directory, print))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sampler.n=2", "sampler=serial"])
def test_a_resumed_run_draws_what_it_would_have_drawn(run, how):
    _, whole = run(*LOTTERY, how)
    _, resumed = run(*LOTTERY, how, "total_steps=512", "schedule_steps=768")
    resume(resumed, how)
    assert results(resumed) == results(whole)


@pytest.mark.slow
def test_a_replacement_draws_what_the_killed_sampler_would_have_drawn(run, tmp_path):
    long = (*LOTTERY, "sampler.n=2", "total_steps=4096")
    _, unbroken = run(*long)
    disturber = Disturber(tmp_path / "run1", signal.SIGKILL)
    _, directory = run(*long)
    disturber.join()
    assert len(replacements(directory)) == 1
    assert results(directory) == results(unbroken)


def test_samplers_of_two_nodes_draw_different_numbers():
    """Each node counts its samplers from 0."""
    config = compose([*SMALL, *LOTTERY, "sampler.n=2"])
    problem, environment = make_problem(config)
    algorithm = make_algorithm(config, problem)
    shape = rollout_shape(config, problem, environment, config.lanes // 2)
    drawn = set()
    for task in make_tasks(config, problem, environment, algorithm):
        slot = Slot.empty(shape)
        with closing(SlotFiller(replace(task, index=0))) as filler:
            for round_ in range(2):
                filler.fill(slot, algorithm.snapshot(), round_)
                drawn |= set(slot.rollout.reward.ravel().tolist())
    assert len(drawn) == 2 * config.batch_size


def test_the_callers_generators_stay_as_they_were(run):
    before = states()
    _, directory = run(*LOTTERY, "sampler=serial")
    found = [walle.evaluate(directory, episodes=2, seed=seed).returns for seed in (0, 1, 0)]
    assert states() == before
    assert found[0] == found[2] != found[1]


def test_a_video_shows_the_evaluated_episode_and_keeps_the_callers_generators(run, monkeypatch):
    _, directory = run(*LOTTERY, "sampler=serial")
    policy, totals = walle.load(directory), []
    picture = np.zeros((120, 160, 3), np.uint8)
    monkeypatch.setattr(video, "_drawn_env", lambda policy, _: policy.env())
    monkeypatch.setattr(video, "_render", lambda *_: picture)
    monkeypatch.setattr(video, "_captioned", lambda *given: totals.append(given[2]) or picture)
    before = states()
    for _ in range(2):
        assert len(list(video.film([policy], seed=3).pictures)) == 8
    assert states() == before
    assert totals[:8] == totals[8:]
    assert totals[7] == walle.evaluate(policy, episodes=1, seed=3).returns[0]


OWN = """
import os
from pathlib import Path

import gymnasium as gym
import numpy as np

NUMBER, FILE = np.random.default_rng().integers(2**62), open(__file__)


class Own(gym.Env):
    observation_space = action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        if "WALLE_WORKER" in os.environ:
            server = Path(f"/proc/{os.getppid()}/cmdline").read_text()
            words = os.getpid(), NUMBER, repr(FILE.readline()), "multiprocessing" in server
            with open(os.environ["NUMBERS"], "a") as numbers:
                print(*words, file=numbers)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}


def make() -> gym.Env:
    return Own()
"""


@pytest.mark.slow
@pytest.mark.parametrize("preload", [None, "walle.training", "walle.training,own"])
def test_each_sampler_imports_its_environment_anew(tmp_path, preload):
    """Samplers fork from their agent, but not where jobs have one generator and one file."""
    (tmp_path / "own.py").write_text(OWN)
    words = ["sampler.n=2", "env=gym", "env.id=own:make", "batch_size=64", "eval.episodes=0"]
    words += ["total_steps=64", "sampler.lanes=4", "algo.minibatch_size=64", "algo.compile=false"]
    if preload:
        words += ["-m", "seed=0,1", f"hydra.launcher.preload=[{preload}]"]
        words += ["hydra.launcher.check_cores=false"]
    ran = subprocess.run(
        [sys.executable, "-m", "walle.run", *words],
        cwd=tmp_path,
        env=os.environ | {"NUMBERS": str(tmp_path / "numbers"), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [line.split() for line in (tmp_path / "numbers").read_text().splitlines()]
    first = {pid: rest for pid, *rest in reversed(rows)}
    samplers = 4 if preload else 2
    assert len({number for number, _, _ in first.values()}) == len(first) == samplers
    new = str("own" in (preload or ""))
    assert {tuple(rest) for _, *rest in first.values()} == {(repr("\n"), new)}
