from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis.measuring.cells import measure
from walle.analysis.measuring.speedups import first_reached, speedups
from walle.analysis.runs import load


def test_time_to_return_is_the_first_time(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=0), Job(n=2)])
    sweep = load(root)
    rows = sweep.iterations[sweep.iterations["run"] == "0"]
    by_hand = rows.loc[rows["return_mean"] >= 3000, "wall_s"].iloc[0]
    assert first_reached(sweep.iterations, 3000)["0"].tolist() == [by_hand]


def test_the_base_is_one_without_doubt(speedup_sweep: Path) -> None:
    sweep = load(speedup_sweep)
    values = {run.name: np.array([1.0 + run.config["seed"]]) for run in sweep.runs}
    points = speedups(measure(sweep, values, "sampler.n"))
    assert points[0].speedup == (1.0, 1.0, 1.0)
    assert points[1].speedup.value == 1
    assert points[1].speedup.low < 1 / 3
    assert points[1].speedup.high > 3
