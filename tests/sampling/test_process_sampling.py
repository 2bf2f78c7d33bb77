"""Overlapped and free-running runs of 200 rounds, with random delays on both sides."""

import bisect
import errno
import gc
import itertools
import os
import random
import time
from collections import defaultdict

import pytest

from tests.conftest import read
from walle.agent import checkpoint
from walle.algos.on_policy.ppo import PPO
from walle.errors import Interrupted
from walle.sampling import process_sampling
from walle.sampling.process_sampling import ProcessSampling
from walle.sampling.queues import ExperienceQueue

ROUNDS, SAMPLERS, LANES, STEPS = 200, 3, 12, 4
BATCH = LANES * STEPS
SLEEPY = (
    "env=gym",
    "env.id=tests.toy:Sleepy-v0",
    f"sampler.n={SAMPLERS}",
    f"sampler.lanes={LANES}",
    f"batch_size={BATCH}",
    f"total_steps={ROUNDS * BATCH}",
    f"algo.minibatch_size={BATCH}",
    "algo.epochs=1",
    "checkpoint.every=null",
)


class Witness:
    """Sees every policy that is published and every rollout that is learned from."""

    def __init__(self):
        self.published = []  # (just before, just after), ns; the index is the version
        self.rollouts = defaultdict(list)  # by sampler: (policy version, sent, learned at version)

    def publish(self, put):
        def recorded(sampling_, snapshot):
            before = time.monotonic_ns()
            put(sampling_, snapshot)
            self.published.append((before, time.monotonic_ns()))

        return recorded

    def assemble_round(self, assemble_round):
        def recorded(received, tasks, dropped=None):
            for item in received:
                (acted,) = set(item.slot.rollout.policy_version.tolist())
                found = (acted, int(item.slot.sent_ns[0]), len(self.published) - 1)
                self.rollouts[item.sampler].append(found)
            return assemble_round(received, tasks, dropped)

        return recorded

    def newest(self, at_ns, *, at_least):
        """The newest version then: certainly out already, or perhaps."""
        times = [after if at_least else before for before, after in self.published]
        return bisect.bisect_right(times, at_ns) - 1


@pytest.fixture
def witness(monkeypatch):
    found = Witness()
    publish = found.publish(process_sampling.ProcessSampling.publish)
    monkeypatch.setattr(process_sampling.ProcessSampling, "publish", publish)
    monkeypatch.setattr(
        process_sampling, "assemble_round", found.assemble_round(process_sampling.assemble_round)
    )
    return found


@pytest.fixture(autouse=True)
def sleepy_learner(monkeypatch):
    update, rng = PPO.update, random.Random(0)

    def slow(self, rollout):
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, 0.02))
        return update(self, rollout)

    monkeypatch.setattr(PPO, "update", slow)


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_overlapped_nobody_starves_and_the_lag_is_as_promised(run, witness, max_lag):
    _, directory = run(*SLEEPY, f"sampler.max_lag={max_lag}")
    rows = read(directory / "iterations.csv")
    lags = [str(min(round_, max_lag)) for round_ in range(ROUNDS)]
    assert [row["lag_max"] for row in rows] == lags
    assert [float(row["lag_mean"]) for row in rows] == [float(lag) for lag in lags]
    assert {sampler: len(found) for sampler, found in witness.rollouts.items()} == dict.fromkeys(
        range(SAMPLERS), ROUNDS
    )


def test_free_running_an_interrupted_round_is_not_in_the_saved_lanes(run, monkeypatch):
    take, taken = ExperienceQueue.take_first, []

    def first_of_round_five(queue):
        if len(taken) == 5 * SAMPLERS + 1:
            return None
        taken.append(item := take(queue))
        return taken.pop() if item is None else item

    wait = ProcessSampling._wait

    def interrupted(sampling):
        if len(taken) > 5 * SAMPLERS:
            raise Interrupted
        wait(sampling)

    monkeypatch.setattr(ExperienceQueue, "take_first", first_of_round_five)
    monkeypatch.setattr(ProcessSampling, "_wait", interrupted)
    _, directory = run(*SLEEPY, "sampler.max_lag=null")
    state = checkpoint.load(directory / "checkpoints" / "last.pt")
    assert state["env_steps"] == 5 * BATCH
    collected = sum(lanes["round"] * len(lanes["numbers"]) for lanes in state["lanes"])
    assert collected * STEPS == state["env_steps"]


@pytest.mark.parametrize("lag", ["0", "1"])
def test_an_error_while_a_round_is_received_leaves_the_last_checkpoint(
    run, monkeypatch, tmp_path, lag
):
    """The lanes are then ahead of what was learned: a run that was resumed so would hang."""
    release, calls = ExperienceQueue.release, iter(range(100))

    def full(*arguments):
        if next(calls) == 4:  # of two in the third round
            raise OSError(errno.EMFILE, "too many open files")
        release(*arguments)

    monkeypatch.setattr(ExperienceQueue, "release", full)
    small = ("env=cartpole", "sampler.n=2", f"sampler.max_lag={lag}", "checkpoint.every=256")
    with pytest.raises(OSError, match="too many open files"):
        run(*small)
    state = checkpoint.load(tmp_path / "run0" / "checkpoints" / "last.pt")
    assert state["iteration"] == 2
    assert {block["round"] for block in state["lanes"]} == {2}


def test_a_sampler_opens_no_more_files_than_are_allowed_for_it(run, monkeypatch):
    most: list[int] = []
    publish = ProcessSampling.publish

    def counted(*arguments):
        most.append(len(os.listdir("/proc/self/fd")))
        publish(*arguments)

    monkeypatch.setattr(ProcessSampling, "publish", counted)
    peaks = []
    for n in (2, 4):
        gc.collect()  # of earlier runs
        before = len(os.listdir("/proc/self/fd"))
        run("env=cartpole", f"sampler.n={n}")
        peaks.append(max(most) - before)
        most.clear()
    assert 0 < peaks[1] - peaks[0] <= 2 * process_sampling._FILES_A_SAMPLER


@pytest.mark.slow
def test_free_running_nobody_starves_and_nothing_grows_old_in_the_queue(run, witness):
    _, directory = run(*SLEEPY, "sampler.max_lag=null")
    rows = read(directory / "iterations.csv")
    assert len(rows) == ROUNDS
    assert sum(len(found) for found in witness.rollouts.values()) == ROUNDS * SAMPLERS
    # All are equally slow, so each delivers about a third; a tenth of that would be starving.
    assert all(len(witness.rollouts[s]) > ROUNDS / 10 for s in range(SAMPLERS))
    lags = [learned - acted for found in witness.rollouts.values() for acted, _, learned in found]
    assert max(lags) == max(int(row["lag_max"]) for row in rows)
    # In its one slot a rollout waits for one update at most. Few seem to wait longer: the sampler
    # lost its core after it had read the clock, before it sent the rollout.
    sent = [
        (sent_ns, learned) for found in witness.rollouts.values() for _, sent_ns, learned in found
    ]
    late = [learned - witness.newest(sent_ns, at_least=False) > 1 for sent_ns, learned in sent]
    assert sum(late) <= len(late) / 100
    for found in witness.rollouts.values():
        for (_, sent_ns, _), (acted, _, _) in itertools.pairwise(found):
            assert acted >= witness.newest(sent_ns, at_least=True)  # it acts under the newest
