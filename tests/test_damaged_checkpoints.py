"""Every field of a checkpoint is damaged in every way, and each damage is refused with one line.

Each damage is done twice: to a checkpoint with the checksums of its fields, which show all of them,
and to one without, as older versions wrote it, which is compared with a new run's state.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

import walle
from walle.agent import checkpoint
from walle.agent.checkpoint import LAST, PREVIOUS
from walle.config import compose
from walle.errors import CheckpointError, ConfigError
from walle.timing import AGENT_SECTIONS, Timer
from walle.training import Training, make_problem, train

SMALL = (
    *("sampler=serial", "logger.progress=quiet", "algo.compile=false", "batch_size=64"),
    *("sampler.lanes=4", "total_steps=256", "checkpoint.every=192", "eval.every=128"),
    *("eval.episodes=1", "net.policy_hidden=[16,16]", "net.critic_hidden=[16,16]"),
)
LEARNING = ("algo.learning_starts=64", "algo.updates_per_step=0.1", "algo.minibatch_size=16")
RUNS = {
    "ppo": ("algo=ppo", "env=pendulum", "algo.epochs=1"),
    "sac": ("algo=sac", "env=pendulum", *LEARNING),
    "dqn": ("algo=dqn", "env=cartpole", *LEARNING),
    "ppo_kl": ("algo=ppo_kl", "env=pendulum", "algo.epochs=1"),
    "trpo": ("algo=trpo", "env=cartpole"),
    "td3": ("algo=td3", "env=pendulum", *LEARNING),
}
GONE = object()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function that gives the directory of the run with that name in `RUNS`."""
    made = {}

    def _run(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            train(compose([*SMALL, *RUNS[name]]), made[name])
        return made[name]

    return _run


def leaves(value, path=()):
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        if isinstance(part, dict | list) and part:
            yield from leaves(part, (*path, key))
        else:
            yield (*path, key), part


def damages(value):
    """By name: what may stand in place of a value."""
    if isinstance(value, torch.Tensor):
        found = {
            "retyped": value.long() if value.is_floating_point() else value.double(),
            "a number": 0.5,
        }
        if value.dim():
            found |= {"halved": value[: len(value) // 2], "doubled": torch.cat((value, value))}
        else:
            found |= {"halved": value / 2, "doubled": value * 2, "a vector": value.repeat(2, 2)}
        if value.is_floating_point():
            found |= {"nan": value * math.nan, "negative": -value.abs()}
            found |= {"bfloat16": value.bfloat16()}  # which NumPy lacks
    elif isinstance(value, bool) or value is None:
        found = {"retyped": "true"}
    elif isinstance(value, int | float):
        found = {"halved": value // 2 if isinstance(value, int) else value / 2, "nan": math.nan}
        found |= {"doubled": value * 2, "retyped": str(value), "negative": -1 - value}
    else:
        found = {"retyped": 7}
    return {**found, "removed": GONE}


def changed(state, path, value):
    """The state with another value at `path`; what is not on the path is shared."""
    (key, *rest), copy = path, state.copy()
    if rest:
        copy[key] = changed(state[key], rest, value)
    elif value is GONE:
        del copy[key]
    else:
        copy[key] = value
    return copy


def is_same(ours, theirs):
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.equal(theirs)
    return type(ours) is type(theirs) and ours == theirs


def one_line(error, path):
    text = str(error.value)
    assert str(path) in text
    assert "\n" not in text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_every_damage_to_a_field_is_noticed_by_its_checksum(run, tmp_path, name):
    last = run(name) / "checkpoints" / LAST
    state = torch.load(last, weights_only=True)
    path, count = tmp_path / LAST, 0
    for field, value in leaves(state):
        if field[0] == "checksums" and "vector" not in field[1]:
            continue
        for damage, other in damages(value).items():
            if is_same(other, value):
                continue
            torch.save(changed(state, field, other), path)
            with pytest.raises(ConfigError) as error:
                checkpoint.load_last(tmp_path, pytest.fail)
            text = one_line(error, path)
            if field[0] not in ("checksums", "format"):
                assert ".".join(map(str, field[:-1])) in text, (field, damage, text)
            count += 1
    assert count > 400
    torch.save(state, path)
    assert checkpoint.load(path)["env_steps"] == 256


# What a new run cannot know: the content is free, or an older version had none.
FREE = {
    *(("callbacks",), ("policy",), ("format",), ("cpu_model",), ("versions",), ("return_mean",)),
    *(("recorder", "tracker", "returns"), ("recorder", "tracker", "lengths"), ("quota",)),
    *(("recorder", "eval_mean"), ("algorithm", "previous"), ("config",)),
    *(("snapshot", "rollout_steps"), ("snapshot", "episodes"), ("replay_blocks",), ("info",)),
}
SEEN = ("retyped", "a number", "a vector", "nan", "removed")


def is_seen(field, damage, value):
    """Whether a comparison with a new run's state shows the damage."""
    if field[0] == "live":
        field = ("snapshot", *field[2:])
    if field[0] == "lanes":  # their states are the environment's own
        tensor = isinstance(value, torch.Tensor)
        seen = ("removed", "nan", "halved") if tensor else ("removed", "nan", "retyped")
        return field[-1] in ("numbers", "obs", "round") and damage in seen
    if any(field[: len(free)] == free for free in FREE):
        return False
    if value is None:
        return damage == "removed"
    if isinstance(value, torch.Tensor) and value.dim():
        return damage != "negative"
    return damage in SEEN or (damage == "negative" and type(value) is int)


class StartedError(Exception):
    """A run has started."""


def started(_):
    raise StartedError


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_damage_without_checksums_is_refused_or_changes_no_shape(
    run, tmp_path, name, monkeypatch
):
    config = compose([*SMALL, *RUNS[name], "total_steps=512"])
    problem, environment = make_problem(config)
    state = checkpoint.load(run(name) / "checkpoints" / LAST)
    Training(config, tmp_path, Timer(AGENT_SECTIONS), problem, environment, state)
    monkeypatch.setattr("walle.training.make_problem", lambda _: (problem, environment))
    monkeypatch.setattr("walle.training.run_directory", started)
    accepted, count = [], 0
    for field, value in leaves(state):
        for damage, other in damages(value).items():
            if not is_seen(field, damage, value) or is_same(other, value):
                continue
            try:
                with pytest.raises(CheckpointError) as error:
                    train(config, tmp_path, resumed=changed(state, field, other))
                one_line(error, tmp_path / "checkpoints" / LAST)
            except StartedError:
                accepted.append((field, damage))
            count += 1
    assert accepted == []
    assert count > 80


def test_a_number_may_be_an_array_without_axes_as_in_version_0_3(tmp_path):
    number = torch.tensor(2.0, dtype=torch.float64)
    checkpoint.check(tmp_path, {"mean": number}, {"mean": 0.0})
    for other in (number.float(), number.reshape(1), number * math.nan):
        with pytest.raises(CheckpointError, match="mean"):
            checkpoint.check(tmp_path, {"mean": other}, {"mean": 0.0})


def test_a_longer_list_is_refused(run):
    path = run("sac") / "checkpoints" / LAST
    state = checkpoint.load(path)
    state["algorithm"]["tensors"] *= 2
    like = checkpoint.load(path)
    count = len(like["algorithm"]["tensors"])
    with pytest.raises(
        CheckpointError, match=rf"tensors has {2 * count} entries, and this run has {count}"
    ):
        checkpoint.check(path, state, like)


@pytest.mark.parametrize("name", ["ppo", "sac", "dqn"])
@pytest.mark.parametrize("damage", ["halved", "doubled", "retyped", "nan", "removed"])
def test_a_policy_without_checksums_is_compared_with_its_network(run, tmp_path, name, damage):
    state = checkpoint.load(run(name) / "checkpoints" / LAST)
    other = damages(state["snapshot"]["vector"])[damage]
    path = tmp_path / "c" / "copy.pt"
    checkpoint.save(path, changed(state, ("snapshot", "vector"), other))
    with pytest.raises(CheckpointError, match=r"snapshot\.vector") as error:
        walle.load(path)
    one_line(error, path)


@pytest.mark.parametrize(
    "field",
    ["policy.kind", "policy.obs_clip", "policy.net.own", "config.env.id", "config.net.name"],
)
def test_a_policy_without_checksums_lacks_nothing(run, tmp_path, field):
    state = checkpoint.load(run("ppo") / "checkpoints" / LAST)
    path = tmp_path / "c" / "copy.pt"
    checkpoint.save(path, changed(state, field.split("."), GONE))
    with pytest.raises(CheckpointError, match=f"it lacks {field}") as error:
        walle.load(path)
    one_line(error, path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy.net.policy_hidden", 7),
        ("policy.net.activation", 7),
        ("policy.obs_clip", "10"),
        ("policy.spaces.obs", {}),
        ("policy.spaces.action.shape", ["1"]),
        ("info", None),
    ],
)
def test_a_policy_with_a_value_of_another_type_is_one_line(run, tmp_path, field, value):
    path = tmp_path / "c" / "copy.pt"
    state = checkpoint.load(run("ppo") / "checkpoints" / LAST)
    checkpoint.save(path, changed(state, field.split("."), value))
    with pytest.raises(CheckpointError, match=r"copy\.pt cannot be loaded: ") as error:
        walle.load(path)
    one_line(error, path)


@pytest.mark.parametrize("field", ["callbacks", "config.logger", "info"])
def test_a_state_with_a_value_of_another_type_is_not_resumed(run, tmp_path, field, monkeypatch):
    last = shutil.copytree(run("ppo"), tmp_path / "run") / "checkpoints" / LAST
    checkpoint.save(last, changed(checkpoint.load(last), field.split("."), 7))
    monkeypatch.setattr("walle.training.run_directory", started)
    with pytest.raises(CheckpointError) as error:
        resumed(tmp_path / "run", "ppo")
    one_line(error, last)


def damaged_copy(run, tmp_path, field, value, file=LAST):
    directory = tmp_path / "run"
    shutil.copytree(run, directory)
    path = directory / "checkpoints" / file
    torch.save(changed(torch.load(path, weights_only=True), field, value), path)
    return directory, path


def command(*words):
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False)


def refused(ran, path):
    assert (ran.returncode, ran.stdout) == (2, "")
    assert re.match(rf"walle[ a-z]*: {path} is damaged: ", ran.stderr)
    assert ran.stderr.count("\n") == 1
    return ran.stderr


@pytest.mark.slow
def test_a_damaged_run_is_refused_and_kept_and_the_older_checkpoint_is_offered(run, tmp_path):
    directory, path = damaged_copy(run("ppo"), tmp_path, ("algorithm", "env_steps"), 128)
    before = {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    resume = ("walle.run", f"resume={directory}", "total_steps=384")
    line = refused(command(*resume), path)
    assert "algorithm.env_steps is not as saved; previous.pt beside it can be read" in line
    assert {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()} == before
    path.rename(directory / "moved.pt")  # as the line says
    ran = command(*resume)
    assert ran.returncode == 0, ran.stderr
    assert checkpoint.load(path)["env_steps"] == 384


@pytest.mark.slow
def test_a_damaged_policy_is_refused_by_every_command(run, tmp_path):
    vector = torch.load(run("ppo") / "checkpoints" / LAST, weights_only=True)["snapshot"]["vector"]
    field = ("snapshot", "vector")
    directory, path = damaged_copy(run("ppo"), tmp_path, field, vector[:-1], "best.pt")
    for words in (("eval", str(directory)), ("export", str(directory), str(tmp_path / "x.pt"))):
        line = refused(command("walle", *words), path)
        assert (
            "snapshot.vector is not as saved; last.pt beside it can be read: use which=last" in line
        )
    with pytest.raises(CheckpointError):
        walle.load(directory)
    assert walle.load(directory, "last").origin.env_steps == 256


def flip(data):
    return data[:50] + bytes([data[50] ^ 1]) + data[51:]


ROWS = {
    "flipped": flip,
    "zeroed": lambda data: bytes(len(data)),
    "shifted": lambda data: data[4:] + data[:4],
    "reversed": lambda data: data[::-1],
}


@pytest.mark.parametrize("damage", ROWS)
def test_changed_rows_of_a_replay_buffer_are_refused(run, tmp_path, damage):
    directory = tmp_path / "run"
    shutil.copytree(run("sac"), directory)
    (rows,) = (directory / "checkpoints" / "replay").iterdir()
    rows.write_bytes(ROWS[damage](rows.read_bytes()))
    with pytest.raises(CheckpointError, match=r"rows 0 to 191 have changed") as error:
        resumed(directory)
    one_line(error, rows)


def resumed(directory, name="sac"):
    state = checkpoint.earlier_state(directory, lambda line: None)
    train(compose([*SMALL, *RUNS[name], "total_steps=320"]), directory, resumed=state)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_a_checkpoint_without_checksums_is_resumed(run, tmp_path, name):
    directory = tmp_path / "run"
    shutil.copytree(run(name), directory)
    last = directory / "checkpoints" / LAST
    state = torch.load(last, weights_only=True)
    for key in ("checksums", "policy", "replay_blocks"):
        state.pop(key, None)
    torch.save(state, last)
    state = checkpoint.earlier_state(directory, lambda line: None)
    train(compose([*SMALL, *RUNS[name], "total_steps=320"]), directory, resumed=state)
    assert checkpoint.load(last)["env_steps"] == 320


def test_later_rows_are_refused_and_the_checkpoint_before_them_offered(run, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(run("sac"), directory)
    (rows,) = (directory / "checkpoints" / "replay").iterdir()
    data = rows.read_bytes()
    rows.write_bytes(data[:-4] + data[:4])
    with pytest.raises(
        CheckpointError, match=r"rows 192 to 255 .* previous\.pt beside it can be read"
    ):
        resumed(directory)
    (directory / "checkpoints" / LAST).unlink()
    resumed(directory)
    assert checkpoint.load(directory / "checkpoints" / LAST)["env_steps"] == 320


def test_rows_of_another_run_are_refused(run, tmp_path):
    directory, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(run("sac"), directory)
    train(compose([*SMALL, *RUNS["sac"], "seed=2"]), other)
    shutil.rmtree(directory / "checkpoints" / "replay")
    shutil.copytree(other / "checkpoints" / "replay", directory / "checkpoints" / "replay")
    with pytest.raises(CheckpointError, match="rows 0 to 191 have changed"):
        resumed(directory)


@pytest.mark.parametrize("name", ["notes.txt", "1.rows", "000000065536.rows", "x.rows"])
@pytest.mark.parametrize("is_directory", [True, False])
def test_what_is_no_file_of_rows_is_named(run, tmp_path, name, is_directory):
    directory = tmp_path / "run"
    shutil.copytree(run("sac"), directory)
    stray = directory / "checkpoints" / "replay" / name
    if is_directory:
        stray.mkdir()
    elif name.startswith("0000"):
        return  # what a killed run wrote later
    else:
        stray.touch()
    with pytest.raises(CheckpointError, match="move it elsewhere") as error:
        resumed(directory)
    one_line(error, stray)


@pytest.mark.slow
def test_a_directory_in_the_place_of_a_checkpoint_is_one_line(run, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(run("ppo"), directory)
    previous = directory / "checkpoints" / PREVIOUS
    previous.unlink()
    previous.mkdir()
    ran = command("walle.run", f"resume={directory}", "total_steps=384", "logger.progress=quiet")
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "move the directory that stands in the way" in ran.stderr
