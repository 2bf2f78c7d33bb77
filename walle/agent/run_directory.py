"""A run's directory: its state, and files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from walle.machine import usable_cores
from walle.processes.signals import stopped_by
from walle.timing import timestamp


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
            "started": timestamp(),
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
            state=state, exit_code=exit_code, signal=signal, error=error, ended=timestamp()
        )
        self._write()

    def end_with(self, number: int | None) -> None:
        """Says `completed`, or `interrupted` by the signal of that number."""
        if number is None:
            self.end("completed", exit_code=0)
        else:
            name = signal.Signals(number).name
            self.end("interrupted", exit_code=128 + number, signal=name)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Says that the body failed, or was interrupted twice."""
        try:
            yield
        except KeyboardInterrupt as stop:
            number = stopped_by(stop)
            name = signal.Signals(number).name
            self.end("interrupted", exit_code=128 + number, signal=name, error="interrupted twice")
            raise
        except BaseException as error:
            self.end("failed", exit_code=1, error=f"{type(error).__name__}: {error}")
            raise

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._fields, indent=2) + "\n")
