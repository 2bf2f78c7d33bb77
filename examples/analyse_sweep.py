"""Analyses a sweep in Python: three lines give a table, a few more give your own figure.

    python examples/analyse_sweep.py [SWEEP_DIR]

Every frame is a pandas table with one row for each iteration, episode, or iteration of a process.
Configuration keys that differ between the runs are columns.
"""

from __future__ import annotations

import sys

from walle.analysis import speedup
from walle.analysis.drawing import style
from walle.analysis.runs import BadInputError, load


def main(directories: list[str]) -> int:
    """Prints two tables and draws one figure into the working directory."""
    try:
        sweep = load(*directories)  # none: the newest under ./multirun
    except BadInputError as error:
        print(error, file=sys.stderr)
        return 2
    seconds = sweep.iterations.groupby("sampler.n")[["collect_s", "learn_s", "iteration_s"]].mean()
    print(seconds.round(4))

    # `timing` has a row for each process and iteration, and a column for each section of time.
    samplers = sweep.timing[sweep.timing["process"] != "agent"]
    sections = ["act_s", "env_step_s", "send_s", "wait_policy_s", "wait_slot_s"]
    print(samplers.groupby("sampler.n")[sections].mean().round(4))

    # A script's function returns a figure, the table behind it, and sentences about it.
    with style.paper():
        try:
            study = speedup.study(sweep, warmup=1)
        except BadInputError as error:
            print(f"no speedup: {error}")
            return 0
        study.figure.axes[0].set_title("my sweep")
        study.figure.savefig("my_speedup.png")
    print(*study.sentences, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
