from types import SimpleNamespace

from walle.sampling.cluster.sampling import RaySampling, Request


def test_only_the_first_answer_that_a_pool_owes_is_waited_for():
    """Ray may report the answer for a later round before that for an earlier one."""
    here, there = (SimpleNamespace(incarnation=number) for number in (1, 2))
    sampling = object.__new__(RaySampling)
    sampling._requests = {
        "here 1": Request(1, here, 0),
        "there 1": Request(1, there, 0),
        "here 2": Request(2, here, 0),
        "there 2": Request(2, there, 0),
    }
    assert sampling._next_answers() == ["here 1", "there 1"]
    del sampling._requests["here 1"]
    assert sampling._next_answers() == ["there 1", "here 2"]
