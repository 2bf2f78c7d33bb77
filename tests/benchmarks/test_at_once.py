"""Independent work on several cores at once."""

import os

from benchmarks.at_once import slowdown_on


def test_each_core_is_compared_with_itself():
    count = min(2, len(os.sched_getaffinity(0)))
    with slowdown_on(count) as measure:
        slowdown = measure()
    assert len(slowdown) == count
    assert all(0 < each < 100 for each in slowdown)
