from __future__ import annotations

import io

from rich.console import Console

from walle.launcher.allocation import Grant
from walle.launcher.jobs import Verdict
from walle.launcher.planning import Job
from walle.launcher.records import Identity, Progress
from walle.launcher.screen import Row, Screen, ending_text, job_table

COMPLETED, GRANT = Verdict("completed"), Grant(0, (0,), (), oversubscribed=False)


def job(num):
    return Job("", None, None, Identity(num, (), "", {}), None)


def test_a_sweeps_remaining_time(monkeypatch, caplog):
    caplog.set_level("INFO")
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    screen = Screen(total=6, done=0)
    assert screen.remaining_s({}, waiting=6) is None
    screen.started(job(0), GRANT, "starts")
    screen.started(job(1), GRANT, "starts")
    now[0] = 10.0
    # nothing has ended: both will have taken 30 s, so the four others take two rounds of that
    assert screen.remaining_s({0: 20.0, 1: 20.0}, waiting=4) == 80.0
    screen.ended(job(0), COMPLETED, [])
    assert "#0 completed after 10.0 s, 1 of 6 ended, about 20.0 s left" in caplog.text
    screen.started(job(2), GRANT, "starts")
    # two side by side, 10 s each: the one just begun needs them all, the four others two rounds
    assert screen.remaining_s({1: 4.0, 2: None}, waiting=4) == 30.0
    now[0] = 18.0
    assert screen.remaining_s({2: None}, waiting=0) == 2.0
    assert screen.progress_text({}, 0).startswith("1 of 6 ended")
    screen.ended(job(1), COMPLETED, [])
    screen.started(job(1), GRANT, "starts")  # it is tried again
    assert screen.progress_text({}, 0).startswith("1 of 6 ended")
    screen.stop("stopped")
    assert screen.remaining_s({1: 4.0}, waiting=0) is None


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


def test_ends_in_words():
    assert ending_text(Verdict("completed")) == "completed"
    assert ending_text(Verdict("failed", "E: x", 3)) == "failed: E: x (exit code 3)"
    assert ending_text(Verdict("failed", "too late", None, "SIGKILL")) == (
        "failed: too late (SIGKILL)"
    )
    assert ending_text(Verdict("interrupted", "stopped", 130, "SIGINT")) == (
        "interrupted: stopped (SIGINT)"
    )
    assert ending_text(Verdict("failed", "killed by SIGKILL", None, "SIGKILL")) == (
        "failed: killed by SIGKILL"
    )


def test_a_job_that_never_started_says_why():
    assert ending_text(Verdict("pending", "not started: why")) == "not started: why"
