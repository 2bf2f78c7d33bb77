"""Costs read from the files of runs: the plan of the measured setup is what was measured."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis.loading.directories import BadInputError
from walle.analysis.planning.measured import NONE, ROUND, TRACE, read, seconds
from walle.analysis.planning.simulation import predict
from walle.analysis.runs import load

QUIET = {"noise": 0.0, "serial": 0.0, "iterations": 8}


def measured(tmp_path, *jobs, env_cpu_s=None):
    return read(load(write_sweep(tmp_path / "s", list(jobs))), 1, env_cpu_s)


def test_the_measured_setup_is_planned_as_it_was(tmp_path):
    found = measured(tmp_path, Job(**QUIET))
    assert (found.setup.samplers, found.setup.max_lag, found.setup.cores) == (1, 0, 8)
    assert (found.steps, found.lanes, found.spread_from) == (32, 64, NONE)
    costs = found.costs()
    assert costs.learn_s == pytest.approx(0.5)
    planned = predict(costs, found.setup)
    assert planned.iteration_s == pytest.approx(2.0 * 0.95 + 0.5 + 0.02, rel=0.04)  # samplers' own


def test_a_sampler_with_fewer_lanes_has_less_to_record(tmp_path):
    """Of what 64 lanes cost one sampler, 60 / 124 are the rollout's and 1 / 124 each lane's."""
    found = measured(tmp_path, Job(**QUIET))
    found = replace(found, rollout_s=np.full(6, 1.24), send_s=np.full(6, 0.64))
    costs = found.costs()
    assert costs.rollout_s == pytest.approx(0.60)
    assert costs.send_lane_s == pytest.approx(0.01 + 0.01)


def test_the_simplest_runs_are_read(tmp_path):
    jobs = [
        Job(n=n, seed=s, max_lag=lag, **QUIET) for n in (1, 4) for s in (0, 1) for lag in (0, 1)
    ]
    found = measured(tmp_path, *jobs)
    assert (found.setup.samplers, found.setup.max_lag, found.names) == (1, 0, ("0", "2"))
    assert len(found.learn_s) == 2 * (8 - 2)  # without the warm-up and the round it reaches into


def test_an_overlapped_run_will_do(tmp_path):
    found = measured(tmp_path, Job(n=2, max_lag=1, **QUIET))
    planned = predict(found.costs(), replace(found.setup, max_lag=0))
    assert planned.iteration_s == pytest.approx(1.0 + 0.5, rel=0.1)


def test_what_a_step_does_not_need_a_core_for_is_waiting(tmp_path):
    found = measured(tmp_path, Job(**QUIET), env_cpu_s=1e-5)
    costs = found.costs()
    assert costs.env_cpu_s == 1e-5
    call_s = float(found.env_s.mean()) / 32
    assert 64 * (costs.env_cpu_s + costs.env_wait_s) == pytest.approx(call_s)


def test_the_spread_of_several_samplers(tmp_path):
    job = Job(n=4, **QUIET)
    root = write_sweep(tmp_path / "s", [job])
    timing = pd.read_csv(root / "0" / "timing.csv")
    mine = timing["process"].str.startswith("sampler")
    rng = np.random.default_rng(0)
    values = timing["env_step_s"].where(~mine, 0.3 + 0.02 * rng.standard_normal(len(timing)))
    flat = {name: timing[name].where(~mine, 0.01) for name in ("act_s", "send_s", "other_s")}
    set_columns(root / "0", "timing", env_step_s=values, **flat)
    found = read(load(root), 1, None)
    assert found.spread_from == ROUND
    assert found.costs().deviation_s(4) == pytest.approx(0.02, rel=0.35)  # of 24 values


def test_the_spread_of_a_trace(tmp_path):
    root = write_sweep(tmp_path / "s", [Job(**QUIET)])
    rng = np.random.default_rng(0)
    took = 0.64 + 0.08 * rng.standard_normal(2000)  # 64 lanes, each with a deviation of 0.01
    spans = pd.DataFrame(
        {"process": "sampler-0", "section": "env_step", "start_s": 1.0, "end_s": 1.0 + took}
    )
    spans.to_csv(root / "0" / "trace.csv", index=False)
    found = read(load(root), 1, None)
    assert found.spread_from == TRACE
    assert found.costs().env_var == pytest.approx(0.01**2, rel=0.1)
    drawn = [found.costs(np.random.default_rng(k)).env_var for k in range(20)]
    assert np.std(drawn) == pytest.approx(0.01**2 * np.sqrt(2 / 2000), rel=0.5)


def test_an_evaluation_does_not_count(tmp_path):
    root = write_sweep(tmp_path / "s", [Job(**QUIET)])
    timing = pd.read_csv(root / "0" / "timing.csv")
    last = (timing["process"] == "agent") & (timing["iteration"] == 8)
    set_columns(root / "0", "timing", evaluate_s=timing["evaluate_s"].mask(last, 9.0))
    rows = pd.read_csv(root / "0" / "iterations.csv")
    late = rows["iteration"] == 8
    wide = {name: rows[name].mask(late, rows[name] + 9) for name in ("iteration_s", "other_s")}
    set_columns(root / "0", **wide)
    (setup, step_s), *_ = seconds(load(root), 1)
    assert setup.samplers == 1
    assert 2048 * step_s == pytest.approx(2.52, abs=1e-6)
    assert read(load(root), 1, None).costs().serial_s == pytest.approx(0.02, abs=1e-3)


def test_runs_of_several_tasks_are_refused(tmp_path):
    with pytest.raises(BadInputError, match=r"differ in env.id, env.max_steps: name the directory"):
        measured(tmp_path, Job(**QUIET), Job(env="Hopper-v5", **QUIET))


def test_a_run_on_several_machines_is_refused(tmp_path):
    root = write_sweep(tmp_path / "s", [Job(**QUIET)])
    about = (root / "0" / "run.json").read_text()
    (root / "0" / "run.json").write_text(
        about.replace('"name": "process", "n": 1', '"name": "ray", "n": null')
    )
    with pytest.raises(
        BadInputError, match="from a run on one machine, and this one has sampler=ray"
    ):
        read(load(root), 1, None)


def test_a_run_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="--warmup 1 leaves no iteration"):
        measured(tmp_path, Job(**QUIET | {"iterations": 1}))


def test_runs_of_several_directories_make_one_plan(tmp_path):
    roots = [write_sweep(tmp_path / f"{n}", [Job(n=n, **QUIET)]) for n in (1, 4)]
    assert read(load(*roots), 1, None).setup.samplers == 1
