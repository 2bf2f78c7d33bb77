"""What keeps a worker from running on a node."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from walle.launcher.workers.ray_supervisor import WorkerTask, obstacle
from walle.launcher.workers.submission import digest


@pytest.fixture
def task(tmp_path):
    directory = tmp_path / "sweep" / ".workers" / "1"
    (directory / "logs").mkdir(parents=True)
    (directory / "common.pkl").write_bytes(b"plan")
    return WorkerTask(directory, digest(directory), "0", 1, sys.executable, str(tmp_path), {})


def test_a_node_that_shares_everything(task):
    assert obstacle(task) is None


def test_another_file_system_with_the_same_names(task):
    other = task._replace(digest="of another plan")
    assert "does not see what the sweep's directory" in obstacle(other, patience_s=0)


def test_a_node_without_the_sweeps_directory_is_refused_at_once(task):
    absent = task._replace(directory=Path("/nowhere/sweep/.workers/1"))
    assert "sweep's directory /nowhere/sweep holds here: put it on a" in obstacle(absent)


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ({"python": "/nowhere/python"}, "interpreter /nowhere/python: it must be the same"),
        ({"cwd": "/nowhere"}, "working directory /nowhere: it must be the same"),
    ],
)
def test_a_node_without_the_commands_places(task, lacks, reason):
    assert reason in obstacle(task._replace(**lacks))
