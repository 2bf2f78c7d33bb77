from fractions import Fraction

import numpy as np
import pytest

from tests.conftest import read
from walle.agent.recorder import durations
from walle.agent.sinks import Sink
from walle.algos.on_policy.ppo import PPO
from walle.errors import WalleError
from walle.system.run_files import read_status

SECONDS = {"wait_experience": 1.0, "update": 2.0, "compile": 4.0, "other": 0.5}


def test_the_longest_rollout_stands_beside_the_mean():
    """One sampler of eight has twice the lanes of the others."""
    row = durations(SECONDS, [2.0, 1, 1, 1, 1, 1, 1, 1], lock_step=False)
    assert (row["collect_s"], row["collect_max_s"]) == (9 / 8, 2.0)
    assert row["other_s"] == pytest.approx(7.5 - 2 - 1)


def test_compiling_is_other_time_with_a_column_of_its_own():
    row = durations(SECONDS, [1.5], lock_step=True)
    assert row["collect_s"] == row["collect_max_s"] == 1.5
    assert row["compile_s"] == 4
    assert row["collect_s"] + row["learn_s"] + row["other_s"] == row["iteration_s"] == 7.5


class Broken(Sink):
    """A service that stops answering in the second round."""

    rounds = 0

    def log(self, numbers, env_steps):
        self.rounds += 1
        if self.rounds > 1:
            raise ConnectionError("the service is gone")

    def video(self, env_steps, path):
        raise AssertionError

    def close(self, row):
        raise AssertionError


def test_a_service_that_fails_ends_no_run(run, monkeypatch, capsys):
    sink = Broken()
    monkeypatch.setattr("walle.training.make_sinks", lambda *_: [sink])
    _, directory = run("env=cartpole", "sampler=serial")
    assert read_status(directory)["state"] == "completed"
    assert len(read(directory / "iterations.csv")) == 3
    assert sink.rounds == 2
    assert capsys.readouterr().err.count("Broken logging stopped: ConnectionError('the serv") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("loss, total", 1.0), ("env_steps", 1.0), ("return_mean", 1.0)),
        *(("loss", np.ones(2)), ("third", Fraction(1, 3))),
    ],
)
def test_a_metric_of_an_algorithm_of_ones_own_is_checked(run, monkeypatch, name, value):
    update = PPO.update
    monkeypatch.setattr(PPO, "update", lambda *x: {**update(*x), name: value})
    with pytest.raises(WalleError, match=f"the algorithm's metric '{name}' is .*: give a number"):
        run("env=cartpole", "sampler=serial")


def test_numbers_of_numpy_and_truth_values_are_metrics(run, monkeypatch):
    update = PPO.update
    more = {"mine": np.float32(0.5), "whole": np.int64(3), "done": True, "none": None}
    monkeypatch.setattr(PPO, "update", lambda *x: {**update(*x), **more})
    _, directory = run("env=cartpole", "sampler=serial")
    last = read(directory / "iterations.csv")[-1]
    assert [last[name] for name in more] == ["0.5", "3", "1", ""]
