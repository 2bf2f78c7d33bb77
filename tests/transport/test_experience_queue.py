import multiprocessing

import pytest

from walle.transport.experience_queue import ExperienceQueue
from walle.transport.messages import Closed, Failed
from walle.transport.slots import RolloutShape

CONTEXT = multiprocessing.get_context("forkserver")
SHAPE = RolloutShape(2, 3, (4,), "float32", (1,), "float32")


@pytest.fixture
def queue():
    return ExperienceQueue(CONTEXT, [SHAPE, SHAPE], 2)


def send(queue, sampler, mark):
    writer = queue.writer(sampler)
    number = writer.claim()
    writer.slot(number).rollout.reward[:] = mark
    writer.slot(number).steps[0] = 2
    writer.send(number)
    return number


def drain(queue):
    queue.wait(timeout_s=1)


def test_slots_have_the_shapes_of_a_rollout(queue):
    rollout = queue.writer(0).slot(0).rollout
    assert rollout.obs.shape == (3, 3, 4)
    assert rollout.final_obs.shape == (2, 3, 4)
    assert rollout.action.shape == (2, 3, 1)
    assert rollout.policy_version.shape == (3,)


def test_slots_do_not_overlap(queue):
    for sampler in (0, 1):
        for number in (0, 1):
            slot = queue.writer(sampler).slot(number)
            for array in (*slot.rollout, *slot[1:]):
                array[...] = 0
    first = queue.writer(0).slot(0)
    for array in (*first.rollout, *first[1:]):
        array[...] = 1
    others = [queue.writer(0).slot(1), queue.writer(1).slot(0)]
    assert not any(array.any() for slot in others for array in slot.rollout)
    assert all(array.all() for array in first.rollout)


def test_a_round_is_one_rollout_of_every_sampler_in_their_order(queue):
    send(queue, 1, 11)
    send(queue, 1, 12)
    drain(queue)
    drain(queue)
    assert queue.take_round() is None
    send(queue, 0, 1)
    drain(queue)
    received = queue.take_round()
    assert [item.sampler for item in received] == [0, 1]
    assert [item.slot.rollout.reward[0, 0] for item in received] == [1, 11]
    assert queue.take_round() is None


def test_the_first_to_arrive_is_taken_first(queue):
    assert queue.take_first() is None
    send(queue, 1, 11)
    drain(queue)
    send(queue, 0, 1)
    drain(queue)
    received = [queue.take_first(), queue.take_first()]
    assert [item.sampler for item in received] == [1, 0]
    copy = received[0].copied()
    received[0].slot.rollout.reward[:] = 0
    assert copy.slot.rollout.reward[0, 0] == 11


def test_those_that_came_together_are_taken_as_they_were_sent(queue):
    send(queue, 1, 11)
    send(queue, 0, 1)
    drain(queue)
    assert [queue.take_first().sampler for _ in range(2)] == [1, 0]


def test_a_slot_can_be_claimed_again_once_released(queue):
    writer = queue.writer(0)
    first, second = send(queue, 0, 1), send(queue, 0, 2)
    assert {first, second} == {0, 1}
    drain(queue)
    drain(queue)
    received = queue.take_first()
    queue.release(received)
    assert writer.claim() == first


def test_a_closed_queue_ends_the_wait_for_a_slot(queue):
    send(queue, 0, 1)
    send(queue, 0, 2)
    queue.close()
    with pytest.raises(Closed):
        queue.writer(0).claim()


def test_a_failure_carries_its_report(queue):
    queue.writer(1).fail("Traceback: the gearbox broke")
    with pytest.raises(Failed) as caught:
        drain(queue)
    assert caught.value.sampler == 1
    assert "gearbox" in caught.value.report


def test_ready_when_every_sampler_said_so(queue):
    queue.writer(0).ready()
    drain(queue)
    assert not queue.all_ready()
    queue.writer(1).ready()
    drain(queue)
    assert queue.all_ready()


def test_what_is_filled_of_a_slot_travels_with_it(queue):
    writer = queue.writer(0)
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
