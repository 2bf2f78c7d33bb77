"""Names lines by what differs between them, and axes by what their columns hold."""

from __future__ import annotations

from typing import NamedTuple

from walle.analysis.loading.directories import Run, Scalar
from walle.analysis.measuring.design import NAMING_LEAVES, design, sort_key
from walle.analysis.runs import Sweep

COLUMNS = {
    ("iterations", "return_mean"): "return, mean of the\nlast 100 episodes",
    ("eval", "return_mean"): "return, mean of an evaluation",
    ("iterations", "env_steps"): "environment steps",
    ("eval", "env_steps"): "environment steps",
    ("episodes", "env_steps"): "environment steps",
}


class Label(NamedTuple):
    """What tells a line from the others; without what all runs share, and without the task.

    Attributes:
        value: of the key that the figure compares by, such as `n = 1` or `ppo`; may be ''.
        others: the values of other keys that differ, such as `a2c`; may be ''.
    """

    value: str
    others: str = ""

    @property
    def text(self) -> str:
        """Both parts."""
        return ", ".join(part for part in self if part)


def task_of(run: Run) -> str:
    """The name of a run's environment."""
    return str(run.config.get("env.id", run.config.get("env.name", "")))


def of_runs(sweep: Sweep, by: str) -> dict[str, Label]:
    """The label of each run; runs that share task and label are repeats."""
    tasks = {run.name: task_of(run) for run in sweep.runs}
    found = {}
    for run, value, line, _ in design(sweep, by).itertuples(index=False):
        others = [part for part in line.split(", ") if part and part != tasks[run]]
        own = of_value(by, value) if by in sweep.varying and str(value) != tasks[run] else ""
        found[run] = Label(own, ", ".join(others))
    return found


def of_value(key: str, value: Scalar) -> str:
    """`n = 1`, but `ppo` where the key's last part only says that the value is a name."""
    leaf = key.split(".")[-1]
    return str(value) if leaf in (*NAMING_LEAVES, "sweep") else f"{leaf} = {value}"


def of_values(key: str, values: list[Scalar]) -> str:
    """One label for several values, as in `n = 1, 2`."""
    return of_value(key, ", ".join(map(str, sorted(set(values), key=sort_key))))


def of_column(file: str, column: str) -> str:
    """What a column of FILE.csv holds, with its unit in brackets."""
    if (file, column) in COLUMNS:
        return COLUMNS[file, column]
    if column.endswith("_per_s"):
        return f"{column.removesuffix('_per_s').replace('_', ' ')} (1/s)"
    if column.endswith("_s"):
        return f"{column.removesuffix('_s').replace('_', ' ')} (s)"
    return column.replace("_", " ")
