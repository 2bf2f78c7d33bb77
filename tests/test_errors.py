import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from walle.errors import (
    ConfigError,
    cause_text,
    check_bounds,
    directory_fault,
    nearest,
    not_negative,
    one_of,
    positive,
    within,
)


@dataclass(kw_only=True)
class Settings:
    free: float = 0.0
    size: int | None = positive()
    widths: list[int] = positive()
    start: int = not_negative()
    share: float = within("(0, 1]", example=0.5)
    part: float = within("[0, 1)", example=0.5)
    kind: str = one_of("linear", "constant")


GOOD = {"size": 1, "widths": [1, 2], "start": 0, "share": 1.0, "part": 0.0, "kind": "linear"}


def test_values_at_their_bounds_pass():
    check_bounds(Settings(**GOOD), "algo")
    check_bounds(Settings(**{**GOOD, "size": None}), "algo")  # None switches a setting off


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("size", 0, "algo.size=0 must be positive"),
        ("widths", [4, 0], r"algo.widths=\[4, 0\] must be positive"),
        ("size", 2**63, "algo.size=9223372036854775808 is too large; use whole numbers below 2"),
        ("widths", [4, 2**63], r"algo.widths=\[4, 9223372036854775808\] is too large"),
        ("start", -1, "algo.start=-1 must not be negative"),
        ("share", 0.0, r"algo.share=0.0 must lie in \(0, 1\], as in 0.5"),
        ("share", 1.1, r"algo.share=1.1 must lie in \(0, 1\]"),
        ("part", 1.0, r"algo.part=1.0 must lie in \[0, 1\)"),
        ("part", -0.1, r"algo.part=-0.1 must lie in \[0, 1\)"),
        ("kind", "liner", "algo.kind='liner' is unknown; did you mean 'linear'"),
    ],
)
def test_values_beyond_are_refused_with_value_and_cure(name, value, message):
    with pytest.raises(ConfigError, match=message):
        check_bounds(Settings(**{**GOOD, name: value}), "algo")


def test_a_key_of_the_top_level_has_no_group():
    with pytest.raises(ConfigError, match=r"^size=-3 must"):
        check_bounds(Settings(**{**GOOD, "size": -3}), "")


def test_capital_letters_are_no_other_name():
    assert nearest("PPO", ["a2c", "ppo", "sac"]) == "did you mean 'ppo'?"


def test_the_nearest_name_or_all_of_them():
    assert nearest("sampler.m", ["sampler.n", "sampler.lanes"]) == "did you mean 'sampler.n'?"
    assert nearest("zzz", ["b", "a"]) == "choose one of: a, b"


TRACEBACK = """WorkerError: sampler-1 failed:
Traceback (most recent call last):
  File "inner.py", line 3, in step
    int("x")
    ~~~^^^^^
ValueError: invalid literal

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "walle.py", line 1, in step
    return self.env.step(action)
           ^^^^^^^^^^^^^^^^^^^^^
  File "robot.py", line 6, in step
    raise ValueError("the robot fell apart")
ValueError: the robot fell apart
   - in two pieces
raised by B-v0 in lane 32
"""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("", ""),
        ("ValueError: one line", "ValueError: one line"),
        ("WorkerError: first line\nsecond line", "WorkerError: first line"),
        (
            "WorkerError: s failed:\nno reward\nraised by B in lane 3",
            "WorkerError: s failed: no reward",
        ),
        (TRACEBACK, "WorkerError: sampler-1 failed: ValueError: the robot fell apart"),
        (
            'S: failed:\nTraceback:\n  File "a.py", line 6, in step\n    assert x\n'
            + "AssertionError",
            "S: failed: AssertionError: assert x",
        ),
        ('S: failed:\nTraceback:\n  File "a.py", line 6\nKeyError', "S: failed: KeyError"),
        ('E: cut\nTraceback:\n  File "cut.py", line 6', "E: cut"),
    ],
)
def test_a_cause_is_one_line(error, cause):
    assert cause_text(error) == cause


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("runs/#1/größe ..", None),
        ("runs/" + 255 * "x", None),
        ("runs/" + 128 * "ö", r"the name ö{20}\.\.\. has 256 bytes, more than 255; shorten it"),
        (1000 * "abcd/", r"the path \S{20}\.\.\. has 4999 bytes, more than 3967; shorten it"),
        ("runs/a\nb", r"the name 'a\\nb' has characters that cannot be printed; leave them out"),
        (
            "runs/\udcff",
            r"the name '\\udcff' has characters that cannot be printed; leave them out",
        ),
    ],
)
def test_names_that_no_directory_can_have(path, fault):
    found = directory_fault(Path(path))
    assert (found is None) if fault is None else re.fullmatch(fault, found)
