"""Seconds and processor time of a run's first rounds, with an empty cache and with a full one.

    python benchmarks/cold_start.py [OVERRIDE ...] [--cores 1] [--repetitions 3] [--json found.json]

Each repetition starts two short runs with a cache of their own, one after the other: the first one
finds nothing there (cold) and compiles, the second one finds what the first compiled (warm). A line
has the seconds until the first row of iterations.csv, the seconds that the run charges to
compiling, and the processor time of all its processes, which hardly changes when other programs use
the machine.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.options import core_count, parser_of, positive
from benchmarks.programs import Program, read_csv, running, walle_run
from benchmarks.provenance import provenance, write_json
from benchmarks.turns import charged_to_compiling
from walle.system.machine import usable_cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each run."""
    parser = parser_of(__doc__)
    parser.add_argument("overrides", nargs="*", default=["env=halfcheetah"], metavar="OVERRIDE")
    parser.add_argument("--cores", type=core_count, default=1)
    parser.add_argument("--repetitions", type=positive, default=3)
    options = parser.parse_args(arguments)
    cores = usable_cores()[: options.cores]
    report: dict[str, Any] = {"provenance": provenance({}), "cores": cores, "cold": [], "warm": []}
    for _ in range(options.repetitions):
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "warm"):
                found = short_run(options.overrides, cores, cache)
                report[kind].append(found)
                text = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items())
                print(f"{kind}  {text}", flush=True)
    write_json(options.json, report)
    return 0


def short_run(overrides: Sequence[str], cores: list[int], cache: str) -> dict[str, float]:
    """Seconds of a run of two rounds, which keeps what it compiles in `cache`."""
    from walle.config import compose

    steps = 2 * compose(list(overrides)).batch_size
    settings = {"total_steps": steps, "eval.episodes": "0", "checkpoint.every": "null"}
    settings["algo.compile"] = "true"  # as in a long run
    settings |= dict(override.split("=", 1) for override in overrides)
    caches = {"XDG_CACHE_HOME": cache, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = Program(walle_run(settings, directory), cores, threads=None, environ=caches)
        before, began = processor_s(), time.monotonic()
        with running(program, directory) as run:
            while run.poll() is None and not read_csv(directory / "run" / "iterations.csv"):
                time.sleep(0.01)
            first_s = time.monotonic() - began
            if run.wait():
                raise SystemExit((directory / "stderr").read_text()[-2000:])
        return {
            "first round": first_s,
            "compiling": charged_to_compiling(directory / "run"),
            "processor": processor_s() - before,
        }


def processor_s() -> float:
    """Processor time of the runs so far, with all their processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
