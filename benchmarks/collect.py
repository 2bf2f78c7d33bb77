"""The speed of collection, compared with MuJoCo alone and with other systems.

    python benchmarks/collect.py --peers PEERS/bin/python --sample-factory SF/bin/python

Every contestant is a separate program that collects for ever on the same cores. The contestants
take turns (benchmarks/turns.py): each one runs `--repetitions` times for `--steps` steps.

limit              N pinned processes looping mj_step(model, data, frame_skip) on recorded actions
walle              python -m walle.run with N pinned samplers; only its collect_s counts
one-sampler        walle with sampler.n=1 and everything else equal
envpool-*          EnvPool on N threads, synchronous or not, with the same policy in torch
sb3-*              Stable-Baselines3's PPO.collect_rollouts
gymnasium-*        Gymnasium's vector environments with the same policy in torch
sample-factory     Sample Factory end to end: it collects while it learns

The peers need separate environments: benchmarks/requirements.txt and
benchmarks/requirements-sample-factory.txt.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.lineup import TASKS, default_walle
from benchmarks.options import add_peers, core_count, duration, parser_of, positive
from benchmarks.programs import Need, Program, loop, walle_run
from benchmarks.provenance import provenance, write_json
from benchmarks.ratios import compared, shown
from benchmarks.turns import Entry, WalleRun, in_turn, lined_up, present, rate
from walle.system.machine import usable_cores

LIMIT, WALLE = "limit", "walle"


def main(argv: list[str] | None = None) -> int:
    """Measures all contestants, prints a table, writes JSON."""
    options = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the contestants keep running
    cores = usable_cores()[: options.cores]
    found: dict[str, dict[str, list[float]]] = {}
    pythons = {"peers": options.peers, "sample-factory": options.sample_factory}
    report: dict[str, Any] = {
        "provenance": provenance(pythons),
        "settings": {k: v for k, v in vars(options).items() if isinstance(v, int | float)},
        "steps_per_s": found,
    }
    for task in options.tasks:
        env_id = task if "-v" in task else f"{task}-v5"
        found[env_id] = measure_task(env_id, cores, options)
        print(table(env_id, found[env_id]), flush=True)
        write_json(options.json, report)
    return 0


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="names; -v5 unless they say")
    parser.add_argument("--repetitions", type=positive, default=5)
    parser.add_argument("--steps", type=positive, default=300_000, help="of a contestant's turn")
    parser.add_argument("--seconds", type=duration, default=3.0, help="a turn's end, if sooner")
    parser.add_argument("--cores", type=core_count, default=2, help="N: samplers and the like")
    parser.add_argument("--lanes", type=positive, default=256, help="of walle and the limit")
    parser.add_argument("--batch-size", type=positive, default=20_480, help="of walle's rounds")
    parser.add_argument("--envs", type=positive, default=8, help="of SB3, of Gymnasium's vectors")
    add_peers(parser, "EnvPool and Stable-Baselines3")
    parser.add_argument("--sample-factory", help="the python that has Sample Factory")
    return parser.parse_args(argv)


def measure_task(
    env_id: str, cores: list[int], options: argparse.Namespace
) -> dict[str, list[float]]:
    """The rates of every contestant in steps per second, one for each repetition."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        entries = present(everyone(env_id, cores, options, directory), options.only)
        with lined_up(entries, directory) as contestants:
            turns = in_turn(contestants, options.repetitions, options.steps, most_s=options.seconds)
    return {name: [rate(blocks) for blocks in mine] for name, mine in turns.items()}


def everyone(
    env_id: str, cores: list[int], options: argparse.Namespace, directory: Path
) -> Iterator[Entry]:
    """All contestants, including those that are not installed."""
    n = len(cores)
    limits = [
        Program(loop(sys.executable, "limit.py", env_id, lanes=options.lanes // n, seed=i), [core])
        for i, core in enumerate(cores)
    ]
    yield Entry(LIMIT, limits)
    for name, samplers in ((WALLE, n), ("one-sampler", 1)):
        command = walle_run(walle(env_id, samplers, options), directory / name)
        yield Entry(name, [Program(command, cores)], WalleRun)
    yield from peers(env_id, cores, options)


def peers(env_id: str, cores: list[int], options: argparse.Namespace) -> Iterator[Entry]:
    """The contestants from other projects."""
    n = len(cores)

    def entry(name: str, package: str, system: str, *flags: str, **arguments: object) -> Entry:
        command = loop(options.peers, "collect_loop.py", system, env_id, *flags, **arguments)
        need = Need(options.peers, (package, "mujoco"), "--peers")
        return Entry(name, [Program(command, cores)], need=need)

    for envs in (32, 64, 256):
        yield entry(f"envpool-{envs}", "envpool", "envpool", envs=envs, threads=n)
    for name, envs in (("envpool-async", 64), ("envpool-async-256", 256)):
        yield entry(name, "envpool", "envpool", "--asynchronous", envs=envs, threads=n)
    for package, system, vectors in (
        ("stable-baselines3", "sb3", ("dummy", "subproc")),
        ("gymnasium", "gymnasium", ("sync", "async")),
    ):
        for vector in vectors:
            arguments = {"envs": options.envs, "vector": vector}
            yield entry(f"{system}-{vector}", package, system, **arguments)
    factory = loop(options.sample_factory, "sample_factory_loop.py", env_id, workers=n)
    need = Need(options.sample_factory, ("sample-factory", "mujoco"), "--sample-factory")
    yield Entry("sample-factory", [Program(factory, cores)], need=need)


def walle(env_id: str, samplers: int, options: argparse.Namespace) -> dict[str, object]:
    """A lock-step run with a constant policy, so that its physics costs as much as the others'."""
    return {
        **default_walle(env_id, 10**12, samplers, max_lag=0, seed=0),
        "sampler.lanes": options.lanes,
        "sampler.pin": "true",
        "batch_size": options.batch_size,
        "algo.epochs": 1,
        "algo.minibatch_size": options.batch_size,
        "algo.learning_rate": 1e-12,
        "algo.recompute_advantages": "false",
        "eval.episodes": "0",
        "checkpoint.every": "null",
    }


def table(env_id: str, rates: dict[str, list[float]]) -> str:
    """Medians with their range; shares of the limit, and walle's multiple, within each turn."""
    step_s = {name: [1 / rate for rate in values] for name, values in rates.items()}
    multiples = compared(step_s, WALLE, "walle_is")
    shares = compared(rates, LIMIT, "share")
    lines = [
        f"{env_id:<28}{'steps/s':>9}{'min':>9}{'max':>9}{'of the limit (range)':>22}"
        f"{'walle is (range)':>20}"
    ]
    for name, values in rates.items():
        share = shown(shares.get(name, {}), "share")
        multiple = shown(multiples.get(name, {}), "walle_is")
        lines.append(
            f"  {name:<26}{statistics.median(values):>9,.0f}{min(values):>9,.0f}"
            f"{max(values):>9,.0f}{share:>22}{multiple:>20}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
