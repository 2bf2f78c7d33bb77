"""One PPO update: walle eager, compiled, with the peers' work, with learners; SB3; SBX; products.

    python benchmarks/learn.py --peers PEERS/bin/python --json learn.json
    python benchmarks/learn.py --minibatches 64 --widths 64 --repeats 5

20,000 rows, 10 epochs, actor and critic of 17 inputs and 6 actions, one core. `walle-same` is
walle-compiled with the peers' hyperparameters: by default walle estimates its advantages again
before every epoch and normalises observations and rewards, which the peers' updates do not. With
`--learners k` one learner takes minibatches of k shards, and k learners do so on k cores. All
contestants exist at the same time and take turns, so that a disturbance of the machine affects all;
compiling ends before the first turn of a case. A contestant takes at least two turns of a case, and
no more once its turns have lasted `--seconds` in all; a ratio is that of a turn, of which the table
has the median and the range. `jax-scan` is the update in one compiled call: lax.scan over the
minibatches of all epochs. `mkl` and `openblas` are the matrix products of the same gradient steps
alone, by torch.mm and by NumPy. The peers need a separate environment (benchmarks/requirements.txt)
and are left out without `--peers`. Each case is printed and written as soon as it is over.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.answers import PEERS, Contestant, answering, asked, contestants
from benchmarks.options import add_peers, duration, parser_of, positive
from benchmarks.provenance import ROOT, provenance, write_json
from benchmarks.ratios import add_ratios, shown, spread

WORKER = ROOT / "benchmarks" / "learn_worker.py"
FEWEST_TURNS = 2
BASELINE, SAME = "walle-compiled", "walle-same"
OWN = (
    *(Contestant(name, name) for name in ("mkl", "openblas", "walle-eager", BASELINE)),
    Contestant(SAME, BASELINE, same=True),
)
OTHERS = {**PEERS, "jax-scan": "jax"}
RATIOS = {BASELINE: "times_walle_compiled", SAME: "times_walle_same"}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every case, prints a table of each, writes JSON on request."""
    args = arguments(argv)
    report: dict[str, Any] = {"provenance": provenance({"peers": args.peers}), "cases": []}
    with ExitStack() as stack:
        processes = {
            contestant: stack.enter_context(
                answering(
                    args.peers if contestant.system in OTHERS else sys.executable,
                    WORKER,
                    contestant.learners,  # as many cores
                )
            )
            for contestant in contestants(args, OWN, BASELINE, OTHERS)
        }
        for width in args.widths:
            for minibatch in args.minibatches:
                case = measure(args, processes, minibatch, width)
                report["cases"].append(case)
                print(table(case), flush=True)
                write_json(args.json, report)
    return 0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = parser_of(__doc__)
    add_peers(parser, "SB3, SBX and JAX")
    parser.add_argument("--minibatches", type=positive, nargs="+", default=[64, 256, 1000, 4096])
    parser.add_argument("--widths", type=positive, nargs="+", default=[64, 256])
    parser.add_argument("--samples", type=positive, default=20_000)
    parser.add_argument("--epochs", type=positive, default=10)
    parser.add_argument("--repeats", type=positive, default=5, help="turns of each, at most")
    parser.add_argument("--seconds", type=duration, default=5.0, help="of one's turns in a case")
    parser.add_argument("--learners", type=positive, nargs="*", default=[2])
    return parser.parse_args(argv)


def measure(
    args: argparse.Namespace,
    processes: Mapping[Contestant, subprocess.Popen[str]],
    minibatch: int,
    width: int,
) -> dict[str, Any]:
    """The seconds of an update of every contestant in every turn."""
    case = {"minibatch": minibatch, "width": width, "samples": args.samples, "epochs": args.epochs}
    hello = {
        contestant: asked(process, json.dumps({**contestant._asdict(), **case}))
        for contestant, process in processes.items()
    }
    turns: dict[Contestant, list[dict[str, float]]] = {contestant: [] for contestant in processes}
    for _ in range(args.repeats):
        for contestant, mine in turns.items():
            if has_turn(mine, args.seconds):
                mine.append(asked(processes[contestant], "go"))
    steps = args.epochs * -(-args.samples // minibatch)
    results = {c.name: {**hello[c], **summary(mine, steps)} for c, mine in turns.items()}
    add_ratios(results, RATIOS)
    return {**case, "steps": steps, "results": results}


def has_turn(turns: Sequence[Mapping[str, float]], seconds: float) -> bool:
    """Whether a contestant takes another turn after these turns."""
    return len(turns) < FEWEST_TURNS or sum(turn["update_s"] for turn in turns) < seconds


def summary(turns: list[dict[str, float]], steps: int) -> dict[str, Any]:
    """The median, the range, microseconds a step, and seconds of CPU, which vary less."""
    seconds = [turn["update_s"] for turn in turns]
    found = spread(seconds, "s")
    return {
        "seconds": seconds,
        "cpu_seconds": [turn["cpu_s"] for turn in turns],
        "cpu_median_s": statistics.median(turn["cpu_s"] for turn in turns),
        **found,
        "us_a_step": 1e6 * found["median_s"] / steps,
    }


def table(case: Mapping[str, Any]) -> str:
    """The table of a case."""
    title = (
        f"minibatch {case['minibatch']}, nets {case['width']}x{case['width']}: "
        f"{case['samples']:,} samples, {case['epochs']} epochs, {case['steps']:,} steps"
    )
    head = f"{'update':>9}  {'range':>15}  {'a step':>9}  {'/ walle (range)':>18}"
    head += f"  {'/ same (range)':>18}"
    head += f"  {'CPU':>9}  set-up"
    lines = [title, f"{'':>18}  {head}"]
    for name, r in case["results"].items():
        span = f"{r['min_s']:.3f}-{r['max_s']:.3f} s"
        ratios = "  ".join(f"{shown(r, unit):>18}" for unit in RATIOS.values())
        lines.append(
            f"{name:>18}  {r['median_s']:7.3f} s  {span:>15}  {r['us_a_step']:6.0f} us  "
            f"{ratios}  {r['cpu_median_s']:7.3f} s  {r['setup_s']:.1f} s"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
