from __future__ import annotations

import json
from pathlib import Path

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis import compare, iteration_time, lag, returns, speedup, time_percentage
from walle.analysis.runs import load
from walle.analysis.writing import sentences


def test_a_sentence_ends_once() -> None:
    assert [sentences.ended(text) for text in ("a", "a.", "a?")] == ["a.", "a.", "a?"]


def test_the_label_of_a_line_stands_before_a_sentence() -> None:
    assert sentences.of_line("", "It is so.") == "It is so."
    assert sentences.of_line("Hopper-v5", "It is so.") == "Hopper-v5: It is so."
    assert sentences.for_line("a2c", "It is so.") == "For a2c: It is so."
    assert sentences.for_line("", "it is so.") == "It is so."


def test_the_warm_up_in_words() -> None:
    assert sentences.warmup_sentence(0) == "No warm-up: every iteration counts."
    assert "the first 3 iterations of each run" in sentences.warmup_sentence(3)


def test_the_machine_is_told(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=3)])
    note = "The cores were unequal before the first job: core 1 took up to 30% longer."
    (root / "manifest.json").write_text(json.dumps({"launches": [{"machine": {"notes": [note]}}]}))
    assert sentences.machine(load(root)) == [note]


def test_every_sentence_begins_with_a_capital_letter_and_ends(tmp_path: Path) -> None:
    """Of all scripts, over two algorithms whose names begin with a small letter."""
    jobs = [
        Job(n=n, seed=seed, env=env, algo=algo, iterations=5, max_lag=lag)
        for env in ("A-v0", "CartPole-v1")
        for algo, lag in (("a2c", 0), ("ppo", 1))
        for n in (1, 2)
        for seed in (0, 1)
    ]
    sweep = load(write_sweep(tmp_path / "s", jobs))
    studies = [
        script.study(sweep)
        for script in (speedup, iteration_time, time_percentage, returns, lag, compare)
    ]
    texts = [
        text for study in studies for text in (*study.sentences, *study.notes)
    ] + sentences.account(sweep)
    assert len(texts) > 30
    assert [t for t in texts if not (t[0].isupper() or t[0].isdigit()) or t[-1] != "."] == []
