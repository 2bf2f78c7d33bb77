"""Times of samplers that share cores, by hand and against one event after the other."""

import heapq
import math

import numpy as np
import pytest
from scipy.special import ndtri

from walle.analysis.planning import cores
from walle.analysis.planning.cores import Work, apart, ends, first_come, shared_evenly


def rng():
    return np.random.default_rng(0)


def steady(**given):
    return Work(
        **{"head_s": 0.0, "bursts": 1, "burst_s": 0.0, "wait_s": 0.0, "deviation_s": 0.0} | given
    )


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_work_that_fits_on_its_cores_takes_its_own_time(number):
    work = steady(burst_s=2.0, head_s=1.0)
    assert ends(work, number, math.inf, 2, rng()).tolist() == [[3.0] * number] * 2
    found = ends(work, number, 2, 1, rng())[0]
    assert found.tolist() == [3.0 * max(1, number / 2)] * number  # evenly shared


def test_unequal_work_shares_what_is_left():
    # both at half speed until the first is done after 2, then 2 more alone
    assert shared_evenly(np.array([3.0, 1.0]), 1).tolist() == [2.0, 4.0]
    assert shared_evenly(np.array([3.0, 1.0]), 2).tolist() == [3.0, 1.0]


def test_a_part_of_a_core_makes_work_slower_only_where_samplers_need_it():
    assert ends(steady(burst_s=1.0), 2, 4 / 3, 1, rng())[0].tolist() == pytest.approx([1.5, 1.5])
    assert ends(steady(burst_s=1.0), 1, 4 / 3, 1, rng())[0].tolist() == [1.0]
    assert ends(steady(burst_s=1.0), 3, 4 / 3, 1, rng())[0].tolist() == pytest.approx([2.25] * 3)


def test_bursts_are_served_in_the_order_of_arrival():
    assert first_come(np.array([0.0, 0.0, 0.0]), 1.0, 1).tolist() == [1.0, 2.0, 3.0]
    assert first_come(np.array([5.0, 0.0, 0.5]), 1.0, 1).tolist() == [1.0, 2.0, 6.0]
    assert first_come(np.array([0.0, 0.0, 0.0]), 1.0, 2).tolist() == [1.0, 1.0, 2.0]


def test_samplers_that_wait_queue_once_where_cores_have_time_to_spare():
    # three bursts of 1 in a row on one core at the start; afterwards nobody meets anybody
    work = steady(head_s=1.0, bursts=2, burst_s=1.0, wait_s=20.0)
    assert sorted(ends(work, 3, 1, 1, rng())[0]) == pytest.approx([23.0, 24.0, 25.0])


def test_cores_that_never_rest_bound_the_round():
    work = steady(head_s=1.0, bursts=4, burst_s=1.0, wait_s=0.4)
    assert ends(work, 10, 2, 1, rng()).max() == pytest.approx(25.0)


def one_after_the_other(work, samplers, servers):
    """The last end, by a queue of events: bursts wait for a free core, first come, first served."""
    ready = [(0.0, i, 0) for i in range(samplers)]
    free = [0.0] * servers
    last = 0.0
    while ready:
        now, sampler, burst = heapq.heappop(ready)
        service = work.burst_s if burst else work.head_s
        end = max(now, heapq.heappop(free)) + service
        heapq.heappush(free, end)
        if burst == work.bursts:
            last = max(last, end)
        else:
            heapq.heappush(ready, (end + work.wait_s / work.bursts, sampler, burst + 1))
    return last


@pytest.mark.parametrize("samplers", [3, 8, 33, 64])
@pytest.mark.parametrize("wait_s", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_queueing_is_within_6_percent_of_an_event_queue_s(samplers, wait_s, servers):
    work = steady(head_s=0.3, bursts=8, burst_s=0.1, wait_s=wait_s)
    found = ends(work, samplers, servers, 1, rng()).max()
    assert found == pytest.approx(one_after_the_other(work, samplers, servers), rel=0.06)


def test_the_closed_form_is_near_the_queue(monkeypatch):
    work = steady(head_s=0.3, bursts=8, burst_s=0.1, wait_s=20.0)
    for samplers in (8, 64, 512):
        queue = ends(work, samplers, 2, 1, rng()).max()
        with monkeypatch.context() as patch:
            patch.setattr(cores, "MOST_BURSTS", 0)
            assert ends(work, samplers, 2, 1, rng()).max() == pytest.approx(queue, rel=0.05)


def test_the_round_of_stragglers_is_the_expected_maximum():
    # of 64 sums of 100 waits each, almost normal: mean + deviation x E[max of 64 standard normals]
    work = steady(bursts=100, wait_s=100.0, deviation_s=5.0)
    found = ends(work, 64, math.inf, 4000, rng()).max(axis=1)
    at = np.linspace(1e-9, 1 - 1e-9, 200_001)
    expected = 100 + 5 * np.trapezoid(ndtri(at ** (1 / 64)), at)
    assert expected == pytest.approx(100 + 5 * 2.35, abs=0.1)
    assert found.mean() == pytest.approx(expected, rel=0.005)


def test_the_places_of_a_round_are_drawn():
    """Else the same sampler would be the slowest one in every round."""
    work = steady(bursts=2, wait_s=1.0, head_s=0.1, burst_s=0.1)
    last = ends(work, 8, 1, 200, rng()).argmax(axis=1)
    assert len(set(last.tolist())) == 8


def test_samplers_that_do_not_begin_together_take_what_all_need_of_the_cores():
    busy = steady(head_s=1.0, bursts=4, burst_s=1.0, wait_s=0.4)
    assert apart(busy, 10, 2, 1, rng()).tolist() == [[25.0] * 10]
    assert apart(busy, 2, 2, 1, rng()).tolist() == [[5.4] * 2]
    assert apart(steady(burst_s=3.0), 6, 4, 1, rng()).tolist() == [[4.5] * 6]
