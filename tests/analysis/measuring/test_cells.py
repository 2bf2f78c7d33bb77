from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis.measuring import cells
from walle.analysis.runs import load
from walle.analysis.writing import words


def test_the_sample_is_a_mean_a_run_or_the_iterations_of_a_single_run(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(), Job(n=2), Job(n=2, seed=1)]))
    per_run = {"0": np.array([1.0, 3.0]), "1": np.array([4.0, 6.0]), "2": np.array([9.0])}
    one, two = cells.measure(sweep, per_run, "sampler.n")
    assert (one.values.tolist(), two.values.tolist()) == ([1, 3], [5, 9])
    assert (one.repeats, two.repeats) == ("1 seed", "2 seeds")
    assert two.interval().value == two.mean == 7
    assert two.rate().value == 1 / 7
    assert words.repeats_label([one, two]) == "1 to 2 seeds"
    assert "(1 point)" in words.sample(1, [one, two])[1]
    assert words.sample(1, [two]) == [words.warmup_sentence(1)]


def test_runs_without_values_are_left_out(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(), Job(n=2)]))
    (only,) = cells.measure(sweep, {"1": np.ones(3)}, "sampler.n")
    assert (only.by, only.names) == (2, ("1",))


def test_repeated_seeds_are_runs() -> None:
    assert cells.repeats_text(3, 3) == "3 seeds"
    assert cells.repeats_text(3, 2) == "3 runs"
