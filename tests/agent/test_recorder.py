import pytest

from walle.agent.recorder import durations

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
