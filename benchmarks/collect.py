"""How fast experience is collected, next to MuJoCo alone and to other systems.

    python benchmarks/collect.py --peers PEERS/bin/python --sample-factory SF/bin/python

Every contestant is a program of its own that collects for ever on the same cores. All are started,
then stopped by SIGSTOP; in turn, `--repetitions` times, each is let go on for `--steps` steps. So
whatever else the machine does meets all alike, and nobody's start-up counts.

limit              N pinned processes looping mj_step(model, data, frame_skip) on recorded actions
walle              python -m walle.run with N pinned samplers; its collect_s alone, not its learning
one-sampler        walle with sampler.n=1 and everything else equal
envpool-*          EnvPool on N threads, synchronous or not, with the same policy in torch
sb3-*              Stable-Baselines3's PPO.collect_rollouts
gymnasium-*        Gymnasium's vector environments with the same policy in torch
sample-factory     Sample Factory end to end: it collects while it learns

Peers are installed apart: benchmarks/requirements.txt, benchmarks/requirements-sample-factory.txt.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ROOT / "benchmarks" / "contestants"
TASKS = [
    "HalfCheetah",
    "Hopper",
    "Walker2d",
    "Swimmer",
    "Reacher",
    "Pusher",
    "Ant",
    "Humanoid",
    "HumanoidStandup",
    "InvertedPendulum",
    "InvertedDoublePendulum",
]
PACKAGES = [
    "walle",
    "gymnasium",
    "mujoco",
    "numpy",
    "torch",
    "envpool",
    "stable-baselines3",
    "sample-factory",
]  # whose versions are written down
START_UP_S = 180
POLL_S = 0.5  # looking more often would take part of a core from whoever needs both
_SINGLE_THREADED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Block(NamedTuple):
    """A stretch of collecting by one of a contestant's processes."""

    worker: int
    steps: int
    seconds: float


class Program(NamedTuple):
    """A command, and the cores it may use."""

    command: list[str]
    cores: list[int]


class Contestant:
    """Programs that collect for ever and write down how far they got."""

    def __init__(self, name: str, programs: list[Program], directory: Path) -> None:
        """Starts the programs, which report on their standard output."""
        self.name = name
        self.directory = directory
        self.directory.mkdir()
        self._since_s = time.monotonic()
        self._files = [directory / f"{i}.jsonl" for i in range(len(programs))]
        self._errors = directory / "stderr"
        self._running = [
            self._start(program, file) for program, file in zip(programs, self._files, strict=True)
        ]

    def _start(self, program: Program, file: Path) -> subprocess.Popen[bytes]:
        with file.open("wb") as out, self._errors.open("ab") as errors:
            return subprocess.Popen(
                program.command,
                cwd=ROOT,
                stdout=out,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, **dict.fromkeys(_SINGLE_THREADED, "1")},
                preexec_fn=lambda: os.sched_setaffinity(0, program.cores),
            )

    @property
    def workers(self) -> int:
        """How many processes report."""
        return len(self._running)

    def signal(self, number: int) -> None:
        """To all its processes, children included."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, number)

    def resume(self) -> None:
        """Goes on; what it began before is not counted."""
        self._since_s = time.monotonic()
        self.signal(signal.SIGCONT)

    def pause(self) -> None:
        """Stops in the middle of whatever it does."""
        self.signal(signal.SIGSTOP)

    def end(self) -> None:
        """Ends all its processes and waits for those started here."""
        self.signal(signal.SIGKILL)
        for process in self._running:
            process.wait()

    def blocks(self) -> list[Block]:
        """What was begun and ended since `resume`."""
        return [
            Block(worker, steps, end - start)
            for worker, file in enumerate(self._files)
            for steps, start, end in map(json.loads, whole_lines(file))
            if start >= self._since_s
        ]

    def check(self, deadline_s: float = math.inf) -> None:
        """Fails with the program's own words if one has ended, or if it is too late."""
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{self.name} collected nothing in {START_UP_S} s")
        for process in self._running:
            if process.poll() is not None:
                words = self._errors.read_text()[-2000:]
                raise SystemExit(f"{self.name} ended with {process.returncode}:\n{words}")


class WalleRun(Contestant):
    """A real run: its iterations.csv says how long each round took to collect."""

    def blocks(self) -> list[Block]:
        """The rounds since `resume`, without the first, during which the run stood still."""
        return self._rounds()[self._seen + 1 :]

    def resume(self) -> None:
        """Goes on; what it began before is not counted."""
        self._seen = len(self._rounds())
        super().resume()

    _seen = 0

    def _rounds(self) -> list[Block]:
        rows = list(csv.DictReader(whole_lines(self.directory / "run" / "iterations.csv")))
        steps = [int(row["env_steps"]) for row in rows]
        taken = [after - before for before, after in zip([0, *steps], steps, strict=False)]
        return [Block(0, n, float(row["collect_s"])) for n, row in zip(taken, rows, strict=True)]


def whole_lines(file: Path) -> list[str]:
    """The lines that are complete; none while there is no file."""
    if not file.exists():
        return []
    return file.read_text().rpartition("\n")[0].splitlines()


def main() -> int:
    """Measures, prints, writes."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the contestants would stay
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    found: dict[str, dict[str, list[float]]] = {}
    for task in options.tasks:
        env_id = task if "-v" in task else f"{task}-v5"
        found[env_id] = measure_task(env_id, cores, options)
        print(table(env_id, found[env_id]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(provenance(options, cores, found), indent=1) + "\n")
        print(f"written: {options.json}")
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="names; -v5 unless they say")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300_000, help="of a contestant's turn")
    parser.add_argument("--seconds", type=float, default=3.0, help="a turn's end, if sooner")
    parser.add_argument("--cores", type=int, default=2, help="N: samplers, threads, processes")
    parser.add_argument("--only", nargs="+", help="contestants, by the beginning of their names")
    parser.add_argument("--lanes", type=int, default=256, help="walle's and the limit's, in all")
    parser.add_argument("--batch-size", type=int, default=20_480, help="of walle's rounds")
    parser.add_argument("--envs", type=int, default=8, help="of SB3 and of Gymnasium's vectors")
    parser.add_argument("--peers", help="the python that has EnvPool and Stable-Baselines3")
    parser.add_argument("--sample-factory", help="the python that has Sample Factory")
    parser.add_argument("--json", type=Path, help="where to write everything")
    return parser.parse_args()


def measure_task(env_id: str, cores: list[int], options: argparse.Namespace) -> Any:
    """Rates in steps per second of every contestant, one a repetition."""
    with tempfile.TemporaryDirectory() as directory:
        contestants: list[Contestant] = []
        try:
            for name, programs, kind in line_up(env_id, cores, options, Path(directory)):
                contestants.append(started(kind(name, programs, Path(directory) / name)))
            return in_turn(contestants, options)
        finally:
            for contestant in contestants:
                contestant.end()


def started(contestant: Contestant) -> Contestant:
    """Waits until it has collected something, then pauses it."""
    deadline = time.monotonic() + START_UP_S
    try:
        while len({block.worker for block in contestant.blocks()}) < contestant.workers:
            contestant.check(deadline)
            time.sleep(0.05)
        contestant.pause()
    except BaseException:
        contestant.end()
        raise
    return contestant


def in_turn(contestants: list[Contestant], options: argparse.Namespace) -> dict[str, list[float]]:
    """Lets each go on in turn; every repetition begins with another one."""
    rates: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for repetition in range(options.repetitions):
        first = repetition % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            rates[contestant.name].append(turn(contestant, options.steps, options.seconds))
    return rates


def turn(contestant: Contestant, steps: int, seconds: float) -> float:
    """One turn; returns steps per second, summed over the contestant's processes."""
    with going(contestant):
        begin = time.monotonic()
        while True:
            time.sleep(POLL_S)
            blocks = contestant.blocks()
            enough = sum(block.steps for block in blocks) >= steps
            if not enough and time.monotonic() - begin < seconds:
                continue
            if len({block.worker for block in blocks}) == contestant.workers:
                return rate(blocks)
            contestant.check(begin + START_UP_S)


@contextmanager
def going(contestant: Contestant) -> Iterator[None]:
    """Only in the body."""
    contestant.resume()
    try:
        yield
    finally:
        contestant.pause()


def rate(blocks: list[Block]) -> float:
    """The sum over workers of steps / seconds."""
    total = 0.0
    for worker in {block.worker for block in blocks}:
        own = [block for block in blocks if block.worker == worker]
        total += sum(block.steps for block in own) / sum(block.seconds for block in own)
    return total


Entry = tuple[str, list[Program], Callable[[str, list[Program], Path], Contestant]]


def line_up(
    env_id: str, cores: list[int], options: argparse.Namespace, directory: Path
) -> Iterator[Entry]:
    """The contestants asked for whose python is given."""
    for name, programs, kind in everyone(env_id, cores, options, directory):
        if options.only and not name.startswith(tuple(options.only)):
            continue
        if programs[0].command[0]:
            yield name, programs, kind


def everyone(
    env_id: str, cores: list[int], options: argparse.Namespace, directory: Path
) -> Iterator[Entry]:
    """Name, programs and class of each."""
    n, own, peers = len(cores), sys.executable, options.peers or ""

    def loop(python: str, file: str, *arguments: object) -> list[str]:
        return [python, "-W", "ignore", str(LOOPS / file), env_id, *map(str, arguments)]

    limits = [
        Program(loop(own, "limit.py", "--lanes", options.lanes // n, "--seed", i), [core])
        for i, core in enumerate(cores)
    ]
    yield "limit", limits, Contestant
    for name, samplers in (("walle", n), ("one-sampler", 1)):
        command = walle(env_id, samplers, options, directory / name / "run")
        yield name, [Program(command, cores)], WalleRun
    for envs in (32, 64):
        pool = loop(peers, "envpool_loop.py", "--envs", envs, "--threads", n)
        yield f"envpool-{envs}", [Program(pool, cores)], Contestant
    yield "envpool-async", [Program([*pool, "--asynchronous"], cores)], Contestant
    for vector in ("dummy", "subproc"):
        command = loop(peers, "sb3_loop.py", "--envs", options.envs, "--vector", vector)
        yield f"sb3-{vector}", [Program(command, cores)], Contestant
    for vector in ("sync", "async"):
        command = loop(peers, "gym_vector.py", "--envs", options.envs, "--vector", vector)
        yield f"gymnasium-{vector}", [Program(command, cores)], Contestant
    factory = loop(options.sample_factory or "", "sample_factory_loop.py", "--workers", n)
    yield "sample-factory", [Program(factory, cores)], Contestant


def walle(env_id: str, samplers: int, options: argparse.Namespace, directory: Path) -> list[str]:
    """A lock-step run whose policy stays what it was: the physics stays that of the others."""
    settings = {
        "env": "gym",
        "env.id": env_id,
        "sampler.n": samplers,
        "sampler.lanes": options.lanes,
        "sampler.pin": "true",
        "batch_size": options.batch_size,
        "total_steps": 10**12,
        "algo.epochs": 1,
        "algo.minibatch_size": options.batch_size,
        "algo.learning_rate": 1e-12,
        "algo.recompute_advantages": "false",
        "eval.every": "null",
        "checkpoint.every": "null",
        "logger.progress": "quiet",
        "hydra.run.dir": directory,
    }
    return [sys.executable, "-m", "walle.run", *(f"{k}={v}" for k, v in settings.items())]


def table(env_id: str, rates: dict[str, list[float]]) -> str:
    """Medians, their spread, and the ratio to the limit within each repetition."""
    lines = [f"{env_id:<32}{'steps/s':>10}{'min':>10}{'max':>10}   of the limit (min-max)"]
    for name, values in rates.items():
        share = ""
        if "limit" in rates:
            ratios = [r / limit for r, limit in zip(values, rates["limit"], strict=True)]
            share = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        middle = statistics.median(values)
        lines.append(
            f"  {name:<30}{middle:>10,.0f}{min(values):>10,.0f}{max(values):>10,.0f}   {share}"
        )
    return "\n".join(lines)


def provenance(options: argparse.Namespace, cores: list[int], found: Any) -> dict[str, Any]:
    """Everything that was found, and where, when and with what."""
    pythons = {
        "walle": sys.executable,
        "peers": options.peers,
        "sample-factory": options.sample_factory,
    }
    return {
        "command": " ".join(sys.argv),
        "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": cpu_model(), "cores": cores, "system": platform.platform()},
        "load_average": os.getloadavg(),
        "versions": {name: versions(python) for name, python in pythons.items() if python},
        "settings": {k: v for k, v in vars(options).items() if isinstance(v, int | float)},
        "steps_per_s": found,
    }


def cpu_model() -> str:
    """As the kernel calls it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def versions(python: str) -> dict[str, str]:
    """What that python has of `PACKAGES`."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "have = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in "
        "m.distributions()}\n"
        "print(json.dumps({'python': sys.version.split()[0], "
        "**{p: have[p] for p in sys.argv[1:] if p in have}}))"
    )
    run = subprocess.run([python, "-c", code, *PACKAGES], capture_output=True, check=True)
    return dict(json.loads(run.stdout))


if __name__ == "__main__":
    sys.exit(main())
