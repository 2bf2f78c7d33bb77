"""Seconds of experience collection per iteration, against the number of samplers."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis import cli, seconds
from analysis.runs import Sweep

COLLECTION = seconds.Quantity("collect_s", "collection per iteration (s)", divides=True)


def study(
    sweep: Sweep,
    *,
    by: str = "sampler.n",
    warmup: int = 1,
    paper: bool = False,
    log: bool = False,
) -> cli.Study:
    """Mean collect_s at every value of `by`, beside the ideal 1/n, with 95% intervals."""
    return seconds.study(sweep, COLLECTION, by=by, warmup=warmup, paper=paper, log=log)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--paper", action="store_true", help="overlay the papers' own points")
    parser.add_argument("--log", action="store_true", help="logarithmic axes")
    args = parser.parse_args(argv)
    return cli.run(
        args,
        "rollout_time",
        lambda sweep: study(sweep, by=args.by, warmup=args.warmup, paper=args.paper, log=args.log),
    )


if __name__ == "__main__":
    sys.exit(main())
