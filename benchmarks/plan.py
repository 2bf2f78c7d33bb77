"""How far `walle plan` is from real runs: each point of the plan next to a run with its settings.

    python benchmarks/plan.py [--tasks slow stragglers halfcheetah] [--samplers 1 2 4 8 16 32 64]
                              [--lags 0 1] [--seconds 15] [--json FILE] [OVERRIDE ...]

Of each task one short run with one sampler in lock-step, `trace=true`, is measured first; the plan
knows nothing else. Then a run follows for each number of samplers and each lag. `slow` waits 20 ms
a step, `stragglers` as long on average with a deviation of 10 ms, and `halfcheetah` computes, with
at most as many samplers as there are cores. Printed are the seconds of an iteration, planned and
measured (the mean after three iterations). Promised are 10% in lock-step and 15% else. The plan
knows nothing of other programs, so three columns tell of them: the share of all cores that they
took meanwhile; how long learning took over what it took in the short run, the same work; and, in
lock-step, the error of the plan if learning had taken in the short run what it took in this one.
"""

from __future__ import annotations

import argparse
import resource
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

from benchmarks.provenance import provenance, write_json
from walle.analysis.measuring.stats import mean_interval
from walle.analysis.planning.measured import read, seconds
from walle.analysis.planning.points import points
from walle.analysis.runs import load
from walle.system.machine import busy_s, usable_cores

RUN = [sys.executable, "-m", "walle.run"]
COMMON = (
    "eval.every=null",
    "checkpoint.every=null",
    "logger.progress=quiet",
    "sampler.balance=false",
)
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
PROMISED = {True: 0.10, False: 0.15}  # in lock-step without stragglers, else


class Found(NamedTuple):
    """A point of the comparison.

    Attributes:
        task: a key of `TASKS`.
        lag: the run's `sampler.max_lag`.
        samplers: the run's `sampler.n`.
        planned_s: seconds of an iteration in the plan, with the ends of its interval.
        measured_s: the mean of the run's, with its interval.
        others: the share of all cores that other programs took.
        learning: seconds of learning over those of the short run.
        learn_s: seconds of learning in the short run.
    """

    task: str
    lag: int
    samplers: int
    planned_s: tuple[float, float, float]
    measured_s: tuple[float, float, float]
    others: float
    learning: float
    learn_s: float

    @property
    def error(self) -> float:
        """How much longer the plan is than the run, as a fraction of the run."""
        return self.planned_s[0] / self.measured_s[0] - 1

    @property
    def error_without_learning(self) -> float:
        """`error`, had learning taken as long in the short run as in this one."""
        planned_s = self.planned_s[0] + (self.learning - 1) * self.learn_s
        return planned_s / self.measured_s[0] - 1

    @property
    def promised(self) -> float:
        """The largest error that is promised."""
        return PROMISED[self.lag == 0 and self.task != "stragglers"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the points of the plan next to the runs'."""
    options = parsed(arguments)
    report: dict[str, Any] = {"provenance": provenance({}), "points": []}
    print(
        f"{'':<24}{'planned':>24}{'measured':>24}{'error':>8}{'others':>8}{'learning':>10}{'so':>8}"
    )
    found = []
    with tempfile.TemporaryDirectory() as name:
        for point in compared(options, Path(name)):
            print(line(point), flush=True)
            found.append(point)
    report["points"] = [point._asdict() | {"error": point.error} for point in found]
    within = sum(abs(point.error) <= point.promised for point in found)
    print(f"{within} of {len(found)} points within what is promised")
    write_json(options.json, report)
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--samplers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--seconds", type=float, default=15, help="of a run, about (default: 15)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", help="further settings of the runs")
    return parser.parse_args(arguments)


def compared(options: argparse.Namespace, directory: Path) -> Iterator[Found]:
    """Measures the short run of each task, plans, and measures the runs that are planned."""
    for task in options.tasks:
        settings = [*COMMON, *TASKS[task], *options.overrides]
        short = directory / f"{task}-short"
        walle(settings, 1, 0, 2 * FEWEST, short, "trace=true")
        measured = read(load(short), WARM_UP, None)
        for lag in options.lags:
            for samplers in options.samplers:
                if task == "halfcheetah" and samplers > len(usable_cores()):
                    continue
                setup = replace(measured.setup, samplers=samplers, max_lag=lag)
                (point,) = points(measured, [setup])
                planned_s = point.seconds(point.predicted.steps)
                number = round(options.seconds / planned_s.value)
                number = WARM_UP + min(MOST, max(FEWEST, number))
                run = directory / f"{task}-{lag}-{samplers}"
                others = walle(settings, samplers, lag, number, run)
                sweep = load(run)
                ((_, step_s),) = seconds(sweep, WARM_UP)
                took_s = mean_interval(step_s * point.predicted.steps)
                before_s = float(measured.learn_s.mean())
                learning = float(sweep.iterations["learn_s"][WARM_UP:].mean()) / before_s
                both = tuple(planned_s), tuple(took_s)
                yield Found(task, lag, samplers, *both, others, learning, before_s)


def walle(
    settings: Sequence[str], samplers: int, lag: int, iterations: int, directory: Path, *more: str
) -> float:
    """A run; returns the share of all cores that other programs took meanwhile."""
    batch = [each.partition("=")[2] for each in settings if each.startswith("batch_size=")][-1]
    named = [f"sampler.n={samplers}", f"sampler.max_lag={lag}", f"hydra.run.dir={directory}"]
    steps = f"total_steps={int(batch) * iterations}"
    cores = usable_cores()
    before, began = (busy_s(cores) or 0.0, own_s()), time.monotonic()
    subprocess.run([*RUN, *settings, *named, steps, *more], check=True, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began
    others = (busy_s(cores) or 0.0) - before[0] - (own_s() - before[1])
    return max(0.0, others) / took / len(cores)


def own_s() -> float:
    """Seconds of cores that the runs so far took, with all their processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def line(point: Found) -> str:
    """A line of the table."""
    name = f"{point.task}, lag {point.lag}, n={point.samplers}"
    failed = "" if abs(point.error) <= point.promised else "  more than promised"
    planned, took = (
        f"{s:.4g} [{low:.4g}, {high:.4g}]" for s, low, high in (point.planned_s, point.measured_s)
    )
    numbers = f"{point.error:>+8.1%}{point.others:>8.0%}{point.learning:>10.2f}"
    numbers += f"{point.error_without_learning:>+8.1%}" if point.lag == 0 else " " * 8
    return f"{name:<24}{planned:>24}{took:>24}{numbers}{failed}"


if __name__ == "__main__":
    sys.exit(main())
