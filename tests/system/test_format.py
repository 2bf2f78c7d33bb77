from __future__ import annotations

import pytest

from walle.system.format import duration_text, ranges_text, table


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


def test_a_table_is_wrapped_to_the_terminal(monkeypatch):
    lines = {"a": "one two three four five six", "long": "one"}
    monkeypatch.setenv("COLUMNS", "30")
    assert table(lines).splitlines() == [
        "  a     one two three four",
        "        five six",
        "  long  one",
    ]
    monkeypatch.setenv("COLUMNS", "0")  # not a terminal
    assert table({"a": "one " * 60}).count("\n") == 0
