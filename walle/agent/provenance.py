"""run.json: the origin of a run, with all facts that are needed to repeat it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from walle.system.commands import COMMAND_VARIABLE, command_line
from walle.system.files import write_atomically
from walle.system.machine import THREAD_VARIABLES, cpu_model, physical_cores, usable_cores
from walle.timing import timestamp

_PACKAGES = ("walle", "torch", "numpy", "gymnasium", "mujoco", "hydra-core")


def write_provenance(
    directory: Path, config: dict[str, Any], overrides: list[str], *, resumed: bool = False
) -> None:
    """Writes run.json: command, code, versions, machine, threads; no environment variables.

    The content of a resumed run's file stays; `resumptions` gets one more entry.
    """
    provenance = {
        "command": os.environ.get(COMMAND_VARIABLE) or command_line(),
        "overrides": overrides,
        "config": config,
        "seed": config["seed"],
        "started": timestamp(),
        "git": _git(),
        "versions": {"python": platform.python_version(), **_versions()},
        "host": platform.node(),
        "platform": platform.platform(),
        "cpu_model": cpu_model(),
        "physical_cores": physical_cores(),
        "usable_cores": usable_cores(),
        "threads": {name: os.environ.get(name) for name in THREAD_VARIABLES},
    }
    path = directory / "run.json"
    if resumed:
        first = json.loads(path.read_text(encoding="utf-8"))
        earlier = first.get("resumptions", [])
        provenance = {**first, "config": config, "resumptions": [*earlier, provenance]}
    write_atomically(path, json.dumps(provenance, indent=2) + "\n")


def add_nodes(directory: Path, nodes: dict[str, Any]) -> None:
    """Adds to run.json which nodes of a cluster collect from a round on."""
    path = directory / "run.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["nodes"] = [*content.get("nodes", []), nodes]
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _git() -> dict[str, Any] | None:
    """The commit and the dirty flag of walle's checkout; None for an installed package."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return run.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # fails in another project's checkout
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None
