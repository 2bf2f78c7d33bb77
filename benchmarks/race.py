"""A race of whole training programs: seconds from the command to a return, medians over seeds."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import lineup
from benchmarks.lineup import default_walle, needed, peer, sample_factory
from benchmarks.programs import Need, Program, running, walle_run, whole_lines
from benchmarks.provenance import write_json
from benchmarks.turns import Launch, charged_to_compiling, present, rotated

BASELINE = "walle"

Options = argparse.Namespace
POLL_S = 0.1


class Mark(NamedTuple):
    """The steps and the return of a run after a round, `at_s` seconds after the command."""

    at_s: float
    env_steps: int
    return_mean: float | None


class Lap(NamedTuple):
    """A run of a contestant."""

    name: str  # of the contestant
    seed: int
    completed: bool  # the run ended without an error within the time
    total_s: float  # seconds from the command to the end of the process
    launch: Launch | None  # times of the start; None if no round ended
    marks: list[Mark]  # one for each round

    def reached(self, return_mean: float) -> float:
        """The seconds to a return; infinite if the run did not reach it."""
        found = (m.at_s for m in self.marks if (m.return_mean or -math.inf) >= return_mean)
        return next(found, math.inf)

    def stepped(self, env_steps: int) -> float:
        """The seconds to a number of steps; infinite if the run did not reach it."""
        return next((m.at_s for m in self.marks if m.env_steps >= env_steps), math.inf)

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        launch = self.launch._asdict() if self.launch else None
        return {**self._asdict(), "launch": launch}


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
        "ours": lineup.ours(),
        "zoo": lineup.zoo(),
        "cleanrl": lineup.cleanrl(),
        "sample-factory": lineup.sample_factory_mujoco(),
    }
    if any(racer.need is None and racer.name != "walle-cold" for racer in racers):
        fill_cache(options, cores)
    laps: list[Lap] = []
    report |= {"laps": [], "race": {}}
    for seed in range(options.seeds):
        for racer in rotated(racers, seed):
            laps.append(lap(racer, seed, options.limit_s))
            print(described(laps[-1]), flush=True)
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
    yield Racer("walle-small", walle(options, cores, experiment="small_minibatches"))
    for name, library, settings in (
        ("sb3-zoo", "sb3", lineup.zoo()),
        ("sb3-cleanrl", "sb3", lineup.cleanrl()),
        ("sb3-ours", "sb3", lineup.ours()),
        ("sbx-zoo", "sbx", lineup.zoo()),
        ("sbx-ours", "sbx", lineup.ours()),
    ):

        def start(seed: int, _: Path, library: str = library, settings: Any = settings) -> Program:
            return peer(options, library, settings, cores, seed=seed, steps=options.steps)

        yield Racer(name, start, needed(options, library))

    def factory(seed: int, directory: Path) -> Program:
        settings, steps = lineup.sample_factory_mujoco(), options.steps
        return sample_factory(options, settings, cores, directory, seed=seed, steps=steps)

    yield Racer("sample-factory", factory, needed(options, "sample-factory"))


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
    """Fills the cache of compiled code with a short run."""
    settings = default_walle(options.task, 2048, len(cores), 0, 0)
    settings |= {"algo.compile": "true", "eval.episodes": "0"}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = Program(walle_run(settings, directory), cores, threads=None)
        with running(program, directory) as process:
            if process.wait():
                raise SystemExit(f"walle cannot run:\n{(directory / 'stderr').read_text()}")


def lap(racer: Racer, seed: int, limit_s: float) -> Lap:
    """Runs a program until its end or the time limit."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        begin = time.monotonic()
        with running(racer.program(seed, directory), directory) as process:
            marks = followed(process, directory / racer.log, begin, limit_s)
            total_s = time.monotonic() - begin
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


def pace(marks: Sequence[Mark]) -> float:
    """The seconds a step after the first round; 0 for a single round."""
    steps = marks[-1].env_steps - marks[0].env_steps
    return (marks[-1].at_s - marks[0].at_s) / steps if steps else 0.0


def summary(laps: Sequence[Lap], returns: Sequence[float], steps: int) -> dict[str, dict[str, Any]]:
    """Medians over the seeds; None if most seeds did not reach the return."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(each.name for each in laps):
        mine = [each for each in laps if each.name == name]
        finals = [each.marks[-1].return_mean for each in mine if each.marks]
        launches = [each.launch for each in mine if each.launch]
        found[name] = {
            "seeds": len(mine),
            "to_return": {str(r): times([each.reached(r) for each in mine]) for r in returns},
            "to_steps": times([each.stepped(steps) for each in mine]),
            "whole": times([each.total_s if each.completed else math.inf for each in mine]),
            "final_returns": finals,
            **{f: median([getattr(each, f) for each in launches]) for f in Launch._fields},
        }
    return found


def times(seconds: Sequence[float]) -> dict[str, Any]:
    """The median and all values; None for a return that was not reached."""
    each = [s if math.isfinite(s) else None for s in seconds]
    return {"median_s": median(seconds), "seconds": each}


def median(values: Sequence[float]) -> float | None:
    """The median; None without values, or if it is infinite."""
    middle = statistics.median_low(values) if values else math.inf
    return middle if math.isfinite(middle) else None


def described(found: Lap) -> str:
    """A line about a run."""
    last = found.marks[-1] if found.marks else Mark(0.0, 0, None)
    mean = "none" if last.return_mean is None else f"{last.return_mean:,.0f}"
    end = "" if found.completed else ", not to the end"
    return (
        f"{found.name} seed {found.seed}: {last.env_steps:,} steps, return {mean}, "
        f"{found.total_s:.1f} s{end}"
    )


def table(found: Mapping[str, Mapping[str, Any]], returns: Sequence[float], steps: int) -> str:
    """The table of median seconds; brackets hold the ratio to walle's."""
    names = columns(returns, steps)
    head = "".join(f"{name:>17}" for name in names)
    lines = [f"{'':<18}{head}{'start-up':>10}{'compiling':>10}{'final':>8}"]
    base = places(found[BASELINE]) if BASELINE in found else [None] * len(names)
    for name, r in found.items():
        cells = "".join(f"{cell(*both):>17}" for both in zip(places(r), base, strict=True))
        ends = [mean for mean in r["final_returns"] if mean is not None]
        final = f"{statistics.mean(ends):,.0f}" if ends else "-"
        start = f"{cell(r['startup_s']):>10}{cell(r['compile_s']):>10}"
        lines.append(f"{name:<18}{cells}{start}{final:>8}")
    return "\n".join([*lines, *best_peers(found, returns)])


def ranges(found: Mapping[str, Mapping[str, Any]], returns: Sequence[float], steps: int) -> str:
    """The table of the least and the greatest seconds over the seeds."""
    head = "".join(f"{name:>17}" for name in columns(returns, steps))
    lines = [f"{'over the seeds':<18}{head}"]
    for name, row in found.items():
        spans = "".join(f"{span(one['seconds']):>17}" for one in timed(row))
        lines.append(f"{name:<18}{spans}")
    return "\n".join(lines)


def span(seconds: Sequence[float | None]) -> str:
    """The least and the greatest: "8.1-9.3 s"; "from 8.1 s" where a seed did not get there."""
    known = [one for one in seconds if one is not None]
    if not known:
        return "-"
    if len(known) < len(seconds):
        return f"from {min(known):.1f} s"
    return f"{min(known):.1f}-{max(known):.1f} s"


def columns(returns: Sequence[float], steps: int) -> list[str]:
    """The names of the columns with seconds."""
    return [*(f"to {r:,.0f}" for r in returns), f"{steps:,} steps", "whole process"]


def timed(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The seconds of a contestant, in the order of the columns."""
    return [*row["to_return"].values(), row["to_steps"], row["whole"]]


def places(row: Mapping[str, Any]) -> list[float | None]:
    """The medians, in the order of the columns."""
    return [found["median_s"] for found in timed(row)]


def cell(seconds: float | None, base: float | None = None) -> str:
    """A cell with seconds and their ratio to `base`."""
    if seconds is None:
        return "-"
    ratio = f" ({seconds / base:.2f})" if base else ""
    return f"{seconds:.1f} s{ratio}"


def best_peers(found: Mapping[str, Mapping[str, Any]], returns: Sequence[float]) -> list[str]:
    """A sentence for each return: walle, the quickest peer, the ratio."""
    sentences = []
    for r in returns:
        medians = {name: row["to_return"][str(r)]["median_s"] for name, row in found.items()}
        peers = {name: s for name, s in medians.items() if not name.startswith(BASELINE)}
        ours = medians.get(BASELINE)
        if not ours or not peers:
            continue
        best = min(
            (name for name in peers if peers[name]), key=lambda name: peers[name], default=""
        )
        if not best:
            sentences.append(f"return {r:,.0f}: {BASELINE} {ours:.1f} s; no peer reached it")
            continue
        sentences.append(
            f"return {r:,.0f}: {BASELINE} {ours:.1f} s; the quickest peer, {best}, "
            f"{peers[best]:.1f} s, {peers[best] / ours:.2f} times that"
        )
    return sentences
