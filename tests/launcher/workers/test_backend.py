"""Jobs in workers, as the command that submitted them follows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from walle.launcher.allocation import Need
from walle.launcher.planning import Job, Plan
from walle.launcher.records import Identity, Manifest
from walle.launcher.workers.backend import Follower
from walle.launcher.workers.claims import RELEASED, Claims, Stops
from walle.launcher.workers.submission import Submission
from walle.system.run_files import update_status


class Screen:
    def __init__(self):
        self.told = []

    def started(self, job, grant, how):
        self.told.append(f"#{job.num} {how} on {grant.cores}")

    def ended(self, job, verdict, tail):
        self.told.append(f"#{job.num} {verdict.state}")

    def warn(self, message):
        self.told.append(message)

    def update(self, running, waiting):
        pass


@pytest.fixture
def follower(tmp_path, monkeypatch):
    monkeypatch.setattr("walle.launcher.workers.backend.POLL_S", 0)
    monkeypatch.setattr("walle.launcher.workers.backend.ASK_S", 0)
    jobs = [
        Job(f"seed={n}", {}, Path(tmp_path / str(n)), Identity(n, (), "", {}), Need())
        for n in range(3)
    ]
    plan = Plan(jobs, {}, [0, 1, 2], [], Manifest((), {}, (), ()), exclusive=False)
    submission = Submission(tmp_path / "workers", ["12"], [0, 1, 2])
    return Follower(plan, submission, Screen(), lambda arrays: {"12_0": "RUNNING"})


def running(follower, num, attempts=1):
    directory = follower._plan.jobs[num].directory
    update_status(directory, state="running", cores=[num], attempts=attempts)


def test_jobs_that_start_change_hands_and_end(follower):
    claims = Claims(follower.submission.directory, "a")
    steps = iter(range(9))

    def ask(arrays):
        step = next(steps)
        if step == 0:
            claims.take(0, 0)  # its status.json comes a moment later
        elif step == 1:
            running(follower, 0)
        elif step == 2:
            claims.end(0, 0, RELEASED)
            claims.take(0, 1)
        elif step == 3:
            for num in range(3):
                update_status(
                    follower._plan.jobs[num].directory,
                    state="completed",
                    return_value=10 * num,
                    cores=[num],
                )
                claims.take(num, 0)
                claims.end(num, int(num == 0), "completed")
        return {"12_0": "RUNNING"}

    follower._ask = ask
    verdicts = follower.follow([])
    assert {index: verdict.value for index, verdict in verdicts.items()} == {0: 0, 1: 10, 2: 20}
    assert follower.screen.told == [
        "#0 starts on (0,)",
        "#0 changed hands: its worker was stopped or vanished",
        "#0 resumes on (0,)",
        "#0 completed",
        "#1 starts on (1,)",
        "#1 completed",
        "#2 starts on (2,)",
        "#2 completed",
    ]


def test_jobs_whose_workers_have_all_gone(follower):
    claims = Claims(follower.submission.directory, "a")
    claims.take(0, 0)
    running(follower, 0)
    follower._ask = lambda arrays: {}
    verdicts = follower.follow([])
    assert list(verdicts) == [0]
    assert verdicts[0].state == "interrupted"
    assert follower.screen.told[-1] == "no worker is left for 3 jobs"


def test_a_scheduler_that_does_not_answer_ends_nothing(follower):
    answers = iter([None, None, {}])
    follower._ask = lambda arrays: next(answers)
    assert follower.follow([]) == {}
    assert next(answers, "asked three times") == "asked three times"


def test_a_signal_ends_the_waiting(follower):
    assert follower.follow([2]) == {}


def test_workers_are_asked_to_stop_jobs_and_not_to_start_those_that_wait(follower):
    claims, asked = Claims(follower.submission.directory, "a"), []
    claims.take(0, 0)
    claims.take(1, 0)
    running(follower, 0)
    running(follower, 1)

    def watch(job, *, starts=True):
        asked.append((job.num, starts))
        return None if job.num == 0 else f"trial {job.num} was pruned"

    follower._ask = lambda arrays: {} if len(asked) > 3 else None
    follower._stop_rule, follower._stop_rule_s = watch, 0
    follower.follow([])
    assert asked[:3] == [(0, True), (1, True), (2, False)]
    assert set(asked[3:]) == {(0, True)}  # the others have been told
    stops = Stops(follower.submission.directory)
    reasons = [stops(job) for job in follower._plan.jobs]
    assert reasons == [None, "trial 1 was pruned", "trial 2 was pruned"]


def test_a_job_that_was_stopped_before_its_start_has_ended(follower):
    claims = Claims(follower.submission.directory, "a")
    for num in range(3):
        update_status(follower._plan.jobs[num].directory, state="pruned", error="behind")
        claims.take(num, 0)
        claims.end(num, 0, "pruned")
    verdicts = follower.follow([])
    assert {verdict[:2] for verdict in verdicts.values()} == {("pruned", "behind")}
    assert follower.screen.told == []


def test_no_job_is_stopped_after_its_end(follower):
    claims = Claims(follower.submission.directory, "a")
    claims.take(0, 0)
    claims.end(0, 0, "completed")
    update_status(follower._plan.jobs[0].directory, state="completed", cores=[0])
    asked = []

    def watch(job, *, starts=True):
        asked.append(job.num)

    follower._ask = lambda arrays: {} if asked else None
    follower._stop_rule = watch
    follower.follow([])
    assert set(asked) == {1, 2}
