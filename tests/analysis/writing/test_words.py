from __future__ import annotations

from walle.analysis.writing import words


def test_a_sentence_ends_once() -> None:
    assert [words.ended(text) for text in ("a", "a.", "a?")] == ["a.", "a.", "a?"]


def test_the_label_of_a_line_stands_before_a_sentence() -> None:
    assert words.of_line("", "It is so.") == "It is so."
    assert words.of_line("Hopper-v5", "It is so.") == "Hopper-v5: It is so."


def test_the_warm_up_in_words() -> None:
    assert words.warmup_sentence(0) == "No warm-up: every iteration counts."
    assert "the first 3 iterations of each run" in words.warmup_sentence(3)
