"""Claims on jobs: one worker for each job, and the jobs of workers that vanish."""

from __future__ import annotations

import multiprocessing
import os
import time
from types import SimpleNamespace

import pytest

from walle.launcher.workers.claims import RELEASED, Claim, Claims, Observer, Stops


def take_all(directory, owner, start, taken):
    claims = Claims(directory, owner)
    start.wait()
    taken.put([job for job in range(100) if claims.take(job, 0)])


def test_two_processes_race_for_100_jobs_and_each_job_is_claimed_once(tmp_path):
    context = multiprocessing.get_context("fork")
    start, taken = context.Event(), context.Queue()
    racers = [
        context.Process(target=take_all, args=(tmp_path, name, start, taken)) for name in "ab"
    ]
    for racer in racers:
        racer.start()
    start.set()
    lists = [taken.get(timeout=20) for _ in racers]
    for racer in racers:
        racer.join()
    assert sorted(lists[0] + lists[1]) == list(range(100))
    observed = Claims(tmp_path)
    owners = {observed.owner(claim) for claim in observed.newest().values()}
    assert owners <= {"a", "b"}
    assert len(observed.newest()) == 100


def test_a_claim_that_ended_keeps_its_state_and_is_not_taken_again(tmp_path):
    claims = Claims(tmp_path, "a")
    assert claims.take(7, 0)
    assert claims.newest() == {7: Claim(7, 0, None)}
    claims.end(7, 0, "completed")
    assert claims.newest() == {7: Claim(7, 0, "completed")}
    assert claims.newest()[7].is_over
    assert not Claims(tmp_path, "b").take(7, 0)  # by a worker that had not looked


def test_a_job_that_was_given_back_has_a_second_turn(tmp_path):
    claims, other = Claims(tmp_path, "a"), Claims(tmp_path, "b")
    assert claims.take(7, 0)
    claims.end(7, 0, RELEASED)
    assert not claims.newest()[7].is_over
    assert other.take(7, 1)
    assert not claims.take(7, 1)
    assert (claims.newest()[7], claims.owner(claims.newest()[7])) == (Claim(7, 1, None), "b")


def test_a_job_that_ends_while_another_worker_claims_it_is_over(tmp_path):
    slow, other = Claims(tmp_path, "slow"), Claims(tmp_path, "other")
    assert slow.take(7, 0)
    slow.end(7, 0, "completed")  # after the other worker found it silent
    assert not other.take(7, 1)
    assert other.newest()[7] == Claim(7, 1, "completed")


def test_workers_are_judged_by_changes_and_not_by_their_clocks(tmp_path):
    now_s = [1e9]  # of a host whose clock is years away from that of the files
    claims = Claims(tmp_path, "worker")
    claims.take(0, 0)
    claim = claims.newest()[0]
    observer = Observer(claims, stale_s=60, clock=lambda: now_s[0])
    heart = tmp_path / "alive" / "worker"

    heart.write_text("41")
    assert observer.look(claim) == "unknown"
    now_s[0] += 59
    assert observer.look(claim) == "unknown"
    heart.write_text("42")
    assert observer.look(claim) == "alive"
    now_s[0] += 59
    assert observer.look(claim) == "alive"  # slow, but it has not vanished
    now_s[0] += 2
    assert observer.look(claim) == "vanished"
    heart.write_text("7")  # it was only frozen: any change is a sign of life
    assert observer.look(claim) == "alive"
    now_s[0] += 61
    assert observer.look(claim) == "vanished"


def test_a_new_observer_waits_before_it_calls_a_worker_vanished(tmp_path):
    now_s = [0.0]
    claims = Claims(tmp_path, "gone")
    claims.take(0, 0)
    observer = Observer(claims, stale_s=60, clock=lambda: now_s[0])
    assert observer.look(claims.newest()[0]) == "unknown"  # no heartbeat at all
    now_s[0] += 61
    assert observer.look(claims.newest()[0]) == "vanished"


def test_the_heartbeat_goes_on_in_the_body_and_ends_with_it(tmp_path):
    claims = Claims(tmp_path, "worker")
    with claims.beating(0.01):
        first = claims.heartbeat("worker")
        deadline = time.monotonic() + 20
        while claims.heartbeat("worker") in (first, ""):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert claims.heartbeat("worker") == ""


def test_silence_is_measured_by_the_clock_of_the_file_system(tmp_path):
    claims = Claims(tmp_path, "observed")
    with claims.beating(60):
        silent = tmp_path / "alive" / "silent"
        silent.write_text("9")
        os.utime(silent, (0, time.time() - 1000))
        found = Claims(tmp_path).silence_s()
        assert found.keys() == {"observed", "silent"}
        assert found["observed"] < 60 < 900 < found["silent"]
    assert claims.silence_s().keys() == {"silent"}
    assert Claims(tmp_path / "nowhere").silence_s() == {}


@pytest.mark.parametrize(("turns", "newest"), [((0, 1, 10), 10), ((9, 2), 9)])
def test_turns_are_numbers_and_not_texts(tmp_path, turns, newest):
    claims = Claims(tmp_path, "a")
    for turn in turns:
        assert claims.take(3, turn)
    assert claims.newest()[3].turn == newest


def test_a_worker_hears_which_jobs_to_stop_at_its_next_look(tmp_path):
    now_s = 0.0
    asking, worker = Stops(tmp_path), Stops(tmp_path, 10, lambda: now_s)
    job = SimpleNamespace(num=7)
    assert worker(job) is None
    asking.ask(7, "trial 3 was pruned")
    assert worker(job) is None  # it has looked a moment ago
    now_s = 10.0
    assert worker(job) == "trial 3 was pruned"
    assert worker(SimpleNamespace(num=70)) is None
    assert Stops(tmp_path)(job) == "trial 3 was pruned"  # of a worker that starts later
