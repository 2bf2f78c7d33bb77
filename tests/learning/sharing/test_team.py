import os
import threading
from multiprocessing import Pipe

import numpy as np
import pytest
import torch

from walle.learning.sharing import shared_team
from walle.learning.sharing.shared_team import Barrier, SharedTeam, TeamMemory, get, put
from walle.learning.sharing.team import ALONE, dealt, map_rows
from walle.system.shared_memory import SharedMemory
from walle.types import Rollout

LIMIT_S = 60


def in_threads(size, body):
    """Runs `body(rank)` in `size` threads; returns what they return, raises what they raise."""
    found, errors = [None] * size, []

    def run(rank):
        try:
            found[rank] = body(rank)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=[rank], daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert errors or not thread.is_alive()
    if errors:
        raise errors[0]
    return found


def nothing():
    pass


@pytest.mark.parametrize(("count", "size"), [(1, 1), (4, 2), (5, 3), (2, 3), (0, 2)])
def test_rows_are_dealt_once_and_evenly(count, size):
    shares = [dealt(count, rank, size) for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("size", [1, 2, 3])
def test_everybody_gets_all_rows_in_their_order(size):
    memory, computed = TeamMemory(size), []

    def learner(rank):
        team, found = SharedTeam(rank, memory, "cpu", nothing), []
        for turn in range(50):

            def compute(row, turn=turn):
                computed.append((turn, row))
                return torch.tensor([turn, row], dtype=torch.float32)

            found.append(team.gather(5, 2, compute).clone())
        return torch.stack(found)

    expected = torch.tensor([[[turn, row] for row in range(5)] for turn in range(50)])
    for rows in in_threads(size, learner):
        assert rows.equal(expected.float())
    assert sorted(computed) == [(turn, row) for turn in range(50) for row in range(5)]


def test_one_learner_alone_gets_all_rows():
    rows = ALONE.gather(3, 2, lambda row: torch.full((2,), float(row)))
    assert rows.tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("count", [1, 1024, 1025, 3000])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_learners_divide_rows_in_blocks(count, size):
    memory, x, lengths = TeamMemory(size), torch.arange(2.0 * count).view(count, 2), []

    def sums(rows):
        lengths.append(len(rows))
        return rows.sum(-1)

    def learner(rank):
        return map_rows(sums, x, SharedTeam(rank, memory, "cpu", nothing))

    for found in (*in_threads(size, learner), map_rows(sums, x)):
        assert torch.equal(found, x.sum(-1))
    blocks = [min(1024, count - first) for first in range(0, count, 1024)]
    assert sorted(lengths) == sorted(2 * blocks)


def test_a_result_is_not_overwritten_by_the_next():
    team = SharedTeam(0, TeamMemory(1), "cpu", nothing)
    first, *_ = [map_rows(lambda x, n=n: x[:, 0] + n, torch.zeros(5, 1), team) for n in range(4)]
    assert first.tolist() == [0.0] * 5


def test_rows_of_other_sizes_use_the_same_memory():
    memory, sizes = TeamMemory(2), (1, 3, 2, 300, 1)

    def learner(rank):
        team, found = SharedTeam(rank, memory, "cpu", nothing), []
        for n in sizes:
            rows = team.gather(n, n, lambda row, n=n: torch.full((n,), row + 1.0))
            found.append(float(rows.sum()))
        return found

    expected = [n * n * (n + 1) / 2 for n in sizes]
    assert in_threads(2, learner) == [expected, expected]


def test_a_barrier_holds_until_the_last_one_comes():
    barrier, passed, last = Barrier(3), [], threading.Event()

    def learner(rank):
        if rank == 2:
            assert last.wait(LIMIT_S)
            assert passed == []
        barrier.wait(rank, last.set)  # the others sleep by now
        passed.append(rank)

    in_threads(3, learner)
    assert sorted(passed) == [0, 1, 2]


def test_a_learner_that_waits_in_vain_asks_whether_the_team_is_whole(monkeypatch):
    monkeypatch.setattr(shared_team, "_SLEEP_S", 0.001)

    def died():
        raise EOFError("the team is broken")

    with pytest.raises(EOFError, match="broken"):
        Barrier(2).wait(0, died)


def test_a_tree_travels_in_shared_memory():
    memory = SharedMemory(reserve=True)
    none = np.zeros(0, np.float32)
    rollout = Rollout(
        obs=np.arange(6, dtype=np.uint8).reshape(3, 2),
        final_obs=none,
        action=np.array([[1], [2]], np.int64),
        reward=np.array([[0.5], [1.5]], np.float32),
        terminated=np.array([[True], [False]]),
        truncated=np.array([[False], [False]]),
        log_prob=torch.tensor([[1.0], [2.0]]),
        lane=np.array([7]),
        policy_version=None,
    )
    found = get(memory, put(memory, rollout), "cpu")
    assert type(found) is Rollout
    for name, value in rollout._asdict().items():
        got = getattr(found, name)
        assert type(got) is type(value)
        if value is not None:
            assert got.dtype == value.dtype
            assert got.tolist() == value.tolist()
    put(memory, rollout._replace(obs=rollout.obs + 1))
    assert found.obs.tolist() == rollout.obs.tolist()  # a copy
    assert rollout.log_prob.tolist() == [[1.0], [2.0]]


def test_memory_grows_and_keeps_its_numbers():
    memory = SharedMemory(reserve=True)
    memory.bytes(8)[:] = 7
    grown = memory.bytes(1 << 20)
    assert grown[:8].tolist() == [7] * 8
    assert len(grown) == 1 << 20
    grown[0] = 9
    assert memory.bytes(8)[0] == 9


def test_memory_leaves_no_descriptor_open():
    before = len(os.listdir("/proc/self/fd"))
    TeamMemory(3).round.bytes(100)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_agents_end_reaches_a_learner_that_waits(monkeypatch):
    monkeypatch.setattr(shared_team, "_SLEEP_S", 0.001)
    ours, theirs = Pipe()
    ours.close()

    def while_waiting():
        if theirs.poll():
            raise EOFError

    with pytest.raises(EOFError):
        SharedTeam(1, TeamMemory(2), "cpu", while_waiting).gather(2, 1, lambda _: torch.ones(1))
