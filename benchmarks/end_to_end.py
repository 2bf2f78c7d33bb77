"""Collection and learning together: walle compared with other systems, on HalfCheetah.

    python benchmarks/end_to_end.py rounds --peers PEERS/bin/python --sample-factory SF/bin/python
    python benchmarks/end_to_end.py race --seeds 3 --peers PEERS/bin/python --json race.json

rounds  the same PPO for all: seconds for 20,000 environment steps, collected and learned from in
        10 epochs of minibatches of 64. Contestants take turns (benchmarks/turns.py); starting and
        compiling are over before the first turn, and shown apart.
race    walle's default configuration next to the peers' recommended ones: seconds from the command
        to a mean return of the last 100 training episodes, to all steps, to the end of the process.
        Whole programs run one after the other, one seed a repetition; the order rotates.

walle             python -m walle.run; -overlapped with sampler.max_lag=1; -cold: nothing compiled;
                  -small with +experiment=small_minibatches (race)
sb3, sbx          Stable-Baselines3 and SBX in one thread; -zoo: the Zoo's settings; -ours: walle's;
                  -threads: N threads; -subproc: these and a process for each environment (rounds)
sb3-cleanrl       CleanRL's settings, in SB3 (CleanRL is no library that could be installed)
sample-factory    the nearest settings it has (rounds), its MuJoCo example (race)

The peers need separate environments: benchmarks/requirements.txt and
benchmarks/requirements-sample-factory.txt.
Missing peers are left out with a message.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import lineup, race
from benchmarks.lineup import needed, peer, same_in_walle, sample_factory
from benchmarks.options import add_peers, core_count, duration, positive
from benchmarks.programs import Program, walle_run
from benchmarks.provenance import provenance, write_json
from benchmarks.ratios import compared, shown, spread
from benchmarks.turns import Block, Entry, WalleRounds, in_turn, lined_up, present, rate
from walle.system.machine import usable_cores

BASELINE = "walle"
UNIT = "times_walle"
FOREVER = 10**12
TURN_S = 5.0  # the least: several rounds of walle, of which the first two do not count


def main(argv: Sequence[str] | None = None) -> int:
    """Measures all contestants, prints tables, writes JSON."""
    options = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the contestants keep running
    pythons = {"peers": options.peers, "sample-factory": options.sample_factory}
    apart = ("json", "peers", "sample_factory")
    settings = {key: value for key, value in vars(options).items() if key not in apart}
    report: dict[str, Any] = {"provenance": provenance(pythons), "settings": settings}
    cores = usable_cores()[: options.cores]
    {"rounds": run_rounds, "race": race.run}[options.what](options, cores, report)
    return 0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    add_peers(common, "Stable-Baselines3 and SBX")
    common.add_argument("--task", default="HalfCheetah-v5", help="any id that env=gym takes")
    common.add_argument(
        "--cores", type=core_count, default=2, help="N: samplers, and what peers may use"
    )
    common.add_argument("--sample-factory", help="the python that has Sample Factory")
    common.add_argument("--json", type=Path, help="where to write everything")
    commands = parser.add_subparsers(dest="what", required=True)
    turns = commands.add_parser("rounds", parents=[common], help="seconds of equal work")
    turns.add_argument("--repetitions", type=positive, default=5)
    turns.add_argument("--samples", type=positive, default=20_000, help="of a round")
    turns.add_argument("--envs", type=positive, default=8, help="of SB3 and SBX")
    whole = commands.add_parser("race", parents=[common], help="seconds to a return")
    whole.add_argument("--seeds", type=positive, default=1)
    whole.add_argument("--steps", type=positive, default=1_000_000)
    whole.add_argument("--returns", type=float, nargs="+", default=[1000, 2000, 3000])
    whole.add_argument("--limit-s", type=duration, default=900, help="a run's end, if sooner")
    return parser.parse_args(argv)


def run_rounds(options: argparse.Namespace, cores: list[int], report: dict[str, Any]) -> None:
    """Measures; adds `rounds` and the peers' hyperparameters to the report."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        entries = present(everyone(options, cores, directory), options.only)
        with lined_up(entries, directory) as contestants:
            turns = in_turn(contestants, options.repetitions, options.samples, TURN_S)
            found = summary(turns, options.samples)
            for contestant in contestants:
                step_s = found[contestant.name]["median_s"] / options.samples
                found[contestant.name] |= contestant.launch(step_s)._asdict()
    report["hyperparameters"] = lineup.same(options.samples, options.envs)
    report["rounds"] = found
    print(table(found, f"{options.task}: {options.samples:,} steps collected and learned from"))
    write_json(options.json, report)


def everyone(options: argparse.Namespace, cores: Sequence[int], directory: Path) -> Iterator[Entry]:
    """All contestants, including those that are not installed."""
    for name, max_lag in ((BASELINE, 0), ("walle-overlapped", 1)):
        settings = same_in_walle(options.task, options.samples, len(cores), max_lag)
        program = Program(walle_run(settings, directory / name), cores, threads=None)
        yield Entry(name, [program], WalleRounds)
    same = lineup.same(options.samples, options.envs)
    rest = {"cores": cores, "seed": 0, "steps": FOREVER}
    for library in ("sb3", "sbx"):
        for name, threads, vector in (
            (library, 1, "dummy"),
            (f"{library}-threads", len(cores), "dummy"),
            (f"{library}-subproc", len(cores), "subproc"),
        ):
            program = peer(options, library, same, threads=threads, vector=vector, **rest)
            yield Entry(name, [program], need=needed(options, library))
    program = peer(options, "sb3", lineup.cleanrl(), **rest)
    yield Entry("sb3-cleanrl", [program], need=needed(options, "sb3"))
    told = lineup.sample_factory_same(options.samples)
    program = sample_factory(options, told, cores, directory, seed=0, steps=FOREVER)
    yield Entry("sample-factory", [program], need=needed(options, "sample-factory"))


def summary(
    turns: Mapping[str, Sequence[Sequence[Block]]], samples: int
) -> dict[str, dict[str, Any]]:
    """The seconds for `samples` steps of each turn, and their ratios to walle's."""
    seconds = {name: [samples / rate(blocks) for blocks in mine] for name, mine in turns.items()}
    times = compared(seconds, BASELINE, UNIT)
    return {
        name: {"seconds": mine, **spread(mine, "s"), **times.get(name, {})}
        for name, mine in seconds.items()
    }


def table(found: Mapping[str, Mapping[str, Any]], title: str) -> str:
    """The table of all contestants."""
    head = (
        f"{'median':>9}  {'range':>15}  {'/ walle (range)':>22}  {'start-up':>8}  {'compiling':>9}"
    )
    lines = [title, f"{'':<18}{head}"]
    for name, r in found.items():
        span = f"{r['min_s']:.2f}-{r['max_s']:.2f} s"
        lines.append(
            f"{name:<18}{r['median_s']:>7.2f} s  {span:>15}  {shown(r, UNIT):>22}  "
            f"{r['startup_s']:>6.1f} s  {r['compile_s']:>7.1f} s"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
