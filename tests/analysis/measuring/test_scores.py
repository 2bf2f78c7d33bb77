from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, keep_rows, set_columns, write_sweep
from walle.analysis.measuring.scores import (
    ANY,
    TRAINING,
    at_end,
    experience,
    final_scores,
    possible_returns,
    possible_values,
    starts,
    training,
    with_training,
)
from walle.analysis.measuring.stats import Interval
from walle.analysis.runs import BadInputError, Run, Scalar, load


def test_a_window_covers_the_same_steps_with_any_number_of_lanes(run: Any) -> None:
    """A return of CartPole is a number of steps; the last 100 episodes are other ones."""
    roots = [
        run("env=cartpole", "sampler=serial", f"sampler.lanes={lanes}", "total_steps=1536")[1]
        for lanes in (4, 16)
    ]
    sweep = load(*roots)
    names = {run.name for run in sweep.runs}
    found, known = training(sweep, names), experience(sweep)
    start, stop = map(int, re.findall(r"\d+", found.source.replace(",", "")))
    assert stop - start == pytest.approx(153.6, abs=1)
    assert stop == min(x.end for x in known.values())
    for name in names:
        steps, episodes, returns, _ = known[name]
        window = [stop - 150, stop]
        assert np.diff(np.interp(window, steps, returns)) == pytest.approx(150)
        mean = 150 / np.diff(np.interp(window, steps, episodes))[0]
        assert known[name].mean(*window) == pytest.approx(mean)
    assert set(found.of) == names


def test_lanes_that_end_together_are_read_where_all_runs_have_finished(tmp_path: Path) -> None:
    """HalfCheetah with 64 and 256 lanes: the runs' last episodes end after 960,000 and 768,000."""
    root = write_sweep(tmp_path / "s", [Job(seed=n, batch_size=33_333) for n in (0, 1)])
    for name, lanes in (("0", 64), ("1", 256)):
        ends = [k * 1000 * lanes for k in range(1, 1000 // lanes + 1) for _ in range(lanes)]
        rows = {"env_steps": ends, "lane": [*range(lanes)] * (1000 // lanes), "return": ends}
        pd.DataFrame(rows).to_csv(root / name / "episodes.csv", index=False)
    found = training(load(root), {"0", "1"})
    assert found.source == "mean return in training from 668,001 to 768,000 steps"
    by_hand = (704_000 * (704_000 - 668_001) + 768_000 * 64_000) / 99_999
    assert found.of == pytest.approx({"0": by_hand, "1": 768_000})
    curve = with_training(load(root), load(root).iterations).groupby("run", observed=True)
    assert curve[TRAINING].count().tolist() == [28, 23]  # 33,333 steps each, up to these ends
    assert starts(load(root)) == pytest.approx({"0": 64_000, "1": 256_000})


def test_two_rollouts_of_a_lane_in_a_round_keep_every_episode(tmp_path: Path) -> None:
    """Free-running, a later row of a lane may have fewer steps, or as many."""
    root = write_sweep(tmp_path / "s", [Job(batch_size=200)])
    ends, lane = [1000, 2200, 2010, 2010, 3000, 4000, 4000], [0, 0, 0, 1, 0, 0, 1]
    rows = {"env_steps": ends, "lane": lane, "return": [10.0, 10, 95, 10, 10, 10, 10]}
    pd.DataFrame(rows).to_csv(root / "0" / "episodes.csv", index=False)
    known = experience(load(root))["0"]
    assert known.mean(0.0, 4000.0) == pytest.approx((6 * 10 + 95) / 7)
    windows = known.mean(np.arange(0, 4000, 100.0), np.arange(100, 4001, 100.0))
    assert ((windows > 9.999) & (windows < 95.001)).all()


def test_scores_from_evaluations_are_those_at_the_end(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=seed) for seed in (0, 1)])
    sweep = load(root)
    found = at_end(sweep, {"0", "1"})
    rows = sweep.evaluations[sweep.evaluations["run"] == "1"]
    assert found is not None
    assert found.of["1"] == rows["return_mean"].iloc[-1]
    assert found.source == "evaluation without noise after 61,440 steps"
    tasks = {"task": {"0", "1"}}
    assert final_scores(sweep, tasks)["task"] == found
    assert "in training" in final_scores(sweep, tasks, evaluations=False)["task"].source


def test_without_an_evaluation_at_every_end_training_counts(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=seed) for seed in (0, 1)])
    set_columns(root / "1", "eval", env_steps=[20_480, 40_960, 58_000])
    assert at_end(load(root), {"0", "1"}) is None  # more than 5% before the other end
    with pytest.raises(BadInputError, match="evaluations of runs are after different steps"):
        final_scores(load(root), {"": {"0", "1"}}, evaluations=True)
    (root / "1" / "eval.csv").unlink()
    sweep = load(root)
    assert "in training" in final_scores(sweep, {"": {"0", "1"}})[""].source
    with pytest.raises(BadInputError, match="1 run without an evaluation"):
        final_scores(sweep, {"": {"0", "1"}}, evaluations=True)


def test_a_longer_run_is_read_where_the_shorter_one_ends(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=seed, iterations=40) for seed in (0, 1)])
    keep_rows(root / "1", 20)
    sweep = load(root)
    found = training(sweep, {"0", "1"})
    assert found.source == "mean return in training from 32,768 to 40,960 steps"
    values = sweep.episodes[sweep.episodes["run"] == "0"]["return"].to_numpy(float)
    assert found.of["0"] == pytest.approx(values[32:40].mean())  # two episodes a round


def configured(**config: Scalar) -> Run:
    named = {key.replace("__", "."): value for key, value in config.items()}
    return Run(Path("0"), "0", {"env.id": "CartPole-v1", **named}, {}, {})


def test_returns_of_known_tasks_have_ends() -> None:
    assert possible_returns([configured()]) == (0, 500)
    assert possible_returns([replace(configured(), config={"env.id": "Pendulum-v1"})])[1] == 0
    unknown = replace(configured(), config={"env.id": "Ant-v5"})
    assert possible_returns([configured(), unknown]) == ANY
    assert possible_returns([]) == ANY
    assert possible_values("return_round_mean", [configured()]) == (0, 500)
    assert possible_values("return_round_std", [configured()]) == (0, math.inf)


def test_a_task_with_settings_of_its_own_is_not_the_table_s() -> None:
    assert possible_returns([configured(env__kwargs__gravity=1)]) == ANY
    assert possible_returns([configured(env__episode_limit=1000)]) == ANY
    assert possible_returns([configured(env__wrappers='["TimeAwareObservation"]')]) == ANY
    assert possible_returns([configured(env__episode_limit="null", env__wrappers="[]")]) == (0, 500)


def test_an_interval_ends_where_values_are_impossible() -> None:
    assert Interval(243.5, -241.4, 728.4).within(0, 500) == (243.5, 0, 500)
    assert Interval(600, 500, 700).within(0, 500) == (600, 500, 600)  # the estimate stays inside
    assert math.isnan(Interval(3).within(0, 1).low)
    assert possible_values("collect_share")[0] == 0
