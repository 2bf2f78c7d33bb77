import multiprocessing
import threading

import numpy as np
import pytest

from walle.errors import WorkerError
from walle.sampling.lane_book import LaneBlock
from walle.sampling.queues import ANEW, READY, Closed, ExperienceQueue, PolicyQueue
from walle.sampling.slots import RolloutShape
from walle.types import PolicySnapshot

SHAPE = RolloutShape(2, 3, (4,), "float32", (1,), "float32", state=2, lane_state=8)


@pytest.fixture
def queue():
    return ExperienceQueue([SHAPE, SHAPE], 2)


@pytest.fixture
def writers(queue):
    return [queue.connect(0), queue.connect(1)]


def send(writer, mark):
    number = writer.claim()
    writer.slot(number).rollout.reward[:] = mark
    writer.slot(number).steps[0] = 2
    writer.send(number)
    return number


def drain(queue):
    queue.wait(timeout_s=1)


def rewards(slots):
    return [slot.rollout.reward[0, 0] for slot in slots]


def test_slots_have_the_shapes_of_a_rollout(writers):
    slot = writers[0].slot(0)
    assert slot.rollout.obs.shape == (3, 3, 4)
    assert slot.rollout.final_obs.shape == (2, 3, 4)
    assert slot.rollout.action.shape == (2, 3, 1)
    assert slot.rollout.policy_version.shape == (3,)
    assert (slot.lane_states.shape, slot.memory.shape) == ((3, 8), (3, 2))


def test_slots_do_not_overlap(writers):
    for writer in writers:
        for number in (0, 1):
            slot = writer.slot(number)
            for array in (*slot.rollout, *slot[1:]):
                array[...] = 0
    first = writers[0].slot(0)
    for array in (*first.rollout, *first[1:]):
        array[...] = 1
    others = [writers[0].slot(1), writers[1].slot(0)]
    assert not any(array.any() for slot in others for array in (*slot.rollout, *slot[1:]))
    assert all(array.all() for array in (*first.rollout, *first[1:]))


def test_a_round_is_one_rollout_of_every_sampler_in_their_order(queue, writers):
    send(writers[1], 11)
    send(writers[1], 12)
    drain(queue)
    drain(queue)
    assert queue.take_round() is None
    send(writers[0], 1)
    drain(queue)
    received = queue.take_round()
    assert [item.sampler for item in received] == [0, 1]
    assert rewards(item.slot for item in received) == [1, 11]
    assert queue.take_round() is None


def test_the_first_to_arrive_is_taken_first(queue, writers):
    assert queue.take_first() is None
    send(writers[1], 11)
    drain(queue)
    send(writers[0], 1)
    drain(queue)
    received = [queue.take_first(), queue.take_first()]
    assert [item.sampler for item in received] == [1, 0]
    copy = received[0].copied()
    for array in (*received[0].slot.rollout, *received[0].slot[1:]):
        array[...] = 0
    assert rewards([copy.slot]) == [11]
    assert copy.slot.steps[0] == 2


def test_those_that_came_together_are_taken_as_they_were_sent(queue, writers):
    send(writers[1], 11)
    send(writers[0], 1)
    drain(queue)
    assert [queue.take_first().sampler for _ in range(2)] == [1, 0]


def test_a_slot_can_be_claimed_again_once_released(queue, writers):
    first, second = send(writers[0], 1), send(writers[0], 2)
    assert {first, second} == {0, 1}
    drain(queue)
    drain(queue)
    received = queue.take_first()
    queue.release(received)
    assert writers[0].claim() == first


def test_a_closed_queue_ends_the_wait_for_a_slot(queue, writers):
    send(writers[0], 1)
    send(writers[0], 2)
    queue.close()
    with pytest.raises(Closed):
        writers[0].claim()


def test_a_failure_carries_its_report(queue, writers):
    writers[1].send(READY)  # both messages are read at once
    writers[1].fail("Traceback: the gearbox broke")
    for _ in range(2):  # a later wait raises it again
        with pytest.raises(WorkerError, match=r"sampler-1 failed:\nTraceback: the gearbox"):
            drain(queue)


def test_samplers_report_that_they_are_ready(queue, writers):
    writers[0].send(READY)
    drain(queue)
    assert queue.ready == {0}
    writers[1].send(ANEW)
    drain(queue)
    assert queue.ready == queue.heard == {0, 1}
    assert queue.anew == {1}


def test_what_is_filled_of_a_slot_travels_with_it(queue, writers):
    writer = writers[0]
    slot = writer.slot(writer.claim())
    slot.rollout.reward[:] = [[1] * 3, [2] * 3]
    slot.steps[0] = 1
    writer.send(0)
    drain(queue)
    received = queue.take_first()
    for found in (received.slot.filled, received.copied().slot.filled):
        assert found.reward.tolist() == [[1] * 3]
        assert found.obs.shape == (2, 3, 4)
        assert found.lane.shape == (3,)


def test_a_new_end_has_the_slots_that_do_not_wait_and_cuts_the_old_one_off(queue, writers):
    old = writers[0]
    old.send(READY)
    drain(queue)
    taken = send(old, 1)
    drain(queue)
    assert rewards(queue.pending(0)) == [1]
    half_filled = old.claim()  # then its process died
    new = queue.connect(0)
    assert queue.ready == set()
    with pytest.raises(Closed):
        old.send(READY)
    assert rewards(queue.pending(0)) == [1]  # what it has sent is not collected again
    assert send(new, 2) == half_filled
    drain(queue)
    received = queue.take_first()
    assert (received.number, rewards(queue.pending(0))) == (taken, [2])
    queue.release(received)
    assert new.claim() == taken


def dealt_to(lanes):
    return (LaneBlock.first(lanes)._replace(round=7, state=np.ones((len(lanes), 8), np.uint8)),)


def test_a_sampler_gets_other_lanes_before_their_round(queue, writers):
    queue.deal(0, 7, dealt_to(range(5)))
    assert writers[0].dealt(6) is None
    (block,) = writers[0].dealt(7)
    assert (block.round, block.numbers.tolist()) == (7, [0, 1, 2, 3, 4])
    assert writers[0].dealt(7) is None  # once
    send(writers[0], 3)
    drain(queue)
    slot = queue.take_first().slot
    assert slot.rollout.reward.tolist() == [[3] * 5] * 2


def test_a_sampler_waits_for_lanes_that_were_announced(queue, writers):
    queue.announce_deal(1, 7)
    assert writers[1].dealt(6) is None
    threading.Timer(0.05, queue.deal, [1, 7, dealt_to([3])]).start()
    (block,) = writers[1].dealt(7)
    assert block.numbers.tolist() == [3]
    queue.announce_deal(1, 9)
    queue.close()
    with pytest.raises(Closed):
        writers[1].dealt(9)


def test_the_end_of_a_process_that_died_reads_as_closed_and_the_others_go_on(queue, writers):
    writers[0].close()  # sampler 0 has died
    drain(queue)
    send(writers[1], 11)
    drain(queue)
    assert queue.take_first().sampler == 1


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
