import itertools
import time

import pytest

from walle.timing import Timer


def test_sections_sum_to_the_elapsed_time():
    start = time.monotonic_ns()
    timer = Timer(("work", "wait", "other"))
    with timer.section("work"):
        time.sleep(0.01)
        with timer.section("wait"):
            time.sleep(0.02)
    seconds = timer.take()
    elapsed = (time.monotonic_ns() - start) * 1e-9
    assert sum(seconds.values()) == pytest.approx(elapsed, rel=0.01)
    assert seconds["work"] >= 0.01
    assert seconds["wait"] >= 0.02


def test_an_inner_section_suspends_the_outer_one():
    timer = Timer(("outer", "inner", "other"))
    with timer.section("outer"), timer.section("inner"):
        time.sleep(0.02)
    seconds = timer.take()
    assert seconds["outer"] < 0.002
    assert seconds["inner"] >= 0.02


def test_taking_starts_over():
    timer = Timer(("other",))
    time.sleep(0.01)
    timer.take()
    assert timer.take()["other"] < 0.01


def test_spans_join_without_gaps():
    timer = Timer(("a", "other"), trace=True)
    for _ in range(3):
        with timer.section("a"):
            time.sleep(0.001)
    timer.take()
    spans = timer.spans()
    assert [span.section for span in spans].count("a") == 3
    assert all(x.end_ns == y.start_ns for x, y in itertools.pairwise(spans))
    assert timer.spans() == []


def test_other_is_required():
    with pytest.raises(ValueError, match="other"):
        Timer(("work",))
