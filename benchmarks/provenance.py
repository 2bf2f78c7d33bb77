"""The provenance of a result: command, date, commit, machine, versions."""

from __future__ import annotations

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

from walle.system.files import write_atomically
from walle.system.machine import cpu_model
from walle.timing import timestamp

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
    """The provenance of a report; call it before measuring, because it records the load.

    `pythons` are the interpreters by system; None stands for a missing interpreter.
    """
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "began": timestamp(),
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
    """Writes the report atomically; does nothing without a path."""
    if path is None:
        return
    report["provenance"] |= {"written": timestamp(), "load_after": os.getloadavg()}
    write_atomically(path, json.dumps(report, indent=1) + "\n")


def commit() -> str | None:
    """The commit, with `-dirty` if the working tree differs; None outside a git checkout."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    if shutil.which("git") is None:
        return None
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None


def versions(python: str) -> dict[str, str]:
    """The versions of an interpreter and of its `PACKAGES`."""
    run = subprocess.run([python, "-c", _LIST_VERSIONS, *PACKAGES], capture_output=True, check=True)
    return dict(json.loads(run.stdout))


def why_absent(python: str | None, packages: Sequence[str], option: str) -> str | None:
    """Why a contestant that needs `packages` (of `PACKAGES`) is left out; None if it can take part.

    `python` is the interpreter that the command-line option `option` names, if given.
    """
    if not python:
        return f"it needs {option}, a python that has {' and '.join(packages)}"
    if shutil.which(python) is None:
        return f"{option} {python} is no program"
    found = versions(python)
    missing = [package for package in packages if package not in found]
    return f"{python} has no {' and no '.join(missing)}" if missing else None
