"""The directory of a run: run.json, its status from start to end, and the files of earlier runs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from walle import __version__
from walle.errors import ConfigError, cause_text
from walle.system.commands import COMMAND_VARIABLE, command_line
from walle.system.files import write_atomically
from walle.system.locks import RUN_LOCK, RunDirectory, refuse_used
from walle.system.machine import THREAD_VARIABLES, cpu_model, physical_cores, usable_cores
from walle.system.run_files import (
    STATUS,
    read_status,
    remove_empty,
    set_aside,
    update_status,
    write_status,
)
from walle.system.signals import stopped_by
from walle.timing import timestamp

FAILURE = "failure.txt"
_HYDRA = ".hydra"
_RUN_FILES = ("*.csv", "run.json", FAILURE, "checkpoints", "tensorboard", "videos", "wandb")


def write_provenance(
    directory: Path, config: dict[str, Any], overrides: list[str], *, resumed: bool, **more: Any
) -> None:
    """Writes run.json: command, code, versions, machine, threads; no environment variables.

    A resumed run's file keeps its content; `resumptions` gets one more entry. `more` may have
    `bits_may_differ` (whether the same settings may produce different bits) and `parent`.
    """
    provenance = {
        "command": os.environ.get(COMMAND_VARIABLE) or command_line(),
        "overrides": overrides,
        "config": config,
        "seed": config["seed"],
        **more,
        "started": timestamp(),
        "git": _git(),
        "versions": versions("hydra-core"),
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
    """Adds to run.json the nodes of a cluster that collect from a given round on."""
    path = directory / "run.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["nodes"] = [*content.get("nodes", []), nodes]
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def versions(*more: str) -> dict[str, str]:
    """The versions of Python, walle and the packages that compute, and of `more`."""
    numbers = {"python": platform.python_version(), "walle": __version__}
    for name in ("torch", "numpy", "gymnasium", "mujoco", *more):
        with suppress(metadata.PackageNotFoundError):
            numbers[name] = metadata.version(name)
    return numbers


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


def set_aside_previous(directory: Path) -> bool:
    """Moves the files of an earlier run in `directory` to attempts/; returns whether there was one.

    status.json stays because it counts the attempts. Hydra's files stay because Hydra has already
    written them for the new run.
    """
    return (directory / "run.json").exists() and set_aside(directory, _RUN_FILES)


class Status:
    """status.json of a run: its state, rewritten atomically at every change."""

    def __init__(
        self, directory: RunDirectory, config_hash: str, *, again: bool, resumed: bool = False
    ) -> None:
        """Writes the state `running`.

        A sweep's launcher writes the file before the run starts. The file's fields are then kept,
        including `config_hash`, by which the launcher finds completed jobs. `again` counts one more
        attempt: an earlier run was moved to attempts/, or is resumed.
        """
        self._directory = directory
        before = read_status(directory.path)
        kept = before if resumed or not again else {}
        fields = {
            "state": "running",
            "config_hash": kept.get("config_hash", config_hash),
            "attempts": max(1, (before.get("attempts") or 0) + again),
            "resume": resumed,
            "exit_code": None,
            "signal": None,
            "error": None,
            "reason": None,
            "started": timestamp(),
            "ended": None,
            "cores": usable_cores(),
        }
        write_status(directory.path, kept | fields)
        (directory.path / FAILURE).unlink(missing_ok=True)  # an earlier attempt's

    def end(self, state: str, *, exit_code: int, **fields: Any) -> None:
        """Writes how the run ended: `completed`, `failed` or `interrupted`.

        `fields` are some of signal, error, reason (why it is complete before all its steps) and
        return_value.

        Raises DirectoryLost if the directory was deleted or moved.
        """
        self._directory.check()
        ended = {"signal": None, "error": None, "reason": None, "ended": timestamp()} | fields
        update_status(self._directory.path, state=state, exit_code=exit_code, **ended)

    def interrupted(self, number: int, error: str | None = None) -> None:
        """Writes `interrupted`, with the number of the signal."""
        name = signal.Signals(number).name
        self.end("interrupted", exit_code=128 + number, signal=name, error=error)

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Writes `failed`, or `interrupted`, if the body raises."""
        try:
            yield
        except KeyboardInterrupt as stop:
            self.interrupted(stopped_by(stop), error="interrupted twice")
            raise
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".strip()
            cause = cause_text(text)
            try:
                self.end("failed", exit_code=1 + isinstance(error, ConfigError), error=cause)
                if text != cause:  # the error has several lines
                    write_atomically(self._directory.path / FAILURE, f"{text}\n")
            except OSError as disk:  # the run's own error matters more
                error.add_note(f"{STATUS} could not be written: {disk}")
            raise


def remove_refused(directory: Path) -> None:
    """Removes the directory of a refused run if only Hydra has written into it."""
    if not directory.is_dir() or {path.name for path in directory.iterdir()} - {_HYDRA, RUN_LOCK}:
        return
    try:
        refuse_used(directory)
    except ConfigError:  # another run has just started here
        return
    shutil.rmtree(directory / _HYDRA, ignore_errors=True)
    (directory / RUN_LOCK).unlink(missing_ok=True)
    remove_empty(directory)
