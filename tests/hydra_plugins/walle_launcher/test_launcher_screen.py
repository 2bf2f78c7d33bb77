from __future__ import annotations

import io

import pytest
from rich.console import Console

from hydra_plugins.walle_launcher._records import Progress
from hydra_plugins.walle_launcher._screen import (
    Row,
    Tally,
    cores_text,
    ending_text,
    job_remaining_s,
    job_table,
    label,
    span,
)
from hydra_plugins.walle_launcher._verdict import Verdict


@pytest.mark.parametrize(
    ("cores", "text"), [([5], "5"), ([0, 1, 2, 8], "0-2,8"), ([3, 1], "1,3"), ([], "")]
)
def test_cores(cores, text):
    assert cores_text(cores) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (4.25, "4.2 s"), (180, "3 min"), (9000, "2.5 h")]
)
def test_spans(seconds, text):
    assert span(seconds) == text


def test_a_label_holds_what_sets_a_job_apart():
    assert label(["n=1", "+extra=2", "steps=9"], {"n", "extra"}) == "n=1 +extra=2"
    assert label(["steps=9"], {"n"}) == "(the only job)"


def test_a_runs_remaining_time_follows_its_mean_speed():
    assert job_remaining_s(Progress(env_steps=25, wall_s=50.0), 100) == 150.0
    assert job_remaining_s(Progress(env_steps=120, wall_s=50.0), 100) == 0.0
    assert job_remaining_s(Progress(), 100) is None
    assert job_remaining_s(Progress(env_steps=25, wall_s=50.0), None) is None


def test_a_sweeps_remaining_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    tally = Tally(total=6, done=0)
    assert tally.remaining_s({}, waiting=6) is None
    tally.start(0)
    tally.start(1)
    clock[0] = 10.0
    # nothing has ended: both will have taken 30 s, so the four others take two rounds of that
    assert tally.remaining_s({0: 20.0, 1: 20.0}, waiting=4) == 80.0
    assert tally.end(0) == 10.0
    tally.start(2)
    # two side by side, 10 s each: the one just begun needs them all, the four others two rounds
    assert tally.remaining_s({1: 4.0, 2: None}, waiting=4) == 30.0
    clock[0] = 18.0
    assert tally.remaining_s({2: None}, waiting=0) == 2.0
    assert tally.done == 1
    tally.end(1)
    tally.start(1)  # it is tried again
    assert tally.done == 1


def test_ends_in_words():
    assert ending_text(Verdict("completed")) == "completed"
    assert ending_text(Verdict("failed", "E: x", 3)) == "failed: E: x (exit code 3)"
    assert ending_text(Verdict("failed", "too late", None, "SIGKILL")) == (
        "failed: too late (SIGKILL)"
    )
    assert ending_text(Verdict("failed", "killed by SIGKILL", None, "SIGKILL")) == (
        "failed: killed by SIGKILL"
    )


def test_a_job_that_never_started_says_why():
    assert ending_text(Verdict("pending", "not started: why")) == "not started: why"


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
