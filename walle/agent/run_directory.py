"""A run's directory: its state, and what it would take to run it again."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("walle", "torch", "numpy", "gymnasium", "mujoco", "hydra-core")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` as a whole: a reader, or a crash, finds the old text or the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def now() -> str:
    """The time as files tell it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_cores() -> list[int]:
    """The cores this process may run on; a container or a launcher may have narrowed them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


_OUTPUTS = ("*.csv", "run.json", "checkpoints", "tensorboard")


def set_aside_previous(directory: Path) -> bool:
    """Moves what an earlier attempt wrote here into attempts/K/, so that nothing is overwritten.

    status.json stays: it counts the attempts.

    Returns:
        whether there was an earlier attempt.
    """
    if not (directory / "run.json").exists():
        return False
    attempt = json.loads((directory / "status.json").read_text()).get("attempts", 1)
    aside = directory / "attempts" / str(attempt)
    aside.mkdir(parents=True, exist_ok=True)
    for path in [path for pattern in _OUTPUTS for path in directory.glob(pattern)]:
        path.rename(aside / path.name)
    return True


class Status:
    """status.json: how far the run has come, rewritten atomically at every change."""

    def __init__(self, directory: Path, config_hash: str, *, again: bool) -> None:
        """Says `running`; counts one more attempt when the run begins `again`.

        A launcher may have written the file already, for this attempt.
        """
        self._path = directory / "status.json"
        self._fields: dict[str, Any] = {
            "state": "running",
            "config_hash": config_hash,
            "attempts": max(1, self._attempts_so_far() + again),
            "exit_code": None,
            "signal": None,
            "error": None,
            "started": now(),
            "ended": None,
            "cores": usable_cores(),
        }
        self._write()

    def _attempts_so_far(self) -> int:
        if not self._path.exists():
            return 0
        return int(json.loads(self._path.read_text()).get("attempts", 0))

    def end(
        self, state: str, *, exit_code: int, signal: str | None = None, error: str | None = None
    ) -> None:
        """Says how it ended: `completed`, `failed` or `interrupted`."""
        self._fields.update(
            state=state, exit_code=exit_code, signal=signal, error=error, ended=now()
        )
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._fields, indent=2) + "\n")


def write_provenance(directory: Path, config: dict[str, Any], overrides: list[str]) -> None:
    """run.json: command, code, versions, machine and threads; never the environment's variables."""
    provenance = {
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "overrides": overrides,
        "config": config,
        "seed": config["seed"],
        "started": now(),
        "git": _git(),
        "versions": {"python": platform.python_version(), **_versions()},
        "host": platform.node(),
        "platform": platform.platform(),
        "cpu_model": _cpu_model(),
        "physical_cores": _physical_cores(),
        "usable_cores": usable_cores(),
        "threads": {name: os.environ.get(name) for name in _THREADS},
    }
    write_atomically(directory / "run.json", json.dumps(provenance, indent=2) + "\n")


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES if _installed(name)}


def _installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _git() -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout the code runs from, if it is one."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return run.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # inside some other project's checkout?
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_model() -> str:
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _physical_cores() -> int:
    """Cores of the machine that are not hyperthreads of one another."""
    pairs = set()
    package = ""
    for line in _cpuinfo():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "physical id":
            package = value
        elif key == "core id":
            pairs.add((package, value))
    return len(pairs) or os.cpu_count() or 1


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
