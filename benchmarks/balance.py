"""What dealing lanes by speed gains when one core is slower, and costs when cores are equal.

    python benchmarks/balance.py [--repetitions 5] [--cores 0 1] [--json FILE] [OVERRIDE ...]

Two samplers, pinned to two cores, collect with `sampler.balance=true` and `false` in turns: with a
program that never rests on the second core, and without. `collect_s` is the median over the rounds
after the first quarter, in which the speeds become known; printed is its ratio, false over true, by
the pair's repetition.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.options import parser_of
from benchmarks.programs import RUN, read_csv
from benchmarks.provenance import provenance, write_json
from walle.system.machine import usable_cores

SETTINGS = (
    "env=halfcheetah",
    "sampler.n=2",
    "sampler.pin=true",
    "batch_size=8192",
    "total_steps=655360",
    "algo.epochs=1",
    "algo.minibatch_size=2048",
    "algo.compile=false",
    "eval.episodes=0",
    "checkpoint.every=null",
    "logger.progress=quiet",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the ratios."""
    parser = parser_of(__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cores", type=int, nargs=2, default=usable_cores()[:2])
    parser.add_argument("overrides", nargs="*", help="further settings of the runs")
    options = parser.parse_args(arguments)
    if len(options.cores) < 2:
        parser.error("two cores are needed")
    report: dict[str, Any] = {"provenance": provenance({})}
    os.sched_setaffinity(0, options.cores)
    report["cores"] = {core: seconds_of_work(core) for core in options.cores}
    print("the same work on each core:", ", ".join(f"{s:.3f} s" for s in report["cores"].values()))
    os.sched_setaffinity(0, options.cores)
    for name, core in (("equal cores", None), ("one busy core", options.cores[1])):
        with busy(core):
            report[name] = turns(options.overrides, options.repetitions)
        ratios = [pair["false"] / pair["true"] for pair in report[name]]
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name}: {statistics.median(ratios):.3f} times as fast ({span})", flush=True)
    write_json(options.json, report)
    return 0


def turns(overrides: Sequence[str], repetitions: int) -> list[dict[str, float]]:
    """Pairs of `collect_s`; which of the two comes first alternates."""
    found = []
    for repetition in range(repetitions):
        order = ("true", "false") if repetition % 2 else ("false", "true")
        found.append({balance: collect_s(balance, overrides) for balance in order})
    return found


def collect_s(balance: str, overrides: Sequence[str]) -> float:
    """The median seconds of collecting a round."""
    with tempfile.TemporaryDirectory() as name:
        settings = [*SETTINGS, *overrides, f"sampler.balance={balance}", f"hydra.run.dir={name}"]
        subprocess.run([*RUN, *settings], check=True, stdout=subprocess.DEVNULL)
        rows = read_csv(Path(name) / "iterations.csv")
    return statistics.median(float(row["collect_s"]) for row in rows[len(rows) // 4 :])


def seconds_of_work(core: int) -> float:
    """Seconds that the same loop takes on a core."""
    os.sched_setaffinity(0, {core})
    began = time.perf_counter()
    sum(range(10_000_000))
    return time.perf_counter() - began


@contextmanager
def busy(core: int | None) -> Iterator[None]:
    """Keeps a core busy during the body; None: no core."""
    if core is None:
        yield
        return
    pin = lambda: os.sched_setaffinity(0, {core})  # noqa: E731
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=pin) as program:
        try:
            yield
        finally:
            program.kill()


if __name__ == "__main__":
    sys.exit(main())
