"""What a benchmark writes beside its numbers: command, date, commit, machine, versions."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "walle",
    "gymnasium",
    "mujoco",
    "numpy",
    "torch",
    "jax",
    "envpool",
    "stable-baselines3",
    "sbx-rl",
    "sample-factory",
)
_LIST_VERSIONS = (
    "import importlib.metadata as m, json, sys\n"
    "have = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}\n"
    "print(json.dumps({'python': sys.version.split()[0], "
    "**{p: have[p] for p in sys.argv[1:] if p in have}}))"
)


def provenance(pythons: Mapping[str, str | None]) -> dict[str, Any]:
    """Everything but the numbers; call it before measuring, for the load.

    Args:
        pythons: the interpreters that take part, by whose they are; None where there is none.
    """
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "began": now(),
        "commit": commit(),
        "machine": {
            "cpu": cpu_model(),
            "usable_cores": sorted(os.sched_getaffinity(0)),
            "system": platform.platform(),
        },
        "load_before": os.getloadavg(),
        "versions": {
            name: versions(python)
            for name, python in {"walle": sys.executable, **pythons}.items()
            if python and shutil.which(python)
        },
    }


def write_json(path: Path | None, report: dict[str, Any]) -> None:
    """Writes the report as far as it got, whole or not at all; nothing without a path."""
    if path is None:
        return
    report["provenance"] |= {"written": now(), "load_after": os.getloadavg()}
    scratch = path.with_name(f".{path.name}")
    scratch.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(scratch, path)


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """Of the working tree, `-dirty` where it differs; None where git knows nothing of it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    if shutil.which("git") is None:
        return None
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None


def cpu_model() -> str:
    """As the kernel calls it."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(python: str) -> dict[str, str]:
    """What that python has of `PACKAGES`, and its own version."""
    run = subprocess.run([python, "-c", _LIST_VERSIONS, *PACKAGES], capture_output=True, check=True)
    return dict(json.loads(run.stdout))


def why_absent(python: str | None, packages: Sequence[str], option: str) -> str | None:
    """Why a contestant cannot take part, in words; None if it can.

    Args:
        python: the interpreter that ought to have the packages, if one was given.
        packages: as in `PACKAGES`.
        option: of the command line, that names the interpreter.
    """
    if not python:
        return f"it needs {option}, a python that has {' and '.join(packages)}"
    if shutil.which(python) is None:
        return f"{option} {python} is no program"
    found = versions(python)
    missing = [package for package in packages if package not in found]
    return f"{python} has no {' and no '.join(missing)}" if missing else None
