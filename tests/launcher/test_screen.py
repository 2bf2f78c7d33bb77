from __future__ import annotations

import io

from rich.console import Console

from walle.launcher.records import Progress
from walle.launcher.screen import Row, SweepClock, job_table


def test_a_sweeps_remaining_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    clock = SweepClock(total=6, done=0)
    assert clock.remaining_s({}, waiting=6) is None
    clock.start(0)
    clock.start(1)
    now[0] = 10.0
    # nothing has ended: both will have taken 30 s, so the four others take two rounds of that
    assert clock.remaining_s({0: 20.0, 1: 20.0}, waiting=4) == 80.0
    assert clock.end(0) == 10.0
    clock.start(2)
    # two side by side, 10 s each: the one just begun needs them all, the four others two rounds
    assert clock.remaining_s({1: 4.0, 2: None}, waiting=4) == 30.0
    now[0] = 18.0
    assert clock.remaining_s({2: None}, waiting=0) == 2.0
    assert clock.ended == 1
    clock.end(1)
    clock.start(1)  # it is tried again
    assert clock.ended == 1
    clock.stopped = True
    assert clock.remaining_s({1: 4.0}, waiting=0) is None


def test_the_table_shows_every_row():
    reached = Progress(3, 60, 2.0, -4.25, 12345.6)
    rows = [
        Row(0, "n=1 [x]", "0-1", "running", reached, 90.0),
        Row(1, "", "", "pending", Progress(), None),
    ]
    text = io.StringIO()
    Console(file=text, width=120).print(job_table(rows))
    for cell in ("n=1 [x]", "0-1", "running", "3", "-4.2", "12,346", "90.0 s", "pending"):
        assert cell in text.getvalue()


def test_a_narrow_terminal_shortens_nothing():
    reached = Progress(30, 60, 2.0, -1234.25, 12345.6)
    rows = [Row(10, "sampler.n=16 seed=0", "0-15", "interrupted", reached, 90.0)]
    text = io.StringIO()
    Console(file=text, width=60).print(job_table(rows))
    for cell in ("seed=0", "0-15", "interrupted", "-1234.2", "12,346", "90.0 s"):
        assert cell in text.getvalue()
    assert "…" not in text.getvalue()


def test_a_column_that_no_job_fills_is_left_out():
    text = io.StringIO()
    rows = [Row(0, "", "0", "running", Progress(), None)]
    Console(file=text, width=60).print(job_table(rows))
    assert text.getvalue().split() == ["#", "job", "cores", "state", "0", "0", "running"]
