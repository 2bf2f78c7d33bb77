"""Seconds that compiling the learner takes, with an empty cache and with a full one.

    python benchmarks/compiling.py [OVERRIDE ...] [--cores 1] [--repetitions 3] [--json found.json]

Each repetition starts two processes with a cache of their own, one after the other: the first one
finds nothing there (cold), the second one finds the libraries of the first (warm). A line has the
wall clock of `warm_up`, which is what a run calls, and the CPU seconds of its parts: Python, which
traces and writes C++, and the runs of the compiler by what they compile. CPU seconds hardly change
when other programs use the machine, and wall clocks do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.options import core_count, positive
from benchmarks.provenance import provenance, write_json

PARTS = ("python", "wrapper", "kernel", "linking", "headers", "other")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("overrides", nargs="*", default=["env=halfcheetah"], metavar="OVERRIDE")
    parser.add_argument("--cores", type=core_count, default=1)
    parser.add_argument("--repetitions", type=positive, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.in_this_process:
        print(json.dumps(warm_up(asked.overrides)))
        return 0
    cores = sorted(os.sched_getaffinity(0))[: asked.cores]
    report: dict[str, Any] = {"provenance": provenance({}), "cores": cores, "cold": [], "warm": []}
    for _ in range(asked.repetitions):
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "warm"):
                found = in_new_process(asked.overrides, cores, cache)
                report[kind].append(found)
                print(f"{kind}  {described(found)}", flush=True)
    write_json(asked.json, report)
    return 0


def described(found: dict[str, float]) -> str:
    """A line about one process."""
    parts = ", ".join(f"{name} {found[name]:.2f}" for name in PARTS if found[name])
    whole = sum(found[name] for name in PARTS)
    return f"{found['wall']:6.2f} s; CPU {whole:6.2f} s: {parts}"


def in_new_process(overrides: Sequence[str], cores: list[int], cache: str) -> dict[str, float]:
    """The seconds of `warm_up` in a new process on `cores`, with libraries kept in `cache`."""
    compiler = watched_compiler(Path(cache))
    run = subprocess.run(
        [sys.executable, __file__, *overrides, "--in-this-process"],
        env={**os.environ, "XDG_CACHE_HOME": cache, "CXX": str(compiler)},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = dict.fromkeys(PARTS, 0.0) | json.loads(run.stdout.splitlines()[-1])
    for path in Path(cache).glob("run.*"):
        arguments, _, times = path.read_text().partition("\n")
        found[part(arguments)] += cpu_of_children(times)
        path.unlink()
    return found


def watched_compiler(directory: Path) -> Path:
    """A script that runs the compiler, and writes its arguments and CPU times into `directory`.

    The script's name is that of the compiler, by which torch knows what kind it is. Its path is a
    part of what names a library in the cache, so a cache has one script.
    """
    real = os.environ.get("CXX", "g++")
    script = directory / Path(real.split()[0]).name
    files = shlex.quote(str(directory / "run"))
    lines = ("#!/bin/sh", f'{real} "$@"', "code=$?", f'{{ echo "$*"; times; }} >{files}.$$')
    script.write_text("\n".join((*lines, "exit $code", "")))
    script.chmod(0o755)
    return script


def cpu_of_children(times: str) -> float:
    """CPU seconds of a shell's children, the last two numbers of what its `times` prints."""
    found = [60 * int(m) + float(s) for m, s in re.findall(r"(\d+)m([\d.]+)s", times)]
    return sum(found[2:4])


def part(arguments: str) -> str:
    """What a run of the compiler is for."""
    if "c++-header" in arguments:
        return "headers"
    if "-shared" in arguments:
        return "linking" if ".wrapper.o" in arguments else "other"
    compiled = [name for name in ("wrapper", "kernel") if f".{name}.cpp" in arguments]
    return compiled[0] if compiled else "other"


def warm_up(overrides: Sequence[str]) -> dict[str, float]:
    """Makes the algorithm of a run and compiles it; returns the seconds of this process."""
    import torch

    from walle.config import compose
    from walle.training import make_algorithm, make_problem

    torch.set_num_threads(1)
    config = compose(["sampler=serial", *overrides, "algo.compile=true"])
    algorithm = make_algorithm(config, make_problem(config)[0])
    cpu, wall = time.process_time(), time.monotonic()
    algorithm.warm_up()
    return {"python": time.process_time() - cpu, "wall": time.monotonic() - wall}


if __name__ == "__main__":
    sys.exit(main())
