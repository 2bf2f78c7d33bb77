"""The flags of `walle plan`."""

from __future__ import annotations

import argparse
from typing import Any

SAMPLERS = tuple(2**k for k in range(11))
LAGS = (0, 1, None)
MOST_SAMPLERS = 1_000_000  # a plan for so many takes a minute, and 600 MB


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _samplers(text: str) -> int:
    if (value := _number(text)) > MOST_SAMPLERS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MOST_SAMPLERS}, the most here")
    return value


def _lag(text: str) -> int | None:
    if text == "null":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor null")
    return int(text)


FLAGS: dict[str, Any] = {
    "--by": {"help": argparse.SUPPRESS},
    "--samplers": {
        "type": _samplers,
        "nargs": "+",
        "default": SAMPLERS,
        "metavar": "N",
        "help": "numbers of samplers (default: 1 2 4 ... 1024)",
    },
    "--lag": {
        "type": _lag,
        "nargs": "+",
        "default": LAGS,
        "metavar": "K",
        "help": "values of sampler.max_lag; null: free-running (default: 0 1 null)",
    },
    "--learners": {"type": _number, "metavar": "L", "help": "learners (default: the run's)"},
    "--machines": {"type": _number, "default": 1, "metavar": "M", "help": "(default: 1)"},
    "--cores": {
        "type": _number,
        "metavar": "C",
        "help": "cores of each machine (default: those of the run)",
    },
    "--bandwidth": {
        "type": _positive,
        "default": 10.0,
        "metavar": "GBIT",
        "help": "of the agent's link, in Gbit/s (default: 10)",
    },
    "--latency": {
        "type": _positive,
        "default": 0.5,
        "metavar": "MS",
        "help": "of a message between machines, one way (default: 0.5)",
    },
    "--exchange": {
        "type": _positive,
        "default": 10.0,
        "metavar": "MS",
        "help": "of the software that carries a round between machines (default: 10)",
    },
    "--step-bytes": {
        "type": _positive,
        "default": 200.0,
        "metavar": "B",
        "help": "bytes of experience of an environment step (default: 200, as of HalfCheetah)",
    },
    "--env-cpu": {
        "type": _positive,
        "metavar": "MS",
        "help": "milliseconds of a core that a step of the environment needs; what it takes beyond "
        "them is waiting (default: all that it takes)",
    },
}
