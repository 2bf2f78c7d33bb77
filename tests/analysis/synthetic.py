"""Writes sweeps in the format of real runs, with known speedups and returns."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from walle.analysis.measuring.groups import Cell

REPLACED = {  # an entry of `replacements` in status.json
    "sampler": "sampler-1",
    "round": 12,
    "when": "2026-01-02T03:04:06+00:00",
    "why": "was killed by <SIGKILL>",
}
SAMPLER_SECTIONS = ("act", "env_step", "send", "wait_policy", "wait_slot", "other")
AGENT_SECTIONS = (
    "wait_experience",
    "update",
    "publish",
    "evaluate",
    "checkpoint",
    "log",
    "compile",
    "other",
)


@dataclass(frozen=True)
class Job:
    """One synthetic run. Collection takes `collect_1_s * ((1 - serial) / n + serial)` seconds.

    Learning takes `learn_s` with one learner, and half with two.
    """

    n: int = 1
    learners: int = 1
    shards: int | None = None
    seed: int = 0
    iterations: int = 30
    env: str = "HalfCheetah-v5"
    algo: str = "ppo"
    max_lag: int | None = 0
    collect_1_s: float = 2.0
    serial: float = 0.05
    learn_s: float = 0.5
    noise: float = 0.02
    batch_size: int = 2048
    cores: int = 8
    state: str = "completed"
    status: dict[str, Any] = field(default_factory=dict)
    trace: bool = False


def write_sweep(root: Path, jobs: list[Job]) -> Path:
    """Writes `jobs` into numbered folders of `root`, with a manifest."""
    root.mkdir(parents=True, exist_ok=True)
    for number, job in enumerate(jobs):
        write_run(root / str(number), job)
    (root / "manifest.json").write_text(json.dumps({"jobs": len(jobs)}))
    return root


def write_run(path: Path, job: Job) -> Path:
    """Writes every file of one run."""
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([job.seed, job.n])
    rows = _iterations(job, rng)
    _write_csv(path / "iterations.csv", rows)
    _write_csv(path / "timing.csv", _timing(job, rows, rng))
    _write_csv(path / "episodes.csv", _episodes(job, rows, rng))
    _write_csv(path / "eval.csv", _evaluations(rows, rng))
    if job.trace:
        _write_csv(path / "trace.csv", _trace(job, rows))
    (path / "run.json").write_text(json.dumps(_provenance(job)))
    (path / "status.json").write_text(json.dumps(_status(job)))
    return path


def keep_rows(run: Path, rows: int) -> None:
    """Cuts a run's files after so many iterations, as if it had been stopped there."""
    for file, many in (("iterations", rows), ("episodes", 2 * rows)):
        lines = (run / f"{file}.csv").read_text().splitlines(keepends=True)
        (run / f"{file}.csv").write_text("".join(lines[: many + 1]))


def set_columns(run: Path, file: str = "iterations", **columns: Any) -> None:
    """Replaces columns of a run's CSV file; None drops the column.

    With `return_mean` the episodes of an iteration return that too.
    """
    frame = pd.read_csv(run / f"{file}.csv").assign(**columns)
    if file == "iterations" and columns.get("return_mean") is not None:
        means = frame["return_mean"].fillna(frame["return_round_mean"])
        set_columns(run, "episodes", **{"return": np.repeat(means.to_numpy(float), 2)})
    frame = frame.drop(columns=[name for name, values in columns.items() if values is None])
    frame.to_csv(run / f"{file}.csv", index=False, lineterminator="\n")


def collect_seconds(job: Job) -> float:
    """The true mean of collect_s."""
    return job.collect_1_s * ((1 - job.serial) / job.n + job.serial)


def _iterations(job: Job, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows, wall_s = [], 0.0
    run_factor = 1 + job.noise * rng.standard_normal()
    for i in range(job.iterations):
        collect_s = collect_seconds(job) * run_factor * (1 + job.noise * rng.standard_normal())
        collect_s *= 3.0 if i == 0 else 1.0
        learn_s = job.learn_s / job.learners * (1 + job.noise * rng.standard_normal())
        other_s = 0.02
        together = max(collect_s, learn_s) if job.max_lag != 0 else collect_s + learn_s
        iteration_s = together + other_s
        wall_s += iteration_s
        steps = (i + 1) * job.batch_size
        mean = 5000 * (1 - np.exp(-i / 12)) + 150 * rng.standard_normal() + 40 * job.seed
        lag = 0.0 if job.max_lag == 0 else min(1.0, i) if job.max_lag == 1 else rng.uniform(0, 2)
        rows.append(
            {
                "iteration": i + 1,
                "env_steps": steps,
                "episodes": 2 * (i + 1),
                "wall_s": round(wall_s, 6),
                "iteration_s": iteration_s,
                "collect_s": collect_s,
                "collect_max_s": collect_s,
                "learn_s": learn_s,
                "other_s": other_s,
                "compile_s": 0.0 if i else 1e-6,
                "collect_share": collect_s / iteration_s,
                "learn_share": learn_s / iteration_s,
                "env_steps_per_s": job.batch_size / iteration_s,
                "policy_version": i,
                "lag_mean": lag,
                "lag_max": float(np.ceil(lag)),
                "return_mean": mean if i else "",
                "return_round_mean": mean,
                "return_round_min": mean - 300,
                "return_round_max": mean + 300,
                "return_round_std": 150.0,
                "length_mean": 1000.0,
                "policy_loss": -0.01 * rng.standard_normal(),
                "kl" if job.algo == "ppo" else "beta": 0.01,
            }
        )
    return rows


def _timing(job: Job, rows: list[dict[str, Any]], rng: np.random.Generator) -> list[dict[str, Any]]:
    names = [f"{s}_s" for s in dict.fromkeys(SAMPLER_SECTIONS + AGENT_SECTIONS)]
    found = []
    for row in rows:
        total = row["iteration_s"]
        wait = row["collect_s"] if job.max_lag == 0 else max(0.0, total - row["learn_s"])
        agent = dict.fromkeys((f"{s}_s" for s in AGENT_SECTIONS), 0.0)
        agent |= {"wait_experience_s": wait, "update_s": row["learn_s"], "log_s": 0.01}
        agent["other_s"] = max(0.0, total - sum(agent.values()))
        found.append(_timing_row("agent", row["iteration"], agent, names))
        for k in range(job.n):
            busy = row["collect_s"] * rng.uniform(0.9, 1.0)
            share = {"act_s": 0.35, "env_step_s": 0.6, "send_s": 0.02, "other_s": 0.03}
            mine = {name: busy * s for name, s in share.items()}
            mine |= {"wait_policy_s": max(0.0, total - busy), "wait_slot_s": 0.0}
            found.append(_timing_row(f"sampler-{k}", row["iteration"], mine, names))
    return found


def _timing_row(
    process: str, iteration: int, seconds: dict[str, float], names: list[str]
) -> dict[str, Any]:
    cells = {name: seconds.get(name, "") for name in names}
    total = sum(seconds.values())
    return {"process": process, "iteration": iteration, **cells, "total_s": total}


def _episodes(
    job: Job, rows: list[dict[str, Any]], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Two episodes an iteration, one in each of two lanes."""
    return [
        {
            "env_steps": row["env_steps"],
            "wall_s": row["wall_s"],
            "sampler": k % job.n,
            "lane": k,
            "policy_version": row["policy_version"],
            "return": row["return_round_mean"] + (100 if k else -100),
            "length": 1000,
            "end": "truncated",
        }
        for row in rows
        for k in range(2)
    ]


def _evaluations(rows: list[dict[str, Any]], rng: np.random.Generator) -> list[dict[str, Any]]:
    return [
        {
            "env_steps": row["env_steps"],
            "wall_s": row["wall_s"],
            "episodes": 10,
            "return_mean": row["return_round_mean"] + 200,
            "return_median": row["return_round_mean"] + 210,
            "return_std": 90 + rng.uniform(),
            "return_min": row["return_round_mean"],
            "return_max": row["return_round_mean"] + 400,
            "length_mean": 1000,
        }
        for row in rows[9::10]
    ]


def _trace(job: Job, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    spans, now = [], 0.0
    for row in rows:
        learn_from = now if job.max_lag != 0 else now + row["collect_s"]
        end = now + row["iteration_s"]
        spans.append(("agent", "wait_experience", now, learn_from))
        spans.append(("agent", "update", learn_from, learn_from + row["learn_s"]))
        spans.append(("agent", "publish", learn_from + row["learn_s"], end))
        for k in range(job.n):
            mine = now + row["collect_s"] * (1 - 0.05 * k)
            middle = now + 0.4 * (mine - now)
            spans.append((f"sampler-{k}", "act", now, middle))
            spans.append((f"sampler-{k}", "env_step", middle, mine))
            spans.append((f"sampler-{k}", "wait_policy", mine, end))
        now = end
    keys = ("process", "section", "start_s", "end_s")
    return [dict(zip(keys, span, strict=True)) for span in spans if span[3] > span[2]]


def _provenance(job: Job) -> dict[str, Any]:
    config = {
        "name": None,
        "seed": job.seed,
        "total_steps": job.iterations * job.batch_size,
        "batch_size": job.batch_size,
        "device": "cpu",
        "trace": job.trace,
        "algo": {"name": job.algo, "epochs": 10, "clip": 0.2},
        "env": {"id": job.env, "kwargs": {}, "max_steps": len(job.env) * 50},
        "net": {"hidden": [64, 64]},
        "learner": {"n": job.learners} | ({"shards": job.shards} if job.shards else {}),
        "sampler": {"name": "process", "n": job.n, "lanes": 64, "max_lag": job.max_lag},
    }
    return {
        "command": f"python -m walle.run sampler.n={job.n} seed={job.seed}",
        "config": config,
        "overrides": [f"sampler.n={job.n}", f"seed={job.seed}"],
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "host": "bench",
        "cpu_model": "Some CPU",
        "physical_cores": job.cores,
        "usable_cores": list(range(job.cores)),
        "threads": {"OMP_NUM_THREADS": "1"},
        "seed": job.seed,
    }


def _status(job: Job) -> dict[str, Any]:
    return {
        "state": job.state,
        "config_hash": f"{job.n}-{job.learners}-{job.seed}",
        "attempts": 1,
        "exit_code": 0 if job.state == "completed" else None,
        "signal": None,
        "error": None,
        "started": "2026-01-02T03:04:05+00:00",
        "ended": "2026-01-02T03:05:05+00:00" if job.state != "running" else None,
        "cores": list(range(job.cores)),
        **job.status,
    }


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def cell(
    n: float, values: object, draws: object, names: tuple[str, ...], dof: float | None = None
) -> Cell:
    """A cell of runs with as many seeds."""
    x = np.asarray(values, float)
    mean, own = float(x.mean()), x.size - 1 if dof is None else dof
    return Cell("", n, x, np.asarray(draws, float), names, len(names), False, own, mean, mean)
