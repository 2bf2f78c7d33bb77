"""The programs that take part in a benchmark, and their output files."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.provenance import ROOT
from walle.system.machine import THREAD_VARIABLES

RUN = [sys.executable, "-m", "walle.run"]
_LOOPS = ROOT / "benchmarks" / "contestants"


class Program(NamedTuple):
    """A command with its cores, threads and environment variables."""

    command: Sequence[str]
    cores: Sequence[int]
    threads: int | None = 1  # of the mathematical libraries; None for their default
    environ: Mapping[str, str] = {}  # in addition to the inherited variables

    def start(self, out: Path, errors: Path) -> subprocess.Popen[bytes]:
        """Starts the program in a new session, so that its children can be signalled with it."""
        limits = {} if self.threads is None else dict.fromkeys(THREAD_VARIABLES, str(self.threads))
        with out.open("wb") as stdout, errors.open("ab") as stderr:
            return subprocess.Popen(
                self.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, **limits, **self.environ},
                preexec_fn=lambda: os.sched_setaffinity(0, self.cores),
            )


@contextmanager
def running(program: Program, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A context with a program, which writes into `directory` and ends with all its children."""
    process = program.start(directory / "stdout", directory / "stderr")
    try:
        yield process
    finally:
        signal_all(process, signal.SIGKILL)
        process.wait()


def signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    """Signals a program with its descendants; walle's samplers have sessions of their own."""
    descendants: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):  # it may have ended by itself
        descendants = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    for descendant in descendants:
        with suppress(psutil.NoSuchProcess):
            descendant.send_signal(number)


class Need(NamedTuple):
    """Packages that another interpreter needs, and the command-line option for that interpreter."""

    python: str | None
    packages: tuple[str, ...]
    option: str


def loop(python: str | None, file: str, *words: object, **options: object) -> list[str]:
    """The command of a program in benchmarks/contestants; without `python` it cannot run."""
    named = [word for key, value in options.items() for word in (f"--{key}", value)]
    return [python or "", "-W", "ignore", str(_LOOPS / file), *map(str, (*words, *named))]


def walle_run(settings: Mapping[str, object], directory: Path) -> list[str]:
    """The command of a run that writes into `directory`/run and prints nothing."""
    quiet = {"logger.progress": "quiet", "hydra.run.dir": directory / "run"}
    words = [f"{key}={value}" for key, value in {**settings, **quiet}.items()]
    return [*RUN, *words]


def whole_lines(file: Path) -> list[str]:
    """The complete lines of a file; an empty list if the file does not exist."""
    if not file.exists():
        return []
    return file.read_text().rpartition("\n")[0].splitlines()


def read_csv(file: Path) -> list[dict[str, str]]:
    """The complete rows of a file; an empty list if the file does not exist."""
    return list(csv.DictReader(whole_lines(file)))
