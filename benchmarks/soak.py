"""Kills random processes of runs at random moments, and compares what the runs learned.

    python benchmarks/soak.py [--kills 200] [--learners 2] [--json soak.json] [OVERRIDE ...]

Every run trains HalfCheetah with three samplers and --learners learners. One process of it gets
SIGKILL: a sampler, a learner, the fork server, and every fifth time the agent. Every second kill
comes in the seconds after the last round. A run that ends by its kill is resumed. Each must end as
completed, and the last line of its iterations.csv must have the learning columns of a run that
nobody disturbed. A run that ends before its kill does not count.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.options import parser_of
from benchmarks.programs import RUN, read_csv
from benchmarks.provenance import provenance, write_json
from walle.system.run_files import read_status

SETTINGS = (
    "env=halfcheetah",
    "sampler.n=3",
    "batch_size=1024",
    "total_steps=16384",
    "algo.epochs=2",
    "algo.compile=false",
    "eval.every=6144",
    "eval.episodes=2",
    "checkpoint.every=4096",
    "logger.progress=quiet",
)
AGENT_EVERY = 5
LIMIT_S = 300


class Kill(NamedTuple):
    """One run that was disturbed: who was killed, and whether it learned the same all the same."""

    victim: str
    late: bool  # whether `after_s` counts from the end of the last round, not from the start
    after_s: float
    same: bool
    note: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a run learned anything else, or could not be completed."""
    parser = parser_of(__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the victims and the moments")
    parser.add_argument("overrides", nargs="*", help="further settings of the run")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"provenance": provenance({})}
    learners = [f"learner.{key}={options.learners}" for key in ("n", "shards")]
    settings = [*SETTINGS, *learners, *options.overrides]
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        kills = soak(settings, Path(name), options.kills, rng)
    report["kills"] = [kill._asdict() for kill in kills]
    print(table(kills))
    write_json(options.json, report)
    return 0 if all(kill.same for kill in kills) else 1


def soak(settings: Sequence[str], directory: Path, count: int, rng: random.Random) -> list[Kill]:
    """Disturbs `count` runs, one after the other."""
    run = start(settings, directory / "unbroken")
    since = until_work(run)
    run.wait(LIMIT_S)
    working_s = time.monotonic() - since
    ending_s = time.time() - (directory / "unbroken" / "iterations.csv").stat().st_mtime
    expected, rounds = learned(directory / "unbroken"), rounds_of(directory / "unbroken")
    span_s = {False: working_s, True: ending_s}
    kills: list[Kill] = []
    for attempt in range(3 * count):
        if len(kills) == count:
            break
        place = directory / str(attempt)
        agent = len(kills) % AGENT_EVERY == AGENT_EVERY - 1
        late = len(kills) % 2 == 1
        after_s = rng.uniform(0, span_s[late])
        after_round = rounds if late else 0
        kill = disturbed(settings, place, rng, after_s, agent=agent, after_round=after_round)
        if not kill.victim:  # the processes end earlier than those of the first run
            span_s[late] *= 0.8
        else:
            same = learned(place) == expected and is_completed(place)
            kills.append(kill._replace(late=late, same=same))
            print(f"{len(kills):>4} {kills[-1]}", flush=True)
    return kills


def until_work(run: subprocess.Popen[bytes]) -> float:
    """Waits until the run has processes to kill; returns the time."""
    while run.poll() is None and not workers(run.pid):
        time.sleep(0.01)
    return time.monotonic()


def start(settings: Sequence[str], directory: Path) -> subprocess.Popen[bytes]:
    """Starts a run, whose messages go to a file beside its directory."""
    command = [*RUN, *settings]
    if f"resume={directory}" not in settings:
        command.append(f"hydra.run.dir={directory}")
    with directory.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def disturbed(
    settings: Sequence[str],
    directory: Path,
    rng: random.Random,
    after_s: float,
    *,
    agent: bool,
    after_round: int,
) -> Kill:
    """Runs with one kill; a run that ends by it is resumed."""
    run, victim = start(settings, directory), ""
    died = until_work(run) + after_s
    if after_round:
        while run.poll() is None and rounds_of(directory) < after_round:
            time.sleep(0.01)
        died = time.monotonic() + after_s
    while run.poll() is None and time.monotonic() < died:
        time.sleep(0.01)
    if run.poll() is None:
        victim = kill_one(run.pid, rng, agent=agent)
    code = run.wait(LIMIT_S)
    note = ""
    if code and is_completed(directory):
        note = f"exit {code}, completed"
    elif code:
        note = f"exit {code}, resumed"
        again = [f"resume={directory}"] if (directory / "run.json").exists() else settings
        code = start(again, directory).wait(LIMIT_S)
        note += f" to exit {code}" if code else ""
    return Kill(victim, False, round(after_s, 3), False, note)


def kill_one(pid: int, rng: random.Random, *, agent: bool) -> str:
    """Sends SIGKILL to the agent or to another process; returns whom, "" if nobody was there."""
    if agent:
        os.kill(pid, signal.SIGKILL)
        return "agent"
    found = workers(pid)
    if not found:
        return ""
    process = rng.choice(sorted(found, key=lambda each: each.pid))
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return ""
    return found[process]


def workers(pid: int) -> dict[psutil.Process, str]:
    """The processes of the run besides its agent, and what they are."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        try:
            line = " ".join(process.cmdline())
            if "resource_tracker" not in line and process.status() != psutil.STATUS_ZOMBIE:
                found[process] = "fork server" if process.name() == "walle-server" else "worker"
        except psutil.NoSuchProcess:
            continue
    return found


def is_completed(directory: Path) -> bool:
    """Whether the run has ended with all its records."""
    return read_status(directory).get("state") == "completed"


def rounds_of(directory: Path) -> int:
    """The number of rounds in iterations.csv."""
    path = directory / "iterations.csv"
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def learned(directory: Path) -> dict[str, str] | None:
    """The last line of iterations.csv without times; None if there is none."""
    rows = read_csv(directory / "iterations.csv")
    timed = ("_s", "_share")
    return {k: v for k, v in rows[-1].items() if not k.endswith(timed)} if rows else None


def table(kills: Sequence[Kill]) -> str:
    """How many runs of each kind learned the same."""
    asked = Counter(kill.victim for kill in kills)
    same = Counter(kill.victim for kill in kills if kill.same)
    lines = [
        f"{same[victim]:>4} of {count:>4} the same: {victim}" for victim, count in asked.items()
    ]
    resumed = sum("resumed" in kill.note for kill in kills)
    return "\n".join([*lines, f"{resumed} runs ended by the kill and were resumed"])


if __name__ == "__main__":
    sys.exit(main())
