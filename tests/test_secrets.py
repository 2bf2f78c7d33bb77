"""What a run gets from an environment variable comes into none of its files."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

import walle
from tests.conftest import SMALL
from walle.agent import sinks
from walle.config import compose, config_hash
from walle.errors import ConfigError
from walle.training import make_problem, train

SECRET = "kx7-hush-9d2f"
REFERENCE = "${oc.env:TOY_TOKEN}"
KEYED = ("env=gym", "env.id=tests.toy:Keyed-v0", f"+env.kwargs.token={REFERENCE}")


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("TOY_TOKEN", SECRET)


def holding_the_secret(directory):
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert len(files) > 5
    return [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.slow
def test_no_file_of_a_sweep_holds_the_value(tmp_path):
    small = [one for one in SMALL if not one.startswith("total_steps")]
    command = [sys.executable, "-m", "walle.run", "-m", *small, *KEYED, "total_steps=256"]
    where = f"hydra.sweep.dir={tmp_path}"
    run = subprocess.run([*command, where, "sampler.n=2"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    files = {path.name for path in tmp_path.rglob("*")}
    written = {"manifest.json", "index.csv", "multirun.yaml", "output.log", "run.json", "last.pt"}
    assert written | {"status.json", "overrides.yaml", "config.yaml"} <= files
    assert holding_the_secret(tmp_path) == []
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["common"]["env.kwargs.token"] == REFERENCE
    stored = json.loads((tmp_path / "0" / "run.json").read_text())
    assert stored["config"]["env"]["kwargs"] == {"token": REFERENCE}


def test_no_file_of_a_run_that_fails_holds_the_value_and_nothing_told_wandb(tmp_path, monkeypatch):
    told = []

    class Wandb(sinks.TensorBoardSink):
        def __init__(self, directory, *arguments):
            told.append(arguments)
            super().__init__(directory / "tensorboard", arguments[0])

    monkeypatch.setattr(sinks, "WandbSink", Wandb)
    asked = [*SMALL, *KEYED, "+env.kwargs.raise_at=90", "sampler=serial", "logger=wandb"]
    config = compose([*asked, "logger.mode=offline", "logger.progress=quiet"])
    with pytest.raises(ValueError, match="the gearbox broke"):
        train(config, tmp_path)
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"
    assert (tmp_path / "checkpoints" / "last.pt").exists()
    assert holding_the_secret(tmp_path) == []
    assert REFERENCE in str(told)
    assert SECRET not in str(told)


def test_no_file_of_a_resumed_run_holds_the_value(tmp_path, command):
    one = [*SMALL, *KEYED, "sampler=serial", f"hydra.run.dir={tmp_path}"]
    for arguments in (one, [f"resume={tmp_path}", "total_steps=1024", "schedule_steps=768"]):
        command(*arguments)
    stored = json.loads((tmp_path / "run.json").read_text())
    assert f"+env.kwargs.token={REFERENCE}" in stored["overrides"]
    assert stored["resumptions"]
    assert holding_the_secret(tmp_path) == []


def test_a_value_that_was_typed_is_stored(run):
    _, directory = run("sampler=serial", *KEYED[:2], f"+env.kwargs.token={SECRET}")
    found = {path.name for path in holding_the_secret(directory)}
    assert {"run.json", "last.pt"} <= found  # so the search of the other tests finds something


def test_messages_show_the_reference(monkeypatch):
    config = compose([*KEYED, "+env.kwargs.raise_at=1"])
    with pytest.raises(ConfigError, match="the gearbox broke") as caught:
        make_problem(config)
    assert REFERENCE in str(caught.value)
    assert SECRET not in str(caught.value)
    monkeypatch.delenv("TOY_TOKEN")
    with pytest.raises(ConfigError, match=r"^env\.kwargs\.token: .*'TOY_TOKEN' not found"):
        compose(KEYED)


def test_a_mistyped_argument_does_not_show_the_value():
    config = compose([*KEYED, "+env.kwargs.tokn=1"])
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'tokn'$") as caught:
        make_problem(config)
    assert SECRET not in str(caught.value)


def test_a_policy_acts_without_the_value(tmp_path, monkeypatch):
    train(compose([*SMALL, *KEYED, "sampler=serial"]), tmp_path)
    monkeypatch.delenv("TOY_TOKEN")
    policy = walle.load(tmp_path)
    assert np.isfinite(policy.act(np.zeros(policy.obs_dim))).all()
    for make in (policy.env, policy.check_env):
        with pytest.raises(ConfigError, match="'TOY_TOKEN' not found"):
            make()


def test_another_value_is_the_same_run(monkeypatch):
    before = compose(KEYED)
    monkeypatch.setenv("TOY_TOKEN", "another")
    assert config_hash(compose(KEYED)) == config_hash(before)


def test_other_settings_take_the_value_itself():
    os.environ["TOY_TOKEN"] = "3"
    config = compose(["seed=${oc.env:TOY_TOKEN}", "env=gym", "env.id=x", "+env.kwargs.s=${seed}"])
    assert asdict(config)["seed"] == 3
    assert config.env.kwargs == {"s": "3"}
