"""Milliseconds of a round that neither more samplers nor more learners shorten, by section.

    python benchmarks/serial.py --json serial.json
    python benchmarks/serial.py [OVERRIDE ...] --rounds 20480 --samplers 1 2 --learners 1 2

PPO on HalfCheetah in lock-step, without evaluations and checkpoints. Every number of samplers is
measured with every number of learners; they take turns, so that a disturbance of the machine
affects all. Each number is a median over the rounds of all turns.

What samplers divide (their work) and what learners divide (values and gradients) is fitted as
t(N, L) = serial + collect x + learn y, with the largest shares x of the lanes and y of a
minibatch's shards that a process has. All other sections are serial; they are given with the most
processes, as some grow with these. Waits for the last sampler, or for another learner, are those
with one of each; what they are longer with more is the machine's, whose cores are unequal or
disturbed. Sections marked * pass while the samplers collect: they make a round longer only where
collecting takes less, so the sum leaves them out. A fit of whole rounds, the last line, takes every
wait for a serial part. `walle plan` computes rounds with other numbers of processes.

The sum stands with the lowest and the highest that one turn of each setting gives. It is a small
difference of long times: one setting that is 1% slower moves it by half a percent of a round.

Between the turns independent work runs on each core alone and on all at once. What it loses is the
machine's doing, and the fit cannot tell it from a serial part; the last line says how much it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.answers import answering, asked
from benchmarks.at_once import slowdown_on
from benchmarks.options import core_count, parser_of, positive
from benchmarks.provenance import ROOT, provenance, write_json
from benchmarks.serial_worker import (
    COLLECTING,
    DIVIDED,
    LAST_LEARNER,
    LAST_SAMPLER,
    REST,
    WHILE_COLLECTING,
)
from walle.analysis.measuring.laws import RoundParts, Shares, fit_parts, largest_share
from walle.config import compose
from walle.errors import ConfigError

WORKER = ROOT / "benchmarks" / "serial_worker.py"
WHOLE = "whole round"
FITTED, WAITS = (COLLECTING, DIVIDED), (LAST_SAMPLER, LAST_LEARNER)
COMMON = (
    *("env=halfcheetah", "sampler=process", "sampler.max_lag=0"),
    *("eval.episodes=0", "checkpoint.every=null", "logger.progress=quiet"),
)


class Setting(NamedTuple):
    """Numbers of processes."""

    samplers: int
    learners: int

    def __str__(self) -> str:
        return f"{self.samplers} x {self.learners}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every size of a round, prints a table of each, writes JSON on request."""
    args = arguments(argv)
    settings = [Setting(*each) for each in product(args.samplers, args.learners)]
    cores = max(max(setting) for setting in settings)
    report: dict[str, Any] = {"provenance": provenance({}), "rounds": {}}
    with answering(sys.executable, WORKER, cores) as process, slowdown_on(cores) as slow:
        for size in args.rounds:
            config = checked(overrides(args, size, settings[0]))
            turns, slowdown = measured(args, process, slow, size, settings)
            rounds = {s: [each for turn in turns for each in turn[s]] for s in settings}
            shares = {s: shares_of(s, config.lanes, config.shards) for s in settings}
            found = sections(rounds, shares)
            sums = [total_s(sections(turn, shares)) for turn in turns]
            report["rounds"][size] = {
                "lanes": config.lanes,
                "minibatch": config.algo.minibatch_size,
                "shards": config.shards,
                "sections": {
                    name: {
                        "seconds": {str(setting): s for setting, s in section.seconds.items()},
                        "parts": section.parts._asdict() if section.parts else None,
                        "serial_s": section.serial_s,
                    }
                    for name, section in found.items()
                },
                "sum_s": total_s(found),
                "sum_of_turns_s": sums,
                "measured": {str(s): each for s, each in rounds.items()},
                "slowdown_at_once": slowdown,
            }
            print(table(size, config, found, settings, sums))
            print(of_the_machine(slowdown, cores, found[WHOLE].seconds[settings[0]]), flush=True)
            write_json(args.json, report)
    return 0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=positive, nargs="+", default=[2048, 20_480, 65_536])
    parser.add_argument("--samplers", type=core_count, nargs="+", default=[1, 2])
    parser.add_argument("--learners", type=core_count, nargs="+", default=[1, 2])
    parser.add_argument("--minibatch", type=positive, default=1024)
    parser.add_argument("--each", type=positive, default=8, help="rounds of a turn that count")
    parser.add_argument("--warmup", type=positive, default=2, help="rounds of a turn that do not")
    parser.add_argument("--repeats", type=positive, default=3, help="turns of each")
    parser.add_argument("overrides", nargs="*", help="settings of the runs")
    args = parser.parse_args(argv)
    for name in ("samplers", "learners"):
        if len(set(getattr(args, name))) < 2:
            parser.error(f"--{name} needs two different numbers, to tell what they divide")
    return args


def checked(settings: Sequence[str]) -> Any:
    """The configuration of these settings.

    Raises:
        SystemExit: with the reason, if they cannot work.
    """
    try:
        return compose(settings)
    except ConfigError as error:
        raise SystemExit(str(error)) from None


def overrides(args: argparse.Namespace, size: int, setting: Setting) -> list[str]:
    """The settings of a run with rounds of `size` steps."""
    counts = (f"sampler.n={setting.samplers}", f"learner.n={setting.learners}")
    shards = f"learner.shards={max(args.learners)}"
    steps = f"total_steps={size * (args.warmup + args.each)}"
    rounds = (f"batch_size={size}", f"algo.minibatch_size={args.minibatch}", steps)
    compiled = "algo.compile=true"  # as in a long run
    return [*COMMON, *rounds, compiled, shards, *counts, *args.overrides]


def measured(
    args: argparse.Namespace,
    process: Any,
    slow: Callable[[], list[float]],
    size: int,
    settings: Sequence[Setting],
) -> tuple[list[dict[Setting, list[dict[str, float]]]], list[float]]:
    """The seconds of each section of every round, by turns of all settings; and the slowdowns."""
    turns: list[dict[Setting, list[dict[str, float]]]] = []
    slowdown: list[float] = []
    for _ in range(args.repeats):
        turns.append({})
        for setting in settings:
            slowdown += slow()
            told = {"overrides": overrides(args, size, setting), "warmup": args.warmup}
            turns[-1][setting] = asked(process, json.dumps(told))["rounds"]
    return turns, slowdown


def of_the_machine(slowdown: Sequence[float], cores: int, whole_s: float) -> str:
    """What independent work lost, and the serial part that it looks like.

    Work of W seconds that `cores` cores divide, each `lost` slower, takes W (1 + lost) / cores:
    as with a serial part S of S + (W - S) / cores, so S = W lost / (cores - 1).
    """
    lost = statistics.median(slowdown) - 1
    low, high = min(slowdown), max(slowdown)
    return (
        f"independent work on {cores} cores at once took {1 + lost:.2f} times as long as alone "
        f"({low:.2f} to {high:.2f}); that alone looks like a serial part of "
        f"{1e3 * whole_s * max(0.0, lost) / (cores - 1):.0f} ms\n"
    )


def shares_of(setting: Setting, lanes: int, shards: int) -> Shares:
    """The largest shares of a process in so many lanes and shards."""
    return Shares(largest_share(lanes, setting.samplers), largest_share(shards, setting.learners))


class Section(NamedTuple):
    """A section of a round."""

    seconds: dict[Setting, float]  # the median in each setting
    parts: RoundParts | None  # what divides it; None if nothing does
    serial_s: float  # seconds that no process shortens


def sections(
    rounds: Mapping[Setting, Sequence[Mapping[str, float]]], shares: Mapping[Setting, Shares]
) -> dict[str, Section]:
    """The sections of a round, in their order, and the whole round."""
    found = {}
    for name in [*next(iter(rounds.values()))[0], WHOLE]:
        values = {
            setting: [_whole(r) if name == WHOLE else r[name] for r in mine]
            for setting, mine in rounds.items()
        }
        seconds = {setting: statistics.median(mine) for setting, mine in values.items()}
        parts = None
        serial_s = seconds[min(seconds) if name in WAITS else max(seconds)]
        if name in (*FITTED, WHOLE):
            parts = _fitted(name, {shares[setting]: s for setting, s in seconds.items()})
            serial_s = parts.serial
        found[name] = Section(seconds, parts, serial_s)
    return found


def total_s(found: Mapping[str, Section]) -> float:
    """The serial seconds of all sections but those that pass while the samplers collect."""
    left_out = (WHOLE, *WHILE_COLLECTING)
    return sum(section.serial_s for name, section in found.items() if name not in left_out)


def _whole(round_: Mapping[str, float]) -> float:
    """The seconds of a round; what passes while the samplers collect is in their sections."""
    return sum(s for name, s in round_.items() if name not in WHILE_COLLECTING)


def _fitted(name: str, seconds: Mapping[Shares, float]) -> RoundParts:
    """The fit; collecting knows nothing of the learners, nor learning of the samplers."""
    fixed = {COLLECTING: {"learner": 1.0}, DIVIDED: {"sampler": 1.0}}.get(name, {})
    return fit_parts([share._replace(**fixed) for share in seconds], list(seconds.values()))


def table(
    size: int,
    config: Any,
    found: Mapping[str, Section],
    settings: Sequence[Setting],
    sums: Sequence[float],
) -> str:
    """The table of a size of rounds, in milliseconds; `sums` are those of the turns."""
    total = total_s(found)
    title = (
        f"rounds of {size:,} steps, minibatches of {config.algo.minibatch_size:,} in "
        f"{config.shards} shards, {config.lanes} lanes; milliseconds, samplers x learners"
    )
    heads = "".join(f"{setting!s:>10}" for setting in settings)
    lines = [title, f"{'':<26}{heads}{'serial':>10}"]
    for name, section in found.items():
        mark = "*" if name in WHILE_COLLECTING else ""
        lines.append(_line(name + mark, section, settings, mark))
        if name == REST:
            lines.append(
                f"{'sum of the sections':<26}{'':{10 * len(settings)}}{_ms(total)}"
                f" ({1e3 * min(sums):.2f} to {1e3 * max(sums):.2f} by turns)"
            )
    return "\n".join([*lines, ""])


def _line(name: str, section: Section, settings: Sequence[Setting], mark: str) -> str:
    cells = "".join(_ms(section.seconds[setting]) for setting in settings)
    serial = f"{'(' + _ms(section.serial_s).strip() + ')':>10}" if mark else _ms(section.serial_s)
    return f"{name:<26}{cells}{serial}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:>10.2f}"


if __name__ == "__main__":
    sys.exit(main())
