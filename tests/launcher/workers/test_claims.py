"""Claims on jobs: one worker for each job, and the jobs of workers that vanish."""

from __future__ import annotations

import multiprocessing
import os
import time
from types import SimpleNamespace

import pytest

from walle.launcher.allocation import Need, Resources
from walle.launcher.workers.claims import (
    RELEASED,
    Claim,
    ClaimedJobs,
    ClaimLostError,
    Claims,
    Stops,
)


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


def observing(claims, now_s):
    none, clock = Resources([], []), lambda: now_s[0]
    jobs = {"nums": (), "is_locked": bool}
    return ClaimedJobs((), (), none, claims=claims, stale_s=60, clock=clock, **jobs)


def test_workers_are_judged_by_changes_and_not_by_their_clocks(tmp_path):
    now_s = [1e9]  # of a host whose clock is years away from that of the files
    claims = Claims(tmp_path, "worker")
    claims.take(0, 0)
    claim = claims.newest()[0]
    observer = observing(claims, now_s)
    heart = tmp_path / "alive" / "worker"

    heart.write_text("41")
    assert observer.liveness(claim) == "unknown"
    now_s[0] += 59
    assert observer.liveness(claim) == "unknown"
    heart.write_text("42")
    assert observer.liveness(claim) == "alive"
    now_s[0] += 59
    assert observer.liveness(claim) == "alive"  # slow, but it has not vanished
    now_s[0] += 2
    assert observer.liveness(claim) == "vanished"
    heart.write_text("7")  # it was only frozen: any change is a sign of life
    assert observer.liveness(claim) == "alive"
    now_s[0] += 61
    assert observer.liveness(claim) == "vanished"


def test_a_new_observer_waits_before_it_calls_a_worker_vanished(tmp_path):
    now_s = [0.0]
    claims = Claims(tmp_path, "gone")
    claims.take(0, 0)
    observer = observing(claims, now_s)
    assert observer.liveness(claims.newest()[0]) == "unknown"  # no heartbeat at all
    now_s[0] += 61
    assert observer.liveness(claims.newest()[0]) == "vanished"


def test_the_heartbeat_continues_in_the_body_and_ends_with_it(tmp_path):
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


STALE_S = 60
NUMS = (10, 11, 12, 13)  # jobs 0 to 9 were complete before


class Cluster:
    """Workers on one directory, with a clock that the test moves."""

    def __init__(self, directory):
        self.directory, self.now_s = directory, 0.0
        self.locked = set()

    def worker(self, name, cores=2, needs=(1, 1, 1, 1), **settings):
        return ClaimedJobs(
            [Need(cores=need) for need in needs],
            range(len(needs)),
            Resources(list(range(cores)), []),
            nums=NUMS,
            claims=Claims(self.directory, name),
            stale_s=STALE_S,
            is_locked=self.locked.__contains__,
            clock=lambda: self.now_s,
            **settings,
        )

    def beat(self, name):
        heart = self.directory / "alive" / name
        heart.write_text(str(int(heart.read_text() or 0) + 1 if heart.exists() else 0))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr("walle.launcher.workers.claims.SIGNAL_S", 0)
    return Cluster(tmp_path)


def taken(worker):
    grants = []
    while (grant := worker.next()) is not None:
        grants.append(grant)
    return [grant.job for grant in grants]


def test_small_jobs_pack_on_disjoint_cores(cluster):
    worker = cluster.worker("a")
    first, second = worker.next(), worker.next()
    assert (first.cores, second.cores) == ((0,), (1,))
    assert worker.next() is None
    worker.release(first.job)
    worker.settle(first.job, "completed")
    assert worker.next().cores == (0,)


def test_two_workers_share_the_jobs(cluster):
    a, b = cluster.worker("a"), cluster.worker("b")
    assert taken(a) == [0, 1]
    assert taken(b) == [2, 3]
    for job in (0, 1):
        a.release(job)
        a.settle(job, "completed")
    assert taken(a) == []
    assert not a._claims.all_over(NUMS)
    for job in (2, 3):
        b.release(job)
        b.settle(job, "failed")
    assert a._claims.all_over(NUMS)
    assert taken(cluster.worker("late")) == []


def test_no_job_overtakes_a_large_one(cluster):
    worker = cluster.worker("a", needs=(1, 2, 1, 1))
    assert taken(worker) == [0]
    assert taken(cluster.worker("b", needs=(1, 2, 1, 1))) == [1]


def test_jobs_of_a_worker_that_vanished_are_started_again_by_another_one(cluster):
    taken(cluster.worker("gone"))
    other = cluster.worker("other", cores=4)
    assert taken(other) == [2, 3]
    assert other.may_get_more()  # it waits until it knows
    cluster.now_s += STALE_S + 1
    grants = [other.next(), other.next()]
    assert [(grant.job, grant.again) for grant in grants] == [(0, True), (1, True)]


def test_jobs_of_a_slow_worker_stay_its_own(cluster):
    slow = cluster.worker("slow")
    taken(slow)
    other = cluster.worker("other", cores=4)
    for _ in range(8):
        cluster.beat("slow")
        assert taken(other) in ([2, 3], [])
        cluster.now_s += STALE_S / 2
    assert not other.may_get_more()
    assert slow.next() is None  # and it has not lost them


def test_a_job_whose_directory_is_locked_is_not_claimed(cluster):
    taken(cluster.worker("frozen"))
    other = cluster.worker("other", cores=4)
    taken(other)
    cluster.locked = cluster.locked.union({0})
    other._is_locked = cluster.locked.__contains__
    cluster.now_s += STALE_S + 1
    assert taken(other) == [1]


def test_a_worker_that_was_frozen_learns_that_it_lost_its_jobs(cluster):
    frozen, other = cluster.worker("frozen"), cluster.worker("other", cores=4)
    taken(frozen)
    taken(other)
    cluster.now_s += STALE_S + 1
    assert taken(other) == [0, 1]
    with pytest.raises(ClaimLostError, match="#10 was claimed by another worker"):
        frozen.next()


def test_a_worker_that_is_asked_to_end_gives_its_jobs_back(cluster):
    ending = []
    worker = cluster.worker("preempted", ending=ending)
    taken(worker)
    ending.append(15)
    worker.stop()
    worker.release(0)
    worker.settle(0, "completed")
    worker.release(1)
    worker.settle(1, "interrupted")
    assert taken(cluster.worker("next", cores=4)) == [1, 2, 3]
    assert worker.next() is None


def test_a_job_that_alone_was_interrupted_is_over(cluster):
    worker = cluster.worker("a", cores=1)
    assert taken(worker) == [0]
    worker.release(0)
    worker.settle(0, "interrupted")
    assert taken(cluster.worker("b", cores=9)) == [1, 2, 3]


def test_failures_of_all_workers_count(cluster):
    a, b = (cluster.worker(name, cores=1, max_failures=2) for name in "ab")
    for worker, job in ((a, 0), (b, 1)):
        assert taken(worker) == [job]
        worker.release(job)
        worker.settle(job, "failed")
    cluster.now_s += STALE_S
    assert taken(a) == taken(b) == []
    assert a.stopped


def test_a_failed_job_is_tried_again_by_the_same_worker(cluster):
    worker = cluster.worker("a", cores=1)
    assert taken(worker) == [0]
    worker.release(0)
    worker.requeue(0)
    assert taken(worker) == [0]
    assert taken(cluster.worker("b", cores=9)) == [1, 2, 3]
