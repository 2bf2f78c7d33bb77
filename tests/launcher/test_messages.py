from __future__ import annotations

from walle.launcher.jobs.verdict import Verdict
from walle.launcher.messages import ending_text, job_label, repeats_text


def test_a_label_holds_the_overrides_that_differ():
    assert job_label(["n=1", "+extra=2", "steps=9"], {"n", "extra"}) == "n=1 +extra=2"
    assert job_label(["steps=9"], {"n"}) == "(the only job)"
    assert job_label(["text='two\nlines'"], {"text"}) == "text='two lines'"


def test_repeats_name_the_jobs_and_count_the_rest():
    asked = [[f"job={n}"] for n in (1, 2, 3, 4, 5)] * 2
    assert repeats_text(asked, [0, 1, 2, 3, 4] * 2) == (
        "5 of 10 jobs repeat the configuration of another job, and are not run a second time: "
        "job=1, job=1; job=2, job=2; job=3, job=3; and 2 more"
    )


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
