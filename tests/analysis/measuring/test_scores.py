from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from tests.analysis.synthetic import Job, keep_rows, write_sweep
from walle.analysis.measuring.scores import (
    ANY,
    evaluated,
    final_returns,
    final_scores,
    possible_returns,
    possible_values,
)
from walle.analysis.measuring.stats import Interval
from walle.analysis.runs import Run, Scalar, load


def test_final_returns_are_the_last_tenth(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(iterations=30)]))
    values = sweep.iterations["return_mean"].dropna().to_numpy()
    np.testing.assert_array_equal(final_returns(sweep.iterations)["0"], values[-3:])


def test_scores_from_evaluations_are_the_last_ones(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(seed=seed) for seed in (0, 1)]))
    assert evaluated(sweep, {"0", "1"})
    found = final_scores(sweep, {"0", "1"}, evaluations=True)
    rows = sweep.evaluations[sweep.evaluations["run"] == "1"]
    assert found.of["1"] == rows["return_mean"].iloc[-1]
    assert "10 episodes" in found.source
    assert found.cut is None
    (tmp_path / "s" / "1" / "eval.csv").unlink()
    assert not evaluated(load(tmp_path / "s"), {"0", "1"})


def test_the_last_tenth_is_of_steps_for_many_and_few_evaluations(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=seed, iterations=40) for seed in (0, 1)])
    frame = pd.read_csv(root / "0" / "iterations.csv")
    every = frame[["env_steps", "wall_s"]].assign(episodes=2, return_mean=frame["iteration"])
    every.iloc[1::2].to_csv(root / "0" / "eval.csv", index=False)
    every.iloc[[9, 34]].to_csv(root / "1" / "eval.csv", index=False)  # none in the last tenth
    found = final_scores(load(root), {"0", "1"}, evaluations=True)
    assert found.of == {"0": 39.0, "1": 35.0}  # of rows 38 and 40 after 36; the last one
    assert found.counts == {"0": 2, "1": 1}
    assert "at least one (1 to 2 evaluations a run, each of 2 episodes without" in found.source


def test_a_longer_run_is_read_where_the_shorter_one_ends(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=seed, iterations=40) for seed in (0, 1)])
    keep_rows(root / "1", 20)
    sweep = load(root)
    found = final_scores(sweep, {"0", "1"}, evaluations=False)
    assert found.cut == 20 * 2048
    values = sweep.iterations[sweep.iterations["run"] == "0"]["return_mean"].to_numpy(float)
    assert found.of["0"] == np.mean(values[18:20])


def run(**config: Scalar) -> Run:
    named = {key.replace("__", "."): value for key, value in config.items()}
    return Run(Path("0"), "0", {"env.id": "CartPole-v1", **named}, {}, {})


def test_returns_of_known_tasks_have_ends() -> None:
    assert possible_returns([run()]) == (0, 500)
    assert possible_returns([replace(run(), config={"env.id": "Pendulum-v1"})])[1] == 0
    unknown = replace(run(), config={"env.id": "Ant-v5"})
    assert possible_returns([run(), unknown]) == ANY
    assert possible_returns([]) == ANY
    assert possible_values("return_round_mean", [run()]) == (0, 500)
    assert possible_values("return_round_std", [run()]) == (0, math.inf)


def test_a_task_with_settings_of_its_own_is_not_the_table_s() -> None:
    assert possible_returns([run(env__kwargs__gravity=1)]) == ANY
    assert possible_returns([run(env__episode_limit=1000)]) == ANY
    assert possible_returns([run(env__episode_limit="null")]) == (0, 500)


def test_an_interval_ends_where_values_are_impossible() -> None:
    assert Interval(243.5, -241.4, 728.4).within(0, 500) == (243.5, 0, 500)
    assert Interval(600, 500, 700).within(0, 500) == (600, 500, 600)  # the estimate stays inside
    assert math.isnan(Interval(3).within(0, 1).low)
    assert possible_values("collect_share")[0] == 0
