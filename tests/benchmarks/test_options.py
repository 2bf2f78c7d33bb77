import argparse
import os

import pytest

from benchmarks.options import chosen, core_count, duration, positive


@pytest.mark.parametrize(
    ("kind", "text", "value"), [(positive, "3", 3), (duration, "0.5", 0.5), (core_count, "1", 1)]
)
def test_what_can_be_measured_is_taken(kind, text, value):
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (positive, "0", "0 must be 1 at least"),
        (duration, "0", "0.0 must be above 0"),
        (duration, "nan", "nan must be above 0"),
        (core_count, "0", "0 must be 1 at least"),
        (core_count, str(len(os.sched_getaffinity(0)) + 1), "usable cores"),
    ],
)
def test_what_cannot_be_measured_is_refused(kind, text, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        kind(text)


def test_names_are_chosen_by_their_beginnings():
    names = ["walle", "walle-cold", "sb3"]
    assert chosen(names, None) == names
    assert chosen(names, ["walle"]) == ["walle", "walle-cold"]
    with pytest.raises(SystemExit, match=r"--only nobody: .* there are walle, walle-cold, sb3"):
        chosen(names, ["sb3", "nobody"])
