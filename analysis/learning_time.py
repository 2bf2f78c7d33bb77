"""Seconds of learning per iteration, against the number of samplers or learners."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis import cli, seconds
from analysis.runs import Sweep

LEARNING = seconds.Quantity("learn_s", "learning per iteration (s)", divides=False)


def study(
    sweep: Sweep,
    *,
    by: str = "sampler.n",
    warmup: int = 1,
    paper: bool = False,
    log: bool = False,
) -> cli.Study:
    """Mean learn_s at every value of `by` (`sampler.n`, `learner.n`, ...), with 95% intervals."""
    return seconds.study(sweep, LEARNING, by=by, warmup=warmup, paper=paper, log=log)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--paper", action="store_true", help="overlay the papers' own points")
    parser.add_argument("--log", action="store_true", help="logarithmic axes")
    args = parser.parse_args(argv)
    return cli.run(
        args,
        "learning_time",
        lambda sweep: study(sweep, by=args.by, warmup=args.warmup, paper=args.paper, log=args.log),
    )


if __name__ == "__main__":
    sys.exit(main())
