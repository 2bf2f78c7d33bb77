"""Trains on demand, and says how long each section of every round took in the agent's process.

    python serial_worker.py

Reads lines {"overrides": [...], "warmup": 2} and answers each with a line of JSON: for every round
after the warm-up the seconds of each section. Sections are methods of walle, measured by a `Timer`,
so they are exclusive: a method that another section calls does not count in that one. Two of them
are divided further: the wait for the samplers by what they did in it (`timing.csv` has the same),
and the passes over a round by what `walle/learning/native` says of itself.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from typing import Any

from walle.config import compose
from walle.timing import Timer
from walle.training import train

REST = "other"
WAITING, TRACKERS, ROWS, LOGGING = "waiting for samplers", "trackers", "csv rows", "logging"
RECEIVING, HANDING, NORMALISERS = "receiving the round", "handing it to learners", "normalisers"
PASSES, LEARNING, PUBLISHING = "passes over the round", "learning, other", "publishing"
COLLECTING, LAST_SAMPLER = "samplers' work, mean", "waiting for the last one"
DIVIDED, UNDIVIDED = "values and gradients", "sums, norms, Adam"
LAST_LEARNER = "waiting for a learner"
PLACES = {
    WAITING: [
        "walle.sampling.process_sampling:ProcessSampling.wait_round",
        # The samplers collect from here on, and may take the agent's core at once.
        "walle.sampling.queues:PolicyQueue._wake_samplers",
    ],
    RECEIVING: ["walle.sampling.process_sampling:ProcessSampling.receive"],
    HANDING: ["walle.learning.sharing.learners:Leader.announce"],
    NORMALISERS: [
        "walle.algos.on_policy.experience:Normalizers.experience",
        "walle.algos.on_policy.experience:Normalizers.update",
    ],
    PASSES: [
        "walle.algos.on_policy.ppo:PPO.batch",
        "walle.learning.step:taken",
        "walle.learning.step:Optimizer.minimise",
        "walle.learning.native.passes:Passes.estimate",
        "walle.learning.native.passes:Passes.run",
    ],
    LEARNING: ["walle.algos.on_policy.base:OnPolicy.update"],
    PUBLISHING: [
        "walle.agent.agent:Agent._next_snapshot",
        "walle.agent.agent:Agent._publish",
    ],
    TRACKERS: ["walle.agent.recorder:EpisodeTracker.add"],
    ROWS: ["walle.agent.csv_file:CsvFile.append"],
    LOGGING: ["walle.agent.recorder:Recorder.iteration"],
}
ROUND = "walle.agent.agent:Agent._iterate"
RECEIVED = "walle.sampling.process_sampling:ProcessSampling.receive"
EPOCH = "walle.learning.native.passes:Passes.run"
WHILE_COLLECTING = (TRACKERS, ROWS, LOGGING)


class Sections:
    """The timer of the present training, and the rounds that it has measured."""

    def __init__(self) -> None:
        """Starts without rounds."""
        self.timer = Timer((*PLACES, REST))
        self.rounds: list[dict[str, float]] = []
        self.busy_s = 0.0
        self.spent = (0.0, 0.0)

    def timed(self, section: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, measured in the section."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.timer.section(section):
                return function(*args, **kwargs)

        return run

    def each_round(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call of which is a round."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.timer.take()
            before = self.spent
            found = function(*args, **kwargs)
            self.rounds.append(divided(self.timer.take(), self.busy_s, self.spent, before))
            return found

        return run

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`receive`, whose rounds tell how long the samplers worked."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            round_ = function(*args, **kwargs)
            self.busy_s = statistics.mean(round_.busy_s)
            return round_

        return run

    def asked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A pass, after which the library tells how much of its time was divided, and waited."""

        @functools.wraps(function)
        def run(passes: Any, *args: Any, **kwargs: Any) -> Any:
            found = function(passes, *args, **kwargs)
            self.spent = passes.spent()
            return found

        return run


def divided(
    seconds: dict[str, float],
    busy_s: float,
    spent: tuple[float, float],
    before: tuple[float, float],
) -> dict[str, float]:
    """The sections of a round of timed `seconds`, `WAITING` and `PASSES` divided further.

    `busy_s` is the mean of the samplers. `spent` and `before` are the library's seconds of divided
    work and of waiting, after the round and before it. They are equal where there is no library;
    the whole passes then count as divided.
    """
    collecting = seconds[WAITING] + sum(seconds[name] for name in WHILE_COLLECTING)
    passes = seconds[PASSES]
    work, waited = (now - then for now, then in zip(spent, before, strict=True))
    work = work or passes
    found = {COLLECTING: busy_s, LAST_SAMPLER: collecting - busy_s}
    for name, value in seconds.items():
        if name == PASSES:
            found |= {DIVIDED: work, UNDIVIDED: passes - work - waited, LAST_LEARNER: waited}
        elif name != WAITING:
            found[name] = value
    return found


def main() -> int:
    """Answers until the input ends."""
    sections = Sections()
    for section, places in PLACES.items():
        for place in places:
            _replace(place, functools.partial(sections.timed, section))
    _replace(ROUND, sections.each_round)
    _replace(RECEIVED, sections.watched)
    _replace(EPOCH, sections.asked)
    for line in sys.stdin:
        asked = json.loads(line)
        sections.rounds.clear()
        sections.spent = (0.0, 0.0)  # a run has a library's learner of its own
        with tempfile.TemporaryDirectory() as directory:
            train(compose(asked["overrides"]), directory)
        print(json.dumps({"rounds": sections.rounds[asked["warmup"] :]}), flush=True)
    return 0


def _replace(place: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts `wrapped(f)` in the place of the function `module:f` or the method `module:Class.f`."""
    module, _, path = place.partition(":")
    *classes, name = path.split(".")
    owner: Any = functools.reduce(getattr, classes, import_module(module))
    setattr(owner, name, wrapped(getattr(owner, name)))


if __name__ == "__main__":
    sys.exit(main())
