"""Only the answers that a living pool owes count."""

import pytest

from walle.sampling.cluster.answer import Header
from walle.sampling.cluster.expected import Expected

LANES = (3, 4)


@pytest.fixture
def expected():
    found = Expected()
    found.begin(1, 5, LANES)
    found.begin(2, 5, (0, 1, 2))
    return found


def test_the_answers_of_a_pool_count_in_their_order(expected):
    assert expected.judge(Header(5, 4, 1, LANES), 4) == ("", False)
    assert expected.judge(Header(6, 5, 1, LANES), 5) == ("", False)
    assert expected.judge(Header(5, 4, 2, (0, 1, 2)), 4) == ("", False)


def test_an_answer_that_comes_twice_is_dropped(expected):
    expected.judge(Header(5, 4, 1, LANES), 4)
    fault, stale = expected.judge(Header(5, 4, 1, LANES), 4)
    assert stale
    assert "twice" in fault
    assert expected.judge(Header(6, 5, 1, LANES), 5) == ("", False)


def test_an_answer_of_a_pool_that_has_ended_is_dropped(expected):
    expected.end(1)
    expected.begin(3, 5, LANES)  # the same lanes elsewhere
    fault, stale = expected.judge(Header(5, 4, 1, LANES), 4)
    assert stale
    assert "set aside" in fault
    assert expected.judge(Header(5, 4, 3, LANES), 4) == ("", False)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (Header(6, 4, 1, LANES), "before that for round 5"),
        (Header(5, 3, 1, LANES), "policy 3 instead of 4"),
        (Header(5, 4, 1, (3, 5)), "other lanes"),
    ],
)
def test_an_answer_to_another_question_is_a_fault(expected, header, why):
    fault, stale = expected.judge(header, 4)
    assert not stale
    assert why in fault
    assert expected.judge(Header(5, 4, 1, LANES), 4) == ("", False)
