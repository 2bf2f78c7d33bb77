"""Independent work on several cores at once."""

import os

from benchmarks.at_once import pieces_on


def test_each_core_is_compared_with_itself():
    count = min(2, len(os.sched_getaffinity(0)))
    with pieces_on(count) as pieces:
        slowdown = pieces.slowdown()
    assert len(slowdown) == count
    assert all(0 < each < 100 for each in slowdown)
