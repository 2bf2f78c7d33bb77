import multiprocessing

import numpy as np
import pytest

from walle.sampling.messages import Closed
from walle.sampling.policy_queue import PolicyQueue
from walle.types import PolicySnapshot

CONTEXT = multiprocessing.get_context("forkserver")


def wait_for(reader, version, answer):
    got = reader.get(version, newest=False)
    answer.send_bytes(got.vector.tobytes())


def snapshot(version):
    return PolicySnapshot(version, np.full(5, version, np.float32))


def test_a_reader_gets_exactly_the_version_it_asks_for():
    queue = PolicyQueue(5, depth=2)
    queue.put(snapshot(0))
    queue.put(snapshot(1))
    got = queue.connect(0).get(0, newest=False)
    assert got.version == 0
    assert got.vector.tolist() == [0] * 5


def test_a_free_running_reader_gets_the_newest():
    queue = PolicyQueue(5, depth=2)
    for version in range(7):
        queue.put(snapshot(version))
    got = queue.connect(0).get(0, newest=True)
    assert (got.version, got.vector[0]) == (6, 6)


def test_a_policy_says_how_long_its_rollouts_are():
    queue = PolicyQueue(5, depth=2)
    queue.put(snapshot(0)._replace(rollout_steps=7))
    queue.put(snapshot(1))
    reader = queue.connect(0)
    assert [reader.get(version, newest=False).rollout_steps for version in (0, 1)] == [7, None]


def test_publishing_never_waits_for_readers():
    queue = PolicyQueue(5, depth=2)
    for version in range(200_000):  # more wake-ups than a pipe holds
        queue.put(PolicySnapshot(version, np.zeros(5, np.float32)))
    assert queue.connect(0).get(0, newest=True).version == 199_999


def test_a_closed_policy_queue_ends_the_wait():
    queue = PolicyQueue(5, depth=2)
    queue.put(snapshot(0))
    queue.close()
    with pytest.raises(Closed):
        queue.connect(0).get(1, newest=False)


def test_a_waiting_process_is_woken_by_the_version_it_waits_for():
    queue = PolicyQueue(5, depth=2)
    receive, answer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=wait_for, args=(queue.connect(0), 1, answer))
    process.start()
    queue.put(snapshot(0))
    assert not receive.poll(0.2)
    queue.put(snapshot(1))
    assert np.frombuffer(receive.recv_bytes(), np.float32).tolist() == [1] * 5
    process.join(5)
    assert process.exitcode == 0
