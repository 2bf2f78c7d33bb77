from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis.loading.directories import BadInputError
from walle.analysis.measuring import cells
from walle.analysis.runs import load


def test_the_sample_is_a_mean_a_run_or_the_iterations_of_a_single_run(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(), Job(n=2), Job(n=2, seed=1)]))
    per_run = {"0": np.array([1.0, 3.0]), "1": np.array([4.0, 6.0]), "2": np.array([9.0])}
    one, two = cells.measure(sweep, per_run, "sampler.n")
    assert (one.values.tolist(), two.values.tolist()) == ([1, 3], [5, 9])
    assert (one.repeats, two.repeats) == ("1 seed", "2 seeds")
    assert two.interval().value == two.mean == 7
    assert two.rate().value == 1 / 7
    assert cells.repeats_label([one, two]) == "1 to 2 seeds"
    (said,) = cells.single_run_note([one, two])
    assert "(1 point)" in said
    assert cells.single_run_note([two]) == []


def test_runs_without_values_are_left_out(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(), Job(n=2)]))
    (only,) = cells.measure(sweep, {"1": np.ones(3)}, "sampler.n")
    assert (only.by, only.names) == (2, ("1",))


def test_repeated_seeds_are_runs() -> None:
    assert cells.repeats_text(3, 3) == "3 seeds"
    assert cells.repeats_text(3, 2) == "3 runs"


def test_the_warm_up_is_of_every_run_and_process() -> None:
    frame = pd.DataFrame(
        {"run": ["a", "a", "a", "a"], "process": ["x", "y", "x", "y"], "iteration": [1, 1, 2, 2]}
    )
    assert cells.after_warmup(frame, 1)["iteration"].tolist() == [2, 2]
    assert cells.after_warmup(frame.drop(columns="process"), 1)["iteration"].tolist() == [1, 2, 2]
    assert cells.after_warmup(frame, 0) is frame


def test_workers_are_counted_from_one(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(max_lag=0), Job(max_lag=1)]))
    with pytest.raises(BadInputError, match=r"numbers above 0, sampler.max_lag is 0"):
        cells.numeric_axis(sweep, "max_lag")
    assert cells.numeric_axis(sweep, "sampler.n") == "sampler.n"


def test_the_label_of_a_line_stands_before_a_sentence() -> None:
    assert cells.of_line("", "It is so.") == "It is so."
    assert cells.of_line("Hopper-v5", "It is so.") == "Hopper-v5: It is so."
