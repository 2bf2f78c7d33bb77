import threading
import time
from multiprocessing import Pipe
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from walle.learning.sharing.learners import (
    _READY,
    Announcement,
    LearnerTask,
    _learn,
    checksum,
)
from walle.learning.sharing.shared_team import SharedTeam, TeamMemory, put

LIMIT_S = 20


class RoundNumber(NamedTuple):
    number: Tensor


class MeetsOnceARound:
    def __init__(self):
        self.vector, self.env_steps, self.learned = torch.zeros(3), 0, []

    def join(self, team):
        self.team = team

    def warm_up(self):
        return ""

    def learn(self, number):
        self.team.gather(2, 1, lambda _: torch.ones(1))
        self.learned.append(int(number))


def test_a_learner_finishes_its_round_although_the_next_one_is_announced():
    ours, theirs = Pipe()
    memory, algorithm = TeamMemory(2), MeetsOnceARound()

    def learner():
        with pytest.raises(EOFError):  # the agent needs it no more
            _learn(LearnerTask(1, lambda: algorithm, "cpu", 1), theirs, memory)

    thread = threading.Thread(target=learner, daemon=True)
    thread.start()
    assert ours.recv() == _READY
    begin_s = time.monotonic()

    def give_up():
        assert time.monotonic() < begin_s + LIMIT_S

    for number in range(2):
        places = put(memory.round, RoundNumber(torch.tensor(number)))
        ours.send(Announcement(None, checksum(algorithm.vector), 0, places))
        while theirs.poll():  # it takes the second message while it waits in the first round
            give_up()
            time.sleep(0.001)
        time.sleep(0.2)  # it has copied the round
    assert (algorithm.learned, thread.is_alive()) == ([], True)
    agent = SharedTeam(0, memory, "cpu", give_up)
    agent.gather(2, 1, lambda _: torch.ones(1))
    agent.gather(2, 1, lambda _: torch.ones(1))
    ours.close()
    thread.join(LIMIT_S)
    assert (algorithm.learned, thread.is_alive()) == ([0, 1], False)
