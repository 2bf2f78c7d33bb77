"""Trains on demand, and says how long each section of every round took in the agent's process.

    python serial_worker.py

Reads lines {"overrides": [...], "warmup": 2} and answers each with a line of JSON: for every round
after the warm-up the seconds of each section. Sections are methods of walle, measured by a `Timer`,
so they are exclusive: a method that another section calls does not count in that one.
"""

from __future__ import annotations

import functools
import json
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
ADVANTAGES, SHUFFLING, STEPS = "values and advantages", "shuffling", "gradient steps"
LEARNING, PUBLISHING = "learning, other", "publishing"
PLACES = {
    WAITING: ["walle.transport.process_sampling:ProcessSampling.wait_round"],
    RECEIVING: ["walle.transport.process_sampling:ProcessSampling.receive"],
    HANDING: ["walle.learning.sharing.learners:Leader.announce"],
    NORMALISERS: [
        "walle.algos.experience:Normalizers.experience",
        "walle.algos.experience:Normalizers.update",
    ],
    ADVANTAGES: [
        "walle.algos.ppo:PPO.batch",
        "walle.learning.native.ppo_epochs:PPOEpochs.estimate",
    ],
    SHUFFLING: [
        "walle.learning.shards:ShardedStep.deal",
        "walle.learning.gradient_steps:CompiledStep.deal",
        "walle.learning.gradient_steps:EagerStep.deal",
    ],
    STEPS: [
        "walle.learning.optimizer:Optimizer._run_epoch",
        "walle.learning.native.ppo_epochs:PPOEpochs.epoch",
    ],
    LEARNING: ["walle.algos.on_policy:OnPolicy.update"],
    PUBLISHING: [
        "walle.agent.agent:Agent._next_snapshot",
        "walle.agent.agent:Agent._publish",
    ],
    TRACKERS: ["walle.agent.episode_tracker:EpisodeTracker.add"],
    ROWS: ["walle.agent.csv_file:CsvFile.append"],
    LOGGING: ["walle.agent.recorder:Recorder.iteration"],
}
ROUND = "walle.agent.agent:Agent._iterate"


class Sections:
    """The timer of the present training, and the rounds that it has measured."""

    def __init__(self) -> None:
        """Starts without rounds."""
        self.timer = Timer((*PLACES, REST))
        self.rounds: list[dict[str, float]] = []

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
            found = function(*args, **kwargs)
            self.rounds.append(self.timer.take())
            return found

        return run


def main() -> int:
    """Answers until the input ends."""
    sections = Sections()
    for section, places in PLACES.items():
        for place in places:
            _replace(place, functools.partial(sections.timed, section))
    _replace(ROUND, sections.each_round)
    for line in sys.stdin:
        asked = json.loads(line)
        sections.rounds.clear()
        with tempfile.TemporaryDirectory() as directory:
            train(compose(asked["overrides"]), directory)
        print(json.dumps({"rounds": sections.rounds[asked["warmup"] :]}), flush=True)
    return 0


def _replace(place: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts `wrapped(method)` in the place of the method `module:Class.method`."""
    module, _, path = place.partition(":")
    owner, _, name = path.partition(".")
    found = getattr(import_module(module), owner)
    setattr(found, name, wrapped(getattr(found, name)))


if __name__ == "__main__":
    sys.exit(main())
