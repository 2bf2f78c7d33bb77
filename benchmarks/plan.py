"""How far `walle plan` is from real runs: each point of the plan next to a run with its settings.

    python benchmarks/plan.py [--tasks slow stragglers halfcheetah] [--samplers 1 2 4 8 16 32 64]
                              [--lags 0 1] [--seconds 15] [--json FILE] [OVERRIDE ...]

Of each task one short run with one sampler in lock-step, `trace=true`, is measured first; the plan
knows nothing else. Then a run follows for each number of samplers and each lag. `slow` waits 20 ms
a step, `stragglers` as long on average with a deviation of 10 ms, and `halfcheetah` computes, with
at most as many samplers as there are cores. Printed are the seconds of an iteration, planned and
measured (the mean after three iterations), and whether the error is more than the model allows for
in its intervals. The plan knows nothing of other programs, so two columns show them: the share of
all cores that they took meanwhile, and how long learning took over the same work in the short run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.cold_start import processor_s
from benchmarks.options import parser_of
from benchmarks.programs import RUN
from benchmarks.provenance import provenance, write_json
from walle.analysis.measuring.round_model import ERROR, predict, read_costs, read_rounds
from walle.analysis.measuring.stats import Interval, mean_interval
from walle.analysis.runs import load
from walle.system.machine import busy_s, usable_cores

COMMON = ("eval.episodes=0", "checkpoint.every=null", "logger.progress=quiet")
WAITING = (
    *("env=slow", "env.step_ms=20", "sampler.lanes=64", "batch_size=256"),
    *("algo.minibatch_size=64", "algo.epochs=2", "algo.compile=false"),
)
TASKS = {
    "slow": WAITING,
    "stragglers": (*WAITING, "env.step_ms_std=10"),
    "halfcheetah": ("env=halfcheetah", "batch_size=8192", "algo.minibatch_size=1024"),
}
WARM_UP, FEWEST, MOST = 3, 5, 60  # iterations


class Found(NamedTuple):
    """A point of the comparison."""

    task: str  # a key of `TASKS`
    lag: int  # the run's `sampler.max_lag`
    samplers: int  # the run's `sampler.n`
    planned_s: Interval  # seconds of an iteration in the plan
    measured_s: Interval  # the mean of the run's
    others: float  # the share of all cores that other programs took
    learning: float  # seconds of learning over those of the short run
    allowed: float  # the largest relative error of the model

    @property
    def error(self) -> float:
        """How much longer the plan is than the run, as a fraction of the run."""
        return self.planned_s[0] / self.measured_s[0] - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the points of the plan next to the runs'."""
    parser = parser_of(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--samplers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--seconds", type=float, default=15, help="of a run, about (default: 15)")
    parser.add_argument("overrides", nargs="*", help="further settings of the runs")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"provenance": provenance({}), "points": []}
    heads = ("planned", "measured")
    print(f"{'':<24}{heads[0]:>24}{heads[1]:>24}{'error':>8}{'others':>8}{'learning':>10}")
    found = []
    with tempfile.TemporaryDirectory() as name:
        for point in compared(options, Path(name)):
            print(line(point), flush=True)
            found.append(point)
    report["points"] = [point._asdict() | {"error": point.error} for point in found]
    within = sum(abs(point.error) <= point.allowed for point in found)
    print(f"{within} of {len(found)} points within the errors that the plan allows for")
    write_json(options.json, report)
    return 0


def compared(options: argparse.Namespace, directory: Path) -> Iterator[Found]:
    """Measures the short run of each task, plans, and measures the runs that are planned."""
    for task in options.tasks:
        settings = [*COMMON, *TASKS[task], *options.overrides]
        short = directory / f"{task}-short"
        walle(settings, 1, 0, 2 * FEWEST, short, "trace=true")
        costs = read_costs(load(short), WARM_UP)
        for lag in options.lags:
            for samplers in options.samplers:
                if task == "halfcheetah" and samplers > len(usable_cores()):
                    continue
                planned = predict(costs, replace(costs.measured, samplers=samplers, max_lag=lag))
                number = round(options.seconds / planned.seconds().value)
                number = WARM_UP + min(MOST, max(FEWEST, number))
                run = directory / f"{task}-{lag}-{samplers}"
                others = walle(settings, samplers, lag, number, run)
                ((_, _, rows),) = read_rounds(load(run), WARM_UP)
                took_s = mean_interval(planned.setup.round_steps * rows["round_s"] / rows["steps"])
                learning = float(rows["learn_s"].mean() / costs.learn_s[0])
                both = planned.seconds(), took_s
                yield Found(task, lag, samplers, *both, others, learning, planned.error or ERROR)


def walle(
    settings: Sequence[str], samplers: int, lag: int, iterations: int, directory: Path, *more: str
) -> float:
    """A run; returns the share of all cores that other programs took meanwhile."""
    batch = [each.partition("=")[2] for each in settings if each.startswith("batch_size=")][-1]
    named = [f"sampler.n={samplers}", f"sampler.max_lag={lag}", f"hydra.run.dir={directory}"]
    steps = f"total_steps={int(batch) * iterations}"
    cores = usable_cores()
    before, began = (busy_s(cores) or 0.0, processor_s()), time.monotonic()
    subprocess.run([*RUN, *settings, *named, steps, *more], check=True, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began
    others = (busy_s(cores) or 0.0) - before[0] - (processor_s() - before[1])
    return max(0.0, others) / took / len(cores)


def line(point: Found) -> str:
    """A line of the table."""
    name = f"{point.task}, lag {point.lag}, n={point.samplers}"
    failed = "" if abs(point.error) <= point.allowed else "  more than allowed"
    planned, took = (
        f"{s:.4g} [{low:.4g}, {high:.4g}]" for s, low, high in (point.planned_s, point.measured_s)
    )
    numbers = f"{point.error:>+8.1%}{point.others:>8.0%}{point.learning:>10.2f}"
    return f"{name:<24}{planned:>24}{took:>24}{numbers}{failed}"


if __name__ == "__main__":
    sys.exit(main())
