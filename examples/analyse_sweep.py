"""A sweep in a notebook: three lines to a table, a few more to a figure of your own.

    python examples/analyse_sweep.py [SWEEP_DIR]

Every frame has one row an iteration, episode or process-iteration, with the configuration keys that
differ between the runs as columns: from there it is plain pandas.
"""

from __future__ import annotations

import sys
from pathlib import Path

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

    # Where does a sampler's time go? One row a process and iteration, sections in columns.
    samplers = sweep.timing[sweep.timing["process"] != "agent"]
    sections = ["act_s", "env_step_s", "send_s", "wait_policy_s", "wait_slot_s"]
    print(samplers.groupby("sampler.n")[sections].mean().round(4))

    # The scripts' figures are functions: a figure, the table behind it, and what it says.
    with style.paper():
        try:
            study = speedup.study(sweep, warmup=1)
        except BadInputError as error:
            print(f"no speedup: {error}")
            return 0
        study.figure.axes[0].set_title("my sweep")
        style.save(study.figure, Path("my_speedup.png"))
    print(*study.sentences, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
