"""The same work for all contestants: seconds to collect a number of steps and learn from them."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import hyperparameters
from benchmarks.lineup import needed, peer, same_in_walle, sample_factory
from benchmarks.programs import Program, walle_run
from benchmarks.provenance import write_json
from benchmarks.ratios import compared, shown, spread
from benchmarks.turns import Block, Entry, WalleRounds, in_turn, lined_up, present, rate

BASELINE = "walle"
UNIT = "times_walle"
FOREVER = 10**12


def run(options: argparse.Namespace, cores: list[int], report: dict[str, Any]) -> None:
    """Measures; adds `rounds` and the peers' hyperparameters to the report."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        entries = present(everyone(options, cores, directory), options.only)
        with lined_up(entries, directory) as contestants:
            turns = in_turn(contestants, options.repetitions, options.samples)
            found = summary(turns, options.samples)
            for contestant in contestants:
                step_s = found[contestant.name]["median_s"] / options.samples
                found[contestant.name] |= contestant.launch(step_s)._asdict()
    report["hyperparameters"] = hyperparameters.same(options.samples, options.envs)
    report["rounds"] = found
    print(table(found, f"{options.task}: {options.samples:,} steps collected and learned from"))
    write_json(options.json, report)


def everyone(options: argparse.Namespace, cores: Sequence[int], directory: Path) -> Iterator[Entry]:
    """All contestants, including those that are not installed."""
    for name, max_lag in ((BASELINE, 0), ("walle-overlapped", 1)):
        settings = same_in_walle(options.task, options.samples, len(cores), max_lag)
        program = Program(walle_run(settings, directory / name), cores, threads=None)
        yield Entry(name, [program], WalleRounds)
    same = hyperparameters.same(options.samples, options.envs)
    for name, library, settings in (
        ("sb3", "sb3", same),
        ("sbx", "sbx", same),
        ("sb3-cleanrl", "sb3", hyperparameters.cleanrl()),
    ):
        program = peer(options, library, settings, cores, seed=0, steps=FOREVER)
        yield Entry(name, [program], need=needed(options, library))
    told = hyperparameters.sample_factory_same(options.samples)
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
