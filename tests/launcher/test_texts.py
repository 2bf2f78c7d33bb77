from __future__ import annotations

import pytest

from walle.launcher.jobs.verdict import Verdict
from walle.launcher.texts import (
    cause_text,
    duration_text,
    ending_text,
    job_label,
    ranges_text,
    repeats_text,
    states_text,
)


@pytest.mark.parametrize(
    ("cores", "text"), [([5], "5"), ([0, 1, 2, 8], "0-2,8"), ([3, 1], "1,3"), ([], "")]
)
def test_cores(cores, text):
    assert ranges_text(cores) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (4.25, "4.2 s"), (180, "3 min"), (9000, "2.5 h")]
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


def test_a_label_holds_the_overrides_that_differ():
    assert job_label(["n=1", "+extra=2", "steps=9"], {"n", "extra"}) == "n=1 +extra=2"
    assert job_label(["steps=9"], {"n"}) == "(the only job)"


def test_repeats_name_the_jobs_and_count_the_rest():
    asked = [[f"job={n}"] for n in (1, 2, 3, 4, 5)] * 2
    assert repeats_text(asked, [0, 1, 2, 3, 4] * 2) == (
        "5 of 10 jobs repeat the configuration of another job, and are not run a second time: "
        "job=1, job=1; job=2, job=2; job=3, job=3; and 2 more"
    )


TRACEBACK = """WorkerError: sampler-1 failed:
Traceback (most recent call last):
  File "inner.py", line 3, in step
    int("x")
    ~~~^^^^^
ValueError: invalid literal

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "walle.py", line 1, in step
    return self.env.step(action)
           ^^^^^^^^^^^^^^^^^^^^^
  File "robot.py", line 6, in step
    raise ValueError("the robot fell apart")
ValueError: the robot fell apart
   - in two pieces
raised by B-v0 in lane 32
"""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("", ""),
        ("ValueError: one line", "ValueError: one line"),
        ("WorkerError: first line\nsecond line", "WorkerError: first line"),
        (TRACEBACK, "WorkerError: sampler-1 failed: ValueError: the robot fell apart"),
        ('E: cut\nTraceback:\n  File "cut.py", line 6', "E: cut"),
    ],
)
def test_a_cause_is_one_line(error, cause):
    assert cause_text(error) == cause


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


def test_the_most_frequent_state_comes_first():
    assert states_text(["failed", "completed", "completed"]) == "2 completed, 1 failed"
