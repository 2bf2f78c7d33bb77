from __future__ import annotations

import pytest

from walle.system.format import duration_text, list_text, ranges_text


@pytest.mark.parametrize(
    ("cores", "text"), [([5], "5"), ([0, 1, 2, 8], "0-2,8"), ([3, 1], "1,3"), ([], "")]
)
def test_ranges(cores, text):
    assert ranges_text(cores) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (4.25, "4.2 s"), (180, "3 min"), (9000, "2.5 h")]
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


def test_a_long_list_is_counted():
    assert list_text(["a", "b", "c"]) == "a; b; c"
    assert list_text(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"
