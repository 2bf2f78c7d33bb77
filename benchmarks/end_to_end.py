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
                  -wide with +experiment=wide (race)
sb3, sbx          Stable-Baselines3 and SBX; -zoo: the Zoo's settings; -ours: walle's
sb3-cleanrl       CleanRL's settings, in SB3 (CleanRL is no library that could be installed)
sample-factory    the nearest settings it has (rounds), its MuJoCo example (race)

The peers need separate environments: benchmarks/requirements.txt and
benchmarks/requirements-sample-factory.txt.
Missing peers are left out with a message.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import race, rounds
from benchmarks.options import core_count, duration, positive
from benchmarks.provenance import provenance


def main(argv: Sequence[str] | None = None) -> int:
    """Measures all contestants, prints tables, writes JSON."""
    options = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the contestants keep running
    pythons = {"peers": options.peers, "sample-factory": options.sample_factory}
    report: dict[str, Any] = {"provenance": provenance(pythons), "settings": plain(options)}
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    {"rounds": rounds.run, "race": race.run}[options.what](options, cores, report)
    return 0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--task", default="HalfCheetah-v5", help="any id that env=gym takes")
    common.add_argument(
        "--cores", type=core_count, default=2, help="N: samplers, and what peers may use"
    )
    common.add_argument("--only", nargs="+", help="contestants, by the beginning of their names")
    common.add_argument("--threads", type=positive, default=1, help="torch's, in SB3")
    common.add_argument("--peers", help="the python that has Stable-Baselines3 and SBX")
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


def plain(options: argparse.Namespace) -> dict[str, Any]:
    """The options that decide the measurement, as plain values."""
    return {k: v for k, v in vars(options).items() if k not in ("json", "peers", "sample_factory")}


if __name__ == "__main__":
    sys.exit(main())
