"""A race of whole training programs: seconds from the command to a return."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import hyperparameters
from benchmarks.lineup import default_walle, needed, peer, sample_factory
from benchmarks.programs import Need, Program, walle_run, whole_lines
from benchmarks.provenance import write_json
from benchmarks.standings import BASELINE, Lap, Mark, pace, ranges, summary, table, told
from benchmarks.turns import Launch, charged_to_compiling, present, rotated

Options = argparse.Namespace
POLL_S = 0.1


class Racer(NamedTuple):
    """A contestant: its name, a function (seed, directory) -> program, and its needs."""

    name: str
    program: Callable[[int, Path], Program]
    need: Need | None = None

    @property
    def log(self) -> str:
        """The file in the contestant's directory that grows by a line a round."""
        return "stdout" if self.need else "run/iterations.csv"


def run(options: Options, cores: list[int], report: dict[str, Any]) -> None:
    """Runs every seed of every contestant; prints and writes after each run."""
    racers = present(everyone(options, cores), options.only)
    report["hyperparameters"] = {
        "ours": hyperparameters.ours(),
        "zoo": hyperparameters.zoo(),
        "cleanrl": hyperparameters.cleanrl(),
        "sample-factory": hyperparameters.sample_factory_mujoco(),
    }
    if any(racer.name == BASELINE for racer in racers):
        fill_cache(options, cores)
    laps: list[Lap] = []
    report |= {"laps": [], "race": {}}
    for seed in range(options.seeds):
        for racer in rotated(racers, seed):
            laps.append(lap(racer, seed, options.limit_s))
            print(told(laps[-1]), flush=True)
            report["laps"] = [each.plain() for each in laps]
            report["race"] = summary(laps, options.returns, options.steps)
            write_json(options.json, report)
    print(table(report["race"], options.returns, options.steps))
    print(ranges(report["race"], options.returns, options.steps))
    write_json(options.json, report)


def everyone(options: Options, cores: Sequence[int]) -> Iterator[Racer]:
    """All contestants, including those that are not installed."""
    yield Racer(BASELINE, walle(options, cores))
    yield Racer("walle-overlapped", walle(options, cores, max_lag=1))
    yield Racer("walle-cold", walle(options, cores, cold=True))
    yield Racer("walle-wide", walle(options, cores, experiment="wide"))
    for name, library, settings in (
        ("sb3-zoo", "sb3", hyperparameters.zoo()),
        ("sb3-cleanrl", "sb3", hyperparameters.cleanrl()),
        ("sb3-ours", "sb3", hyperparameters.ours()),
        ("sbx-zoo", "sbx", hyperparameters.zoo()),
        ("sbx-ours", "sbx", hyperparameters.ours()),
    ):
        program = other(options, library, settings, cores)
        yield Racer(name, program, needed(options, library))
    yield Racer("sample-factory", factory(options, cores), needed(options, "sample-factory"))


def other(
    options: Options, library: str, settings: dict[str, Any], cores: Sequence[int]
) -> Callable[[int, Path], Program]:
    """SB3 or SBX with given settings."""

    def program(seed: int, _: Path) -> Program:
        return peer(options, library, settings, cores, seed=seed, steps=options.steps)

    return program


def factory(options: Options, cores: Sequence[int]) -> Callable[[int, Path], Program]:
    """Sample Factory with the settings of its MuJoCo example."""
    settings = hyperparameters.sample_factory_mujoco()

    def program(seed: int, directory: Path) -> Program:
        steps = options.steps
        return sample_factory(options, settings, cores, directory, seed=seed, steps=steps)

    return program


def walle(
    options: Options,
    cores: Sequence[int],
    *,
    max_lag: int = 0,
    cold: bool = False,
    experiment: str | None = None,
) -> Callable[[int, Path], Program]:
    """Walle's default run, or an experiment; `cold` starts with empty caches of compiled code."""
    caches = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR") if cold else ()

    def program(seed: int, directory: Path) -> Program:
        settings = default_walle(options.task, options.steps, len(cores), max_lag, seed)
        if experiment is not None:
            settings["+experiment"] = experiment
        environ = {name: str(directory / name) for name in caches}
        return Program(walle_run(settings, directory), cores, threads=None, environ=environ)

    return program


def fill_cache(options: Options, cores: Sequence[int]) -> None:
    """Fills the cache of compiled code with short runs."""
    for max_lag in (0, 1):
        settings = default_walle(options.task, 2048, len(cores), max_lag, 0)
        settings |= {"algo.compile": "true", "eval.every": "null"}
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            program = Program(walle_run(settings, directory), cores, threads=None)
            process = program.start(directory / "stdout", directory / "stderr")
            if process.wait():
                raise SystemExit(f"walle cannot run:\n{(directory / 'stderr').read_text()}")


def lap(racer: Racer, seed: int, limit_s: float) -> Lap:
    """Runs a program until its end or the time limit."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        begin = time.monotonic()
        process = racer.program(seed, directory).start(directory / "stdout", directory / "stderr")
        try:
            marks = followed(process, directory / racer.log, begin, limit_s)
            total_s = time.monotonic() - begin
        finally:
            end(process)
        if process.returncode and total_s < limit_s:
            print(f"{racer.name} failed:\n{(directory / 'stderr').read_text()[-2000:]}", flush=True)
        launch = launched(racer, directory, marks) if marks else None
        return Lap(racer.name, seed, process.returncode == 0, total_s, launch, marks)


class Log:
    """A file that grows by a line a round: walle's iterations.csv, or lines of JSON."""

    def __init__(self, file: Path) -> None:
        """Reads nothing yet; the file need not exist."""
        self._file, self._at = file, 0
        self._columns: list[str] = []

    def news(self) -> list[tuple[int, float | None]]:
        """The environment steps and the mean return of each new complete line."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        rows = map(self._read, whole.decode().splitlines())
        return [row for row in rows if row is not None]

    def _read(self, line: str) -> tuple[int, float | None] | None:
        if line.startswith("["):
            *_, env_steps, mean = json.loads(line)
            return env_steps, mean
        (cells,) = csv.reader([line])
        if not self._columns:
            self._columns = cells
            return None
        row = dict(zip(self._columns, cells, strict=True))
        return int(row["env_steps"]), float(row["return_mean"]) if row["return_mean"] else None


def followed(
    process: subprocess.Popen[bytes], log: Path, begin: float, limit_s: float
) -> list[Mark]:
    """The marks of the log, with their times, until the process ends or the time is over."""
    marks: list[Mark] = []
    file = Log(log)
    running = True
    while running and time.monotonic() - begin < limit_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
        running = process.poll() is None
        at_s = time.monotonic() - begin
        marks += [Mark(at_s, *found) for found in file.news()]
    return marks


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def launched(racer: Racer, directory: Path, marks: Sequence[Mark]) -> Launch:
    """The times of the start; the first round of a peer shows its compiling time."""
    round_s = marks[0].env_steps * pace(marks)
    first_s = marks[0].at_s
    if racer.need is None:
        compile_s = charged_to_compiling(directory / "run")
    else:
        _, start, stop, *_ = json.loads(whole_lines(directory / racer.log)[0])
        compile_s = max(0.0, stop - start - round_s)
    return Launch(max(0.0, first_s - round_s - compile_s), compile_s, first_s)
