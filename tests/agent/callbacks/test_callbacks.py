"""Hooks of one's own: what they receive, how they stop a run, fail, and are resumed."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import walle
from tests.conftest import read
from walle.agent import checkpoint
from walle.agent.callbacks import Callbacks, make_callbacks
from walle.config import compose, validate
from walle.config.checks import CALLBACK_METHODS
from walle.errors import CallbackError, ConfigError
from walle.launcher.records import is_done
from walle.sampling.process_sampling import SerialSampling
from walle.system.run_files import read_status
from walle.timing import Timer
from walle.training import train

HERE = __name__


def named(*names):
    return f"callbacks=[{','.join(f'{HERE}:{name}' for name in names)}]"


class Diary(walle.Callback):
    """Writes a line about every call into diary.txt, and remembers the rounds."""

    def __init__(self):
        self.rounds = []

    def _write(self, info, hook):
        with (info.directory / "diary.txt").open("a") as file:
            file.write(f"{hook} {info.iteration} {info.env_steps}\n")

    def on_round(self, info):
        assert info.metrics["policy_loss"] is not None
        assert len(read(info.directory / "iterations.csv")) == info.iteration
        self.rounds.append(info.iteration)
        self._write(info, "round")

    def on_evaluation(self, info):
        assert info.mean == np.mean(info.returns)
        assert len(info.returns) == len(info.lengths) == 2
        self._write(info, f"evaluation{'*' * info.is_best}")

    def on_checkpoint(self, info):
        assert checkpoint.load(info.path)["env_steps"] == info.env_steps
        self._write(info, "checkpoint")

    def on_end(self, info):
        assert info.best >= info.eval_mean
        (info.directory / "end.txt").write_text(f"{info.reason}; rounds {self.rounds}")

    def state_dict(self):
        return {"rounds": self.rounds, "array": np.arange(3)}

    def load_state_dict(self, state):
        assert state["array"].tolist() == [0, 1, 2]
        self.rounds = state["rounds"]


class Early(walle.Callback):
    """Stops the run after its second round."""

    def on_round(self, info):
        return info.iteration == 2


class Clumsy(walle.Callback):
    """Fails in its second round."""

    def on_round(self, info):
        if info.iteration == 2:
            raise ZeroDivisionError("the gauge broke")


class Hopeless(Clumsy):
    """Fails in its second round, and then has no state."""

    def on_round(self, info):
        self.fails = info.iteration == 2
        super().on_round(info)

    def state_dict(self):
        return {"found": 1 / (not getattr(self, "fails", False))}


class Keeper(walle.Callback):
    """Keeps what no checkpoint can hold."""

    def state_dict(self):
        return {"things": [1, {"own": Early()}]}


class Leaver(walle.Callback):
    """Ends the program in its second round."""

    def on_round(self, info):
        if info.iteration == 2:
            sys.exit("no licence")


class Half:
    def on_round(self, info):
        pass


class Needy(walle.Callback):
    def __init__(self, patience):
        pass


SMALL = ("env=cartpole", "sampler=serial", "eval.every=256", "eval.episodes=2")


def test_every_hook_is_called_with_facts_and_its_time_is_a_section(run):
    result, directory = run(*SMALL, named("Diary"), "checkpoint.every=512")
    lines = (directory / "diary.txt").read_text().splitlines()
    kinds = [line.replace("*", "") for line in lines]
    assert kinds == [
        "evaluation 1 256",
        "round 1 256",
        "evaluation 2 512",
        "round 2 512",
        "checkpoint 2 512",
        "evaluation 3 768",
        "round 3 768",
        "checkpoint 3 768",
    ]
    assert lines[0] == "evaluation* 1 256"
    assert (directory / "end.txt").read_text() == "completed; rounds [1, 2, 3]"
    assert result.stopped_by is None
    assert read_status(directory)["reason"] is None
    rows = [row for row in read(directory / "timing.csv") if row["process"] == "agent"]
    assert all(float(row["callbacks_s"]) > 0 for row in rows[1:])
    for row in rows:
        parts = sum(float(v) for k, v in row.items() if k.endswith("_s") and k != "total_s" and v)
        assert parts == pytest.approx(float(row["total_s"]), rel=0.01)


def test_a_hook_stops_the_run_which_counts_as_completed(run, capsys, command):
    result, directory = run(*SMALL, named("Diary", "Early"), "logger.progress=lines")
    assert result.env_steps == 512
    assert result.stopped_by == f"{HERE}:Early"
    status = read_status(directory)
    assert (status["state"], status["exit_code"]) == ("completed", 0)
    assert status["reason"] == f"stopped by callback {HERE}:Early"
    assert f"stopped by callback {HERE}:Early after 512 steps" in capsys.readouterr().out
    end = (directory / "end.txt").read_text()
    assert end == f"stopped by callback {HERE}:Early; rounds [1, 2]"
    # A sweep counts it as done; and `resume=` does not go on by accident.
    assert is_done({**status, "return_value": 1.0}, status["config_hash"])
    with pytest.raises(SystemExit) as refused:
        command(f"resume={directory}")
    assert refused.value.code == 2
    assert "to continue all the same leave it out, as in callbacks=[]" in capsys.readouterr().err
    command(f"resume={directory}", named("Diary"), "logger.progress=quiet")
    assert (directory / "end.txt").read_text() == "completed; rounds [1, 2, 3]"
    assert read_status(directory)["reason"] is None


def test_a_run_that_is_interrupted_while_it_collects_has_an_end(run, monkeypatch):
    receive, calls = SerialSampling.receive, []

    def interrupted(sampling):
        calls.append(0)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return receive(sampling)

    monkeypatch.setattr(SerialSampling, "receive", interrupted)
    result, directory = run(*SMALL, named("Diary"))
    assert result.signal == signal.SIGINT
    assert (directory / "end.txt").read_text() == "interrupted; rounds [1, 2]"
    *_, written = (directory / "diary.txt").read_text().splitlines()
    assert written == "checkpoint 2 512"


def test_a_failing_hook_ends_the_run_after_a_checkpoint(run, tmp_path):
    with pytest.raises(CallbackError, match=r"callback .*:Clumsy failed in on_round:") as failed:
        run(*SMALL, named("Clumsy"))
    assert "ZeroDivisionError: the gauge broke" in str(failed.value)
    assert "in on_round" in str(failed.value)
    directory = tmp_path / "run0"
    assert read_status(directory)["state"] == "failed"
    assert "Clumsy" in json.loads((directory / "status.json").read_text())["error"]
    assert checkpoint.load(directory / "checkpoints" / "last.pt")["env_steps"] == 512


def test_a_state_that_fails_after_the_error_does_not_hide_it(run, tmp_path):
    with pytest.raises(CallbackError, match="Hopeless failed in on_round:") as failed:
        run(*SMALL, named("Hopeless"))
    (note,) = failed.value.__notes__
    assert note.startswith("no checkpoint could be written: callback ")
    assert "Hopeless failed in state_dict" in note
    assert "the gauge broke" in read_status(tmp_path / "run0")["error"]


def test_a_hook_that_ends_the_program_fails_like_any_other(run, tmp_path):
    """Without the name of the callback nobody would know why the run has ended."""
    with pytest.raises(CallbackError, match=r"callback .*:Leaver failed in on_round:"):
        run(*SMALL, named("Leaver"), "eval.episodes=0")
    status = read_status(tmp_path / "run0")
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert "SystemExit: no licence" in status["error"]


def test_a_run_that_was_stopped_and_killed_before_its_end_ends_at_once(run):
    """The checkpoint says that a callback has stopped the run, which is evaluated once."""
    _, directory = run(*SMALL, named("Early"), "eval.every=null", "checkpoint.every=256")
    state = checkpoint.load(directory / "checkpoints" / "last.pt")
    config = validate(OmegaConf.create(state["config"]))
    result = train(config, directory, resumed=state)
    assert (result.env_steps, result.stopped_by) == (512, f"{HERE}:Early")
    assert [row["env_steps"] for row in read(directory / "eval.csv")] == ["512"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("Missing",), "has no Missing"),
        (("Half",), "Half lacks on_evaluation, on_checkpoint, on_end, state_dict, load_state_dict"),
        (("Early", "Early"), "Early twice"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_starts(names, said):
    with pytest.raises(ConfigError, match=said):
        compose([named(*names)])


def test_a_callback_is_made_without_arguments():
    with pytest.raises(ConfigError, match=r"Needy.*patience"):
        make_callbacks([f"{HERE}:Needy"])


class Yes(walle.Callback):
    def on_round(self, info):
        return "yes"


def calling(callback):
    recorder = SimpleNamespace(tracker=SimpleNamespace(return_mean=None), eval_mean=None)
    return Callbacks({"mine": callback}, Timer(("callbacks", "other")), None, recorder)


def test_a_hook_returns_true_false_or_nothing():
    with pytest.raises(CallbackError, match="mine returned 'yes' from on_round: return True"):
        calling(Yes()).call("on_round", walle.RoundInfo, 1, 8, metrics={})


def test_a_state_that_no_checkpoint_can_hold_is_refused():
    with pytest.raises(CallbackError, match="callback mine has a Early in its state_dict"):
        calling(Keeper()).state_dict()
    kept = calling(Diary())
    kept.load_state_dict({"states": {}, "stopped_by": None})
    assert kept.state_dict()["states"]["mine"]["rounds"] == []
    assert torch.is_tensor(checkpoint.as_data(kept.state_dict())["states"]["mine"]["array"])


def test_the_checks_know_all_methods():
    public = [name for name in vars(walle.Callback) if not name.startswith("_")]
    assert sorted(CALLBACK_METHODS) == sorted(public)


class Misspelt(walle.Callback):
    def on_rounds(self, info):
        raise AssertionError("nobody calls this")


def test_a_method_that_looks_like_a_hook_is_refused():
    with pytest.raises(ConfigError, match=r"Misspelt' has a method on_rounds.*'on_round'"):
        make_callbacks([f"{HERE}:Misspelt"])
