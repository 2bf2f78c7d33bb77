"""Jobs that a worker claims: their order, their ends, and the jobs of workers that vanish."""

from __future__ import annotations

import pytest

from walle.launcher.allocation import Need
from walle.launcher.resources import Resources
from walle.launcher.workers import claimed_jobs
from walle.launcher.workers.claimed_jobs import ClaimedJobs, ClaimLostError
from walle.launcher.workers.claims import Claims

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
    monkeypatch.setattr(claimed_jobs, "SIGNAL_S", 0)
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
    assert not a.is_over()
    for job in (2, 3):
        b.release(job)
        b.settle(job, "failed")
    assert a.is_over()
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
