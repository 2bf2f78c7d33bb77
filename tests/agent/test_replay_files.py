"""Rows of the replay buffer on disk: what a checkpoint needs is there, and little more."""

import errno
import os

import numpy as np
import pytest
import torch

from walle.agent import checkpoint as checkpoint_file
from walle.agent.checkpoint import CheckpointFiles, ReplayFiles
from walle.errors import ConfigError
from walle.learning.replay import Replay
from walle.timing import Every
from walle.types import Rollout

CAPACITY, ROWS_A_FILE = 23, 10


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(checkpoint_file, "_ROWS_A_FILE", ROWS_A_FILE)


def rollout(first, steps):
    """Steps of one lane that count up from `first`."""
    count = np.arange(first, first + steps + 1, dtype=np.float32)[:, None, None]
    return Rollout(
        obs=count,
        final_obs=count[:-1],
        action=-count[:-1],
        reward=count[:-1, :, 0] / 2,
        terminated=np.zeros((steps, 1), bool),
        truncated=np.zeros((steps, 1), bool),
        log_prob=np.zeros((steps, 1), np.float32),
        lane=np.zeros(1, np.int64),
        policy_version=np.zeros(1, np.int64),
    )


def filled(steps, capacity=CAPACITY):
    replay = Replay(capacity, 1, 1)
    add(replay, steps)
    return replay


def add(replay, steps):
    while steps:
        some = min(7, steps)
        replay.add(rollout(replay.inserted, some))
        steps -= some


def described(replay):
    """What a checkpoint says about the buffer."""
    return {"inserted": replay.inserted, "size": len(replay)}


def loaded(directory, found, capacity=CAPACITY):
    replay = Replay(capacity, 1, 1)
    ReplayFiles(directory).load(replay, **found)
    return replay


def assert_equal(ours, theirs):
    assert ours.inserted == theirs.inserted
    oldest = ours.inserted - len(ours)
    rows = [each.rows(oldest, ours.inserted) for each in (ours, theirs)]
    assert torch.equal(*rows)
    assert rows[0][:, 0].tolist() == list(range(oldest, ours.inserted))
    samples = [each.sample(2, 8, torch.Generator().manual_seed(0)) for each in (ours, theirs)]
    assert torch.equal(*samples)


@pytest.mark.parametrize("steps", [1, 3, 10, 23, 31])
def test_the_rows_on_disk_are_the_ring_at_every_moment(tmp_path, steps):
    replay, files = filled(0), ReplayFiles(tmp_path / "checkpoints" / "replay")
    (tmp_path / "checkpoints").mkdir()
    while replay.inserted < 3 * CAPACITY:
        add(replay, steps)
        files.append(replay)
        files.forget()
        assert_equal(replay, loaded(tmp_path / "checkpoints" / "replay", described(replay)))


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_both_checkpoints_have_their_rows_and_older_files_are_gone(tmp_path, steps):
    replay, files = filled(0), ReplayFiles(tmp_path)
    before = None
    while replay.inserted < 5 * CAPACITY:
        add(replay, steps)
        files.append(replay)
        files.forget()
        last = described(replay)
        for kept in filter(None, (before, last)):
            found = loaded(tmp_path, kept)
            oldest = kept["inserted"] - kept["size"]
            rows = found.rows(oldest, kept["inserted"])
            assert rows[:, 0].tolist() == list(range(oldest, kept["inserted"]))
        before = last
        on_disk = sum(path.stat().st_size for path in tmp_path.iterdir()) // (4 * replay.width)
        assert on_disk <= CAPACITY + steps + 2 * ROWS_A_FILE


def test_only_new_rows_are_written(tmp_path, monkeypatch):
    replay, files = filled(15), ReplayFiles(tmp_path)
    files.append(replay)
    files.forget()
    asked, rows = [], replay.rows
    monkeypatch.setattr(
        replay, "rows", lambda begin, end: asked.append((begin, end)) or rows(begin, end)
    )
    files.append(replay)
    files.forget()
    assert asked == []
    add(replay, 8)
    files.append(replay)
    files.forget()
    assert asked == [(15, 20), (20, 23)]


def test_a_resumed_run_writes_over_what_the_killed_one_wrote_later(tmp_path):
    replay, files = filled(25), ReplayFiles(tmp_path)
    files.append(replay)
    files.forget()
    checkpoint = described(replay)
    add(replay, 30)
    files.append(replay)  # then it was killed before the checkpoint was written
    again, theirs = Replay(CAPACITY, 1, 1), ReplayFiles(tmp_path)
    theirs.load(again, **checkpoint)
    assert_equal(filled(25), again)
    for _ in range(3):
        add(again, 4)
        theirs.append(again)
        assert_equal(again, loaded(tmp_path, described(again)))
    assert_equal(again, filled(37))


def test_a_state_before_an_update_that_broke_off_gets_its_rows(tmp_path):
    replay = filled(25)
    files = CheckpointFiles(tmp_path / "checkpoints", replay, {}, Every(None))
    before = {"replay": files.replay_size()}
    add(replay, 7)
    files.save_last(before)
    assert_equal(filled(25), loaded(tmp_path / "checkpoints" / "replay", before["replay"]))


def test_more_rows_than_fit_between_two_checkpoints(tmp_path):
    replay, files = filled(4), ReplayFiles(tmp_path)
    files.append(replay)
    files.forget()
    add(replay, 3 * CAPACITY)
    files.append(replay)
    files.forget()
    assert_equal(replay, loaded(tmp_path, described(replay)))


def test_an_empty_buffer_needs_no_rows(tmp_path):
    replay = filled(0)
    files = ReplayFiles(tmp_path)
    files.append(replay)
    files.forget()
    assert len(loaded(tmp_path, described(replay))) == 0


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_missing_rows_are_told(tmp_path, damage):
    replay = filled(25)
    ReplayFiles(tmp_path).append(replay)
    path = sorted(tmp_path.iterdir())[-2]
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(ConfigError, match=r"lacks rows .*the checkpoint needs rows 2 to 24"):
        loaded(tmp_path, described(replay))


def test_a_full_disk_leaves_the_rows_of_the_checkpoint(tmp_path, monkeypatch):
    replay, files = filled(25), ReplayFiles(tmp_path)
    files.append(replay)
    files.forget()
    checkpoint = described(replay)
    expected = loaded(tmp_path, checkpoint)

    def no_room(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    add(replay, 30)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_room)
        with pytest.raises(OSError, match="No space left"):
            files.append(replay)
    files.forget()
    assert_equal(loaded(tmp_path, checkpoint), expected)
    files.append(replay)
    files.forget()
    assert_equal(replay, loaded(tmp_path, described(replay)))


def test_a_checkpoint_that_could_not_be_written_costs_the_one_before_no_row(tmp_path):
    replay, files = filled(25), ReplayFiles(tmp_path)
    files.append(replay)
    files.forget()
    checkpoint = described(replay)
    whole = loaded(tmp_path, checkpoint)
    for _ in range(3):  # the disk takes the rows, and is full when the checkpoint comes
        add(replay, 10)
        files.append(replay)
        assert_equal(whole, loaded(tmp_path, checkpoint))
