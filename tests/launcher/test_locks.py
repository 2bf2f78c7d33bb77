from __future__ import annotations

import os

import pytest

from walle.launcher.locks import LockedError, has_launcher, locked


def test_a_directory_is_held_by_one_launcher(tmp_path):
    assert not has_launcher(tmp_path)
    with locked(tmp_path, 0):
        assert has_launcher(tmp_path)
        with pytest.raises(LockedError, match="another launcher"), locked(tmp_path, 0):
            pass
    assert not has_launcher(tmp_path)
    with locked(tmp_path, 0):
        pass


def test_the_jobs_of_a_launcher_that_is_gone_still_hold_it(tmp_path):
    with locked(tmp_path, 0) as jobs:
        inherited = os.dup(jobs)  # as a job's supervisor has it
    assert not has_launcher(tmp_path)
    with (
        pytest.raises(LockedError, match="jobs of a launcher"),
        locked(tmp_path, 0),
    ):
        pass
    os.close(inherited)
    with locked(tmp_path, 0):
        pass
