"""Rounds by hand, costs read from files, and the model beside measured rounds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis.measuring import round_model
from walle.analysis.measuring.round_model import (
    NONE,
    ROUND,
    SAMPLER_S,
    TRACE,
    Costs,
    Setup,
    predict,
    read_costs,
    read_rounds,
)
from walle.analysis.runs import BadInputError, load

MEASURED = Path(__file__).parents[3] / "benchmarks" / "measured"
QUIET = {"noise": 0.0, "serial": 0.0, "iterations": 8}


def same(value: float) -> np.ndarray:
    return np.full(1 + round_model.DRAWS, value)


def costs(setup: Setup, **changes: object) -> Costs:
    """8 s of steps, 2 s of learning of which three quarters are divided, 0.1 s of the agent."""
    seconds = {"act_s": 0.0, "env_s": 8.0, "other_s": 0.0, "send_s": 0.0, "learn_s": 2.0}
    seconds |= {"agent_s": 0.1, "after_s": 0.0, "divisible": 0.75}
    arrays = {name: same(value) for name, value in seconds.items()}
    return Costs(setup, 10, shards=4, **arrays | changes)  # type: ignore[arg-type]


ALONE = Setup(steps=100, lanes=64)
LANE_S = 8.0 / (1.9 + 64)  # a call of the environment costs as much as 1.9 lanes


def test_the_fixed_costs_of_calls_were_measured() -> None:
    times = json.loads((MEASURED / "lanes.json").read_text())["tasks"]["HalfCheetah"]
    lanes = np.array([int(count) for count in times])
    for parts, call_lanes in (
        (("act",), round_model.ACT_CALL_LANES),
        (("env", "physics"), round_model.ENV_CALL_LANES),
    ):
        step = np.array([sum(cost[part] for part in parts) for cost in times.values()])
        terms = np.stack((1 / lanes, np.ones(len(lanes))), 1) / step[:, None]
        call, lane = np.linalg.lstsq(terms, np.ones(len(lanes)), rcond=None)[0]
        assert call / lane == pytest.approx(call_lanes, rel=0.03)


def test_processes_that_take_turns() -> None:
    found = predict(costs(ALONE), replace(ALONE, samplers=4, learners=2))
    collect_s, learn_s = LANE_S * (1.9 + 16), 2.0 * (0.25 + 0.75 / 2)
    assert (found.collect_s, found.learn_s) == pytest.approx((collect_s, learn_s))
    assert found.round_s[0] == pytest.approx(collect_s + learn_s + 0.1 + 4 * SAMPLER_S)


def test_an_overlap_takes_the_longer_of_both() -> None:
    lag = replace(ALONE, max_lag=1)
    assert predict(costs(ALONE), lag).round_s[0] == pytest.approx(8.0)
    many = predict(costs(ALONE), replace(lag, samplers=64))
    assert many.round_s[0] == pytest.approx(2.1 + 64 * SAMPLER_S)
    free = predict(costs(ALONE), replace(lag, samplers=64, max_lag=None))
    assert free.round_s[0] == pytest.approx(many.round_s[0])


def test_more_samplers_than_cores_share_them() -> None:
    found = predict(costs(ALONE), replace(ALONE, samplers=8, cores=2))
    assert found.collect_s == pytest.approx(4 * LANE_S * (1.9 + 8))
    waiting = costs(ALONE, env_cpu_s=1e-6)  # all but 6.4 ms of a round is waiting
    found = predict(waiting, replace(ALONE, samplers=8, cores=2))
    assert found.collect_s == pytest.approx(1.0, rel=0.01)


def test_a_round_waits_for_its_slowest_sampler_less_with_a_lag() -> None:
    spread = costs(ALONE, step_deviation_s=0.01)  # of 1,600 steps of each of four samplers: 0.4 s
    late_s = predict(spread, replace(ALONE, samplers=4)).collect_s - LANE_S * (1.9 + 16)
    assert late_s == pytest.approx(1.03 * 0.4, rel=0.02)  # the expected maximum of four
    lag = predict(spread, replace(ALONE, samplers=4, max_lag=1)).collect_s - LANE_S * (1.9 + 16)
    assert lag == pytest.approx(late_s / 2)


@pytest.mark.parametrize(
    ("setup", "error"),
    [
        (replace(ALONE, cores=2), 0.0),  # what was measured
        (replace(ALONE, lanes=32, cores=16), round_model.ERROR),
        (replace(ALONE, samplers=2, cores=2), round_model.ERROR),
        (replace(ALONE, samplers=2, cores=2, max_lag=1), round_model.ERROR_SHARED),
        (replace(ALONE, samplers=2, cores=16), round_model.ERROR_MANY),
        (replace(ALONE, samplers=16, cores=16, max_lag=1), round_model.ERROR_MANY),
    ],
)
def test_the_error_is_that_of_comparisons_with_real_runs(setup: Setup, error: float) -> None:
    assert predict(costs(ALONE), setup).error == error


def test_learners_beyond_the_shards_have_nothing_to_do() -> None:
    four, many = (predict(costs(ALONE), replace(ALONE, learners=n)).learn_s for n in (4, 16))
    assert four == many == pytest.approx(2.0 * (0.25 + 0.75 / 4))


def test_more_samplers_than_lanes_have_a_lane_each() -> None:
    found = predict(costs(ALONE), replace(ALONE, samplers=128)).setup
    assert (found.steps, found.lanes) == (50, 128)


def test_other_machines_cost_a_message_and_its_answer() -> None:
    apart = replace(ALONE, samplers=4, machines=2, latency_s=1.0, exchange_s=0.5, step_bytes=0.0)
    near = replace(ALONE, samplers=4)
    more_s = predict(costs(ALONE), apart).round_s[0] - predict(costs(ALONE), near).round_s[0]
    assert more_s == pytest.approx(2.5, abs=1e-3)
    assert apart.dealt == (2, 2)
    assert replace(ALONE, samplers=7, machines=3).dealt == (3, 2, 2)


def test_cores_that_a_run_occupies() -> None:
    turns = predict(costs(ALONE), replace(ALONE, samplers=4, learners=2))
    assert turns.core_hours == pytest.approx(4 * turns.step_s * 1e6 / 3600)
    overlap = predict(costs(ALONE), replace(ALONE, samplers=4, learners=2, max_lag=1))
    assert overlap.core_hours == pytest.approx(6 * overlap.step_s * 1e6 / 3600)


def test_intervals_hold_the_spread_of_the_iterations_and_the_error_of_the_model() -> None:
    base = predict(costs(ALONE), ALONE)
    assert base.seconds() == pytest.approx((10.1 + SAMPLER_S,) * 3)  # it was measured
    two = predict(costs(ALONE), replace(ALONE, samplers=2))
    value, low, high = two.speedup(base)
    assert (low, high) == pytest.approx((value / 1.1, value * 1.1))
    lag = predict(costs(ALONE), replace(ALONE, max_lag=1)).seconds()
    assert (lag.low, lag.high) == pytest.approx((lag.value / 1.3, lag.value * 1.3))
    noisy = same(8.0) * np.exp(0.05 * np.random.default_rng(0).standard_normal(401))
    noisy[0] = 8.0
    wide = predict(costs(ALONE, env_s=noisy), ALONE).seconds()
    assert math.log(wide.high / wide.low) == pytest.approx(2 * 1.96 * 0.05 * 0.8, rel=0.2)


@pytest.mark.parametrize("file", ["serial", "serial_512_lanes", "serial_16_shards"])
def test_measured_rounds_lie_in_the_intervals_planned_from_one_of_each(file: str) -> None:
    """Two samplers, two learners, and both, on two cores (`benchmarks/serial.py`)."""
    found = json.loads((MEASURED / f"{file}.json").read_text())["rounds"]["20480"]
    sections = {name: each["seconds"] for name, each in found["sections"].items()}
    learning = ("values and gradients", "sums, norms, Adam", "learning, other", "normalisers")
    learn_s = sum(sections[name]["1 x 1"] for name in learning)
    work_s, whole = sections["samplers' work, mean"], sections["whole round"]
    one = Setup(steps=20480 // found["lanes"], lanes=found["lanes"], cores=2)
    alone = Costs(
        one,
        100,
        act_s=same(0.2 * work_s["1 x 1"]),
        env_s=same(0.8 * work_s["1 x 1"]),
        other_s=same(0.0),
        send_s=same(0.0),
        learn_s=same(learn_s),
        agent_s=same(whole["1 x 1"] - work_s["1 x 1"] - learn_s),
        after_s=same(0.0),
        divisible=np.append(0.885, np.random.default_rng(0).uniform(*round_model.DIVISIBLE, 400)),
        shards=found["shards"],
    )
    cells = []
    for samplers, learners in ((2, 1), (1, 2), (2, 2)):
        planned = predict(alone, replace(one, samplers=samplers, learners=learners)).seconds()
        took = whole[f"{samplers} x {learners}"]
        assert planned.low < took < planned.high
        percent = round(100 * (planned.value / took - 1), 1)
        cells.append(f"{percent:+.1f}%" if percent else "0.0%")
    page = (MEASURED.parents[1] / "docs" / "planning.md").read_text()
    setup = f"{found['lanes']} lanes, {found['shards']} shards"
    assert f"| {' | '.join([setup, *cells])} |" in page


def read(tmp_path: Path, *jobs: Job, env_cpu_s: float | None = None) -> Costs:
    return read_costs(load(write_sweep(tmp_path / "s", list(jobs))), 1, env_cpu_s)


def test_the_measured_setup_is_planned_as_it_was(tmp_path: Path) -> None:
    found = read(tmp_path, Job(**QUIET))  # type: ignore[arg-type]
    was = found.measured
    assert (was.samplers, was.max_lag, was.cores, was.steps, was.lanes) == (1, 0, 8, 32, 64)
    assert (found.learn_s[0], found.spread_from) == (pytest.approx(0.5), NONE)
    planned = predict(found, was).round_s[0]
    assert planned == pytest.approx(2.0 * 0.95 + 0.5 + 0.02, rel=0.04)  # samplers' own


def test_the_simplest_runs_are_read(tmp_path: Path) -> None:
    jobs = [
        Job(n=n, seed=s, max_lag=lag, **QUIET)  # type: ignore[arg-type]
        for n in (1, 4)
        for s in (0, 1)
        for lag in (0, 1)
    ]
    found = read(tmp_path, *jobs)
    assert (found.measured.samplers, found.measured.max_lag) == (1, 0)
    assert found.iterations == 2 * (8 - 2)  # without the warm-up and the round it reaches into


def test_an_overlapped_run_will_do(tmp_path: Path) -> None:
    found = read(tmp_path, Job(n=2, max_lag=1, **QUIET))  # type: ignore[arg-type]
    planned = predict(found, replace(found.measured, max_lag=0))
    assert planned.round_s[0] == pytest.approx(1.0 + 0.5, rel=0.1)


def test_the_share_that_learners_divide_is_read_from_a_sweep_over_them(tmp_path: Path) -> None:
    jobs = [Job(learners=n, shards=4, **QUIET) for n in (1, 2)]  # type: ignore[arg-type]
    assert read(tmp_path, *jobs).divisible == pytest.approx(1.0)
    low, high = round_model.DIVISIBLE
    unknown = read(tmp_path / "one", jobs[0]).divisible
    assert unknown[0] == pytest.approx((low + high) / 2)
    assert low <= unknown.min() < unknown.max() <= high


def test_the_spread_of_several_samplers_and_of_a_trace(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(n=4, **QUIET)])  # type: ignore[arg-type]
    timing = pd.read_csv(root / "0" / "timing.csv")
    mine = timing["process"].str.startswith("sampler")
    rng = np.random.default_rng(0)
    values = timing["env_step_s"].where(~mine, 0.3 + 0.02 * rng.standard_normal(len(timing)))
    flat = {name: timing[name].where(~mine, 0.01) for name in ("act_s", "send_s", "other_s")}
    set_columns(root / "0", "timing", env_step_s=values, **flat)
    found = read_costs(load(root), 1)
    assert found.spread_from == ROUND
    deviation = found.step_deviation_s * math.sqrt(32 * 16)
    assert deviation == pytest.approx(0.02, rel=0.35)  # of 24 values
    took = 0.16 + 0.04 * rng.standard_normal(2000)  # 16 lanes, each with a deviation of 0.01
    spans = pd.DataFrame(
        {"process": "sampler-0", "section": "env_step", "start_s": 1.0, "end_s": 1.0 + took}
    )
    spans.to_csv(root / "0" / "trace.csv", index=False)
    found = read_costs(load(root), 1)
    assert found.spread_from == TRACE
    assert found.step_deviation_s == pytest.approx(0.01, rel=0.05)


def test_an_evaluation_does_not_count(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(**QUIET)])  # type: ignore[arg-type]
    timing = pd.read_csv(root / "0" / "timing.csv")
    last = (timing["process"] == "agent") & (timing["iteration"] == 8)
    set_columns(root / "0", "timing", evaluate_s=timing["evaluate_s"].mask(last, 9.0))
    rows = pd.read_csv(root / "0" / "iterations.csv")
    late = rows["iteration"] == 8
    wide = {name: rows[name].mask(late, rows[name] + 9) for name in ("iteration_s", "other_s")}
    set_columns(root / "0", **wide)
    ((_, setup, found),) = read_rounds(load(root), 1)
    assert setup.samplers == 1
    assert found["round_s"].to_numpy() == pytest.approx(2.52, abs=1e-6)
    assert read_costs(load(root), 1).agent_s[0] == pytest.approx(0.02, abs=1e-3)


def test_what_cannot_be_planned_is_refused(tmp_path: Path) -> None:
    hopper = Job(env="Hopper-v5", **QUIET)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match=r"differ in env.id, env.max_steps: name the directory"):
        read(tmp_path / "tasks", Job(**QUIET), hopper)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="--warmup 1 leaves no iteration"):
        read(tmp_path / "short", Job(iterations=1))
    root = write_sweep(tmp_path / "ray", [Job()])
    about = (root / "0" / "run.json").read_text()
    (root / "0" / "run.json").write_text(about.replace('"name": "process"', '"name": "ray"'))
    with pytest.raises(BadInputError, match="on one machine, and this one has sampler=ray"):
        read_costs(load(root), 1)


def test_sixteen_cores_took_what_the_pages_say_and_at_most_the_stated_error_longer():
    rows = pd.read_csv(MEASURED / "sixteen_cores.csv")
    planned = rows.dropna(subset="planned_round_s")
    longer = planned["round_s"] / planned["planned_round_s"]
    assert longer.between(1 / (1 + round_model.ERROR_MANY), 1 + round_model.ERROR_MANY).all()
    page = (MEASURED.parents[1] / "docs" / "sixteen_cores.md").read_text()
    for (env, samplers), group in rows.groupby(["env", "sampler.n"]):
        seconds = group[["collect_s", "learn_s", "round_s"]].median()
        cells = " | ".join(f"{value:.2f}" for value in seconds)
        assert f"| {env} | {samplers} | {cells} |" in page
