"""Checkpoints hold data only, and what is on the disk is whole at every moment."""

import errno
import io
import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch

from walle.agent import checkpoint
from walle.errors import ConfigError
from walle.system.run_files import write_status
from walle.types import PolicySnapshot

STATE = {
    "config": {"total_steps": 512},
    "env_steps": 512,
    "iteration": 2,
    "callbacks": {},
    "vector": torch.arange(5.0),
    "lanes": [{"numbers": np.arange(3), "obs": np.ones((3, 2), np.float32)}],
    "snapshot": PolicySnapshot(2, np.zeros(3, np.float32), rollout_steps=7),
    "best": None,
    "mean": np.float64(0.5),
    "count": np.zeros(()),
}


def saved(directory, **changed):
    path = directory / checkpoint.LAST
    checkpoint.save(path, STATE | changed)
    return path


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_data_come_back_as_tensors_lists_and_plain_values(tmp_path):
    state = checkpoint.load(saved(tmp_path))
    assert torch.equal(state["vector"], STATE["vector"])
    assert state["lanes"][0]["obs"].dtype == torch.float32
    assert state["snapshot"]["rollout_steps"] == 7
    assert PolicySnapshot.loaded(state["snapshot"]).vector.tolist() == [0, 0, 0]
    assert (state["best"], state["mean"]) == (None, 0.5)
    assert type(state["mean"]) is float
    assert state["count"].shape == ()


def test_tensors_of_types_that_numpy_lacks_come_back(tmp_path):
    """A callback or an algorithm of one's own may have them."""
    kinds = {
        "bfloat16": torch.arange(3).bfloat16(),
        "float8": torch.ones(3).to(torch.float8_e4m3fn),
        "sparse": torch.eye(3).to_sparse(),
    }
    state = checkpoint.load(saved(tmp_path, **kinds))
    for name, tensor in kinds.items():
        assert state[name].dtype == tensor.dtype
        assert torch.equal(state[name].float().to_dense(), tensor.float().to_dense())


def test_a_view_does_not_write_all_of_its_storage(tmp_path):
    whole = torch.zeros(1_000_000)
    assert saved(tmp_path, vector=whole[:5], other=whole.numpy()[5:9]).stat().st_size < 10_000


class Foreign:
    """Anything but data."""

    def __reduce__(self):
        return os.system, ("touch {}".format(os.environ["WITNESS"]),)


def zipped(directory, pickled):
    """A file of torch's with that pickle inside."""
    path, buffer = directory / checkpoint.LAST, io.BytesIO()
    torch.save({"format": checkpoint.FORMAT}, buffer)
    with zipfile.ZipFile(buffer) as given, zipfile.ZipFile(path, "w") as file:
        for name in given.namelist():
            file.writestr(name, pickled if name.endswith("data.pkl") else given.read(name))
    return path


@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_with_anything_but_data_is_refused_and_nothing_of_it_runs(
    tmp_path, monkeypatch, legacy
):
    monkeypatch.setenv("WITNESS", str(tmp_path / "witness"))
    foreign = pickle.dumps({"format": checkpoint.FORMAT, "x": Foreign()}, 2)
    path = tmp_path / checkpoint.LAST
    if legacy:
        path.write_bytes(foreign)
    else:
        zipped(tmp_path, foreign)
    refused(path, "is damaged or no checkpoint" if legacy else "holds more than data")
    assert not (tmp_path / "witness").exists()


def test_not_even_harmless_objects_are_loaded(tmp_path):
    path = tmp_path / checkpoint.LAST
    torch.save({"format": checkpoint.FORMAT, "x": PolicySnapshot(0, np.zeros(2))}, path)
    refused(path, "holds more than data, so it is not loaded")


def refused(path, match=r"is damaged or no checkpoint of walle's: ."):
    with pytest.raises(ConfigError, match=match) as error:
        checkpoint.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut_is_refused(tmp_path, share):
    path = saved(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    refused(path)
    assert path.stat().st_size == int(share * len(data))  # and nobody mends it in secret


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    path = saved(tmp_path)
    data, expected = path.read_bytes(), checkpoint.load(path)
    random = np.random.default_rng(0)
    for place in random.integers(len(data), size=400):
        damaged = bytearray(data)
        damaged[place] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        try:
            found = checkpoint.load(path)
        except ConfigError as error:
            message = str(error)
            assert "\n" not in message, place
        else:
            assert repr(found) == repr(expected), f"bit of byte {place} of {len(data)}"


@pytest.mark.parametrize("found", [OrderedDict(format=99), {"no": 1}, [1, 2], torch.zeros(2)])
def test_a_file_of_another_format_is_refused(tmp_path, found):
    torch.save(found, tmp_path / checkpoint.LAST)
    number = 99 if isinstance(found, OrderedDict) else None
    message = rf"has format {number}, and this version of walle reads format 1; use the version"
    refused(tmp_path / checkpoint.LAST, message)


def test_a_missing_file_is_told(tmp_path):
    refused(tmp_path / "lost.pt", r"no checkpoint at .*lost\.pt: give the path of a last\.pt")
    refused(tmp_path, "is damaged")  # a directory


class Full(io.FileIO):
    def write(self, data):
        super().write(data[:10])
        no_room()


@pytest.mark.parametrize("what", ["os.fsync", "os.replace", "os.fdopen", "torch.save"])
def test_a_full_disk_leaves_what_was_there_and_no_temporary_file(tmp_path, monkeypatch, what):
    path = saved(tmp_path)
    before = path.read_bytes()
    fault = (lambda descriptor, mode: Full(descriptor, "w")) if what == "os.fdopen" else no_room
    monkeypatch.setattr(what, fault)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, STATE | {"iteration": 3})
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def kept(directory):
    names = {path.name for path in directory.iterdir()}
    return {name: checkpoint.load(directory / name)["iteration"] for name in names}


def test_the_last_two_are_kept(tmp_path):
    expected = [{"last.pt": 1}, {"last.pt": 2, "previous.pt": 1}, {"last.pt": 3, "previous.pt": 2}]
    for iteration, names in enumerate(expected, 1):
        checkpoint.save_last(tmp_path, STATE | {"iteration": iteration})
        assert kept(tmp_path) == names


def test_a_full_disk_leaves_the_last_two(tmp_path, monkeypatch):
    for iteration in (1, 2):
        checkpoint.save_last(tmp_path, STATE | {"iteration": iteration})
    monkeypatch.setattr("os.fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save_last(tmp_path, STATE | {"iteration": 3})
    monkeypatch.undo()
    assert kept(tmp_path) == {"last.pt": 2, "previous.pt": 1}
    checkpoint.save_last(tmp_path, STATE | {"iteration": 4})
    assert kept(tmp_path) == {"last.pt": 4, "previous.pt": 2}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_links_keeps_two_as_well(tmp_path, monkeypatch, number):
    def no_link(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.link", no_link)
    for iteration in (1, 2):
        checkpoint.save_last(tmp_path, STATE | {"iteration": iteration})
    assert kept(tmp_path) == {"last.pt": 2, "previous.pt": 1}


def test_what_a_killed_process_left_is_replaced(tmp_path):
    checkpoint.save_last(tmp_path, STATE | {"iteration": 1})
    (tmp_path / ".previous.pt").write_bytes(b"half")
    checkpoint.save_last(tmp_path, STATE | {"iteration": 2})
    assert kept(tmp_path) == {"last.pt": 2, "previous.pt": 1}


def test_the_last_one_is_there_at_every_moment(tmp_path, monkeypatch):
    checkpoint.save_last(tmp_path, STATE | {"iteration": 1})
    replace, seen = os.replace, []

    def looked(source, target):
        seen.append(checkpoint.load(tmp_path / checkpoint.LAST)["iteration"])
        replace(source, target)
        seen.append(checkpoint.load(tmp_path / checkpoint.LAST)["iteration"])

    monkeypatch.setattr("os.replace", looked)
    checkpoint.save_last(tmp_path, STATE | {"iteration": 2})
    assert seen == [1, 2, 2, 2]


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_the_one_before_is_used_where_the_last_one_is_damaged(tmp_path, damage):
    for iteration in (1, 2):
        checkpoint.save_last(tmp_path, STATE | {"iteration": iteration})
    last = tmp_path / checkpoint.LAST
    if damage == "cut":
        last.write_bytes(last.read_bytes()[:100])
    else:
        last.unlink()
    said = []
    assert checkpoint.load_last(tmp_path, said.append)["iteration"] == 1
    (line,) = said
    assert line.endswith("using previous.pt")
    assert "last.pt" in line
    (tmp_path / checkpoint.PREVIOUS).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"last\.pt"):
        checkpoint.load_last(tmp_path, said.append)


def test_the_good_one_is_kept_after_a_fall_back(tmp_path):
    for iteration in (1, 2):
        checkpoint.save_last(tmp_path, STATE | {"iteration": iteration})
    last = tmp_path / checkpoint.LAST
    last.write_bytes(damaged := last.read_bytes()[:100])
    state = checkpoint.load_last(tmp_path, lambda line: None)
    checkpoint.clear_remains(tmp_path, state)
    checkpoint.save_last(tmp_path, STATE | {"iteration": 3})
    assert (tmp_path / checkpoint.DAMAGED).read_bytes() == damaged
    (tmp_path / checkpoint.DAMAGED).unlink()
    assert kept(tmp_path) == {"last.pt": 3, "previous.pt": 1}


def test_what_a_killed_save_left_is_removed(tmp_path):
    for iteration in (1, 2):
        checkpoint.save_last(tmp_path, STATE | {"iteration": iteration})
    for left in (".last.pt.x1y2", ".best.pt.ab_c", ".previous.pt"):
        (tmp_path / left).write_bytes(b"half")
    checkpoint.clear_remains(tmp_path, checkpoint.load_last(tmp_path, pytest.fail))
    assert kept(tmp_path) == {"last.pt": 2, "previous.pt": 1}


@pytest.fixture
def run_directory(tmp_path):
    checkpoint.save_last(tmp_path / "checkpoints", STATE)
    return tmp_path


def test_a_run_goes_on_where_its_checkpoint_is(run_directory):
    said = []
    state = checkpoint.earlier_state(run_directory, said.append, total_steps=513)
    assert state["iteration"] == 2
    assert said == ["resuming after iteration 2, 512 steps"]


def test_a_run_without_a_checkpoint_begins_again(tmp_path):
    said = []
    assert checkpoint.earlier_state(tmp_path, said.append) is None
    assert said == [f"{tmp_path} has no checkpoint; the run starts again"]


def test_a_completed_run_is_refused(run_directory):
    write_status(run_directory, {"state": "completed"})
    with pytest.raises(ConfigError, match=r"total_steps=512: .* 512 steps already; give more"):
        checkpoint.earlier_state(run_directory, print, total_steps=512)
    assert checkpoint.earlier_state(run_directory, print)


@pytest.mark.parametrize("state", ["running", "failed", "interrupted", None])
def test_a_run_with_all_its_steps_that_is_not_completed_does_what_is_left(run_directory, state):
    write_status(run_directory, {"state": state})
    assert checkpoint.earlier_state(run_directory, print, total_steps=512)
    with pytest.raises(ConfigError, match=r"total_steps=400: .* 512 steps already; give more"):
        checkpoint.earlier_state(run_directory, print, total_steps=400)


@pytest.mark.parametrize("state", ["running", "completed"])
def test_only_a_completed_run_that_a_callback_stopped_is_refused(tmp_path, state):
    stopped = STATE | {"callbacks": {"states": {}, "stopped_by": "early:Solved"}}
    checkpoint.save_last(tmp_path / "checkpoints", stopped)
    write_status(tmp_path, {"state": state})
    given = {"total_steps": 1024, "callbacks": ["early:Solved"]}
    if state == "completed":
        with pytest.raises(ConfigError, match="early:Solved: it stopped the run"):
            checkpoint.earlier_state(tmp_path, print, **given)
    else:
        assert checkpoint.earlier_state(tmp_path, print, **given)


def test_other_versions_and_another_processor_are_told(run_directory, monkeypatch):
    monkeypatch.setattr("walle.system.machine.cpu_model", lambda: "Abacus 3000")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0")
    said = []
    checkpoint.earlier_state(run_directory, said.append)
    assert any("torch" in line and "0.0 now" in line for line in said)
    assert any(line.endswith("Abacus 3000 now") for line in said)
    assert all(line.startswith("numbers may differ in their last bits: ") for line in said[1:])
