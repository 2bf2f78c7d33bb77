import itertools
import time

import pytest

from walle.timing import Span, Timer, TraceFile


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


def test_a_resumed_trace_keeps_the_spans_before_the_checkpoint(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TraceFile.start(path))
    TraceFile(path, "agent", 0).write([Span("a", 0, 10**9), Span("a", 10**9, 3 * 10**9)])
    with path.open("a") as file:
        file.write("agent,a,3.0")  # killed in the middle of a line
    assert TraceFile.start(path, 2.5).splitlines()[1:] == ["agent,a,0.000000,1.000000"]
    assert len(TraceFile.start(path).splitlines()) == 1


def test_other_is_required():
    with pytest.raises(ValueError, match="other"):
        Timer(("work",))
