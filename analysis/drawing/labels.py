"""Names lines by what differs between them, and axes by what their columns hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from walle.analysis.comparing.matching import WORKERS
from walle.analysis.loading.directories import Run, Scalar
from walle.analysis.loading.repeats import identical_groups, identical_label
from walle.analysis.measuring.cells import learnt
from walle.analysis.measuring.design import NAMING_LEAVES, design
from walle.analysis.runs import Sweep

COLUMNS = {
    ("iterations", "return_mean"): "return, mean of the\nlast 100 episodes",
    ("eval", "return_mean"): "return, mean of\nan evaluation",
    ("iterations", "env_steps"): "environment steps",
    ("iterations", "round_steps"): "environment steps\nof an iteration",
    ("eval", "env_steps"): "environment steps",
    ("episodes", "env_steps"): "environment steps",
}

BASELINE = "baseline"
NUMBER = re.compile(rf"({'|'.join(key.split('.')[-1] for key in WORKERS)})( =)? \d+")


class Label(NamedTuple):
    """The words that tell a line from the others, without what all runs share and the task.

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


Groups = dict[tuple[str, Label], list[str]]  # the names of the runs, by task and label


def task_of(run: Run) -> str:
    """The name of a run's environment."""
    return str(run.config.get("env.id", run.config.get("env.name", "")))


def of_runs(sweep: Sweep, by: str) -> dict[str, Label]:
    """The label of each run; runs that share task and label are repeats."""
    tasks = {run.name: task_of(run) for run in sweep.runs}
    varies = len(set(sweep.values(by))) > 1
    found = {}
    for run, value, line, _ in design(sweep, by).itertuples(index=False):
        others = [part for part in line.split(", ") if part and part != tasks[run]]
        own = of_value(by, value) if varies and str(value) != tasks[run] else ""
        found[run] = Label(own, ", ".join(others))
    return found


def of_value(key: str, value: Scalar) -> str:
    """`n = 1`, but `ppo` where the key's last part only says that the value is a name."""
    leaf = key.split(".")[-1]
    return str(value) if leaf in (*NAMING_LEAVES, "sweep") else f"{leaf} = {value}"


def groups(sweep: Sweep, by: str | None) -> Groups:
    """The names of the runs of each line, by task and label; without `by` of a baseline."""
    tasks = {run.name: task_of(run) for run in sweep.runs}
    label_of = of_runs(sweep, by or "seed")
    if by is None:
        label_of = {run: Label(BASELINE, label.others) for run, label in label_of.items()}
    found: Groups = {}
    for run, label in label_of.items():
        found.setdefault((tasks[run], label), []).append(run)
    return found


def merged(
    sweep: Sweep, found: Groups, frame: pd.DataFrame, y: str
) -> tuple[Groups, dict[tuple[str, Label], tuple[str, ...]]]:
    """The groups, with those of a task in one that learnt the same; of each seed one run counts.

    Beside them stand the labels of those that are in one.
    """
    rows = learnt(frame, y)
    seeds = {run.name: run.config.get("seed", "") for run in sweep.runs}
    once: Groups = {}
    same: dict[tuple[str, Label], tuple[str, ...]] = {}
    for task in dict.fromkeys(task for task, _ in found):
        mine = {label.text: runs for (of, label), runs in found.items() if of == task}
        full = {label.text: label for of, label in found if of == task}
        series = {
            text: {seeds[run]: rows[run] for run in runs if run in rows}
            for text, runs in mine.items()
        }
        for texts in identical_groups(series):
            every = [run for text in texts for run in mine[text]]
            longest = sorted(every, key=lambda run: -len(rows.get(run, ())))
            one = {seeds[run]: run for run in reversed(longest)} if len(texts) > 1 else {}
            label = full[texts[0]] if len(texts) == 1 else Label(one_text(texts, list(full)))
            once[task, label] = list(one.values()) or every
            if len(texts) > 1:
                same[task, label] = tuple(texts)
    return once, same


def one_text(together: Sequence[str], every: Sequence[str]) -> str:
    """One label for identical lines, without what does not matter to any of them.

    Numbers of processes do not, where the lines with all of these numbers are identical: `n = 1,
    a2c` and `n = 2, a2c` are `a2c`. Otherwise all labels stand there.
    """
    parts = [text.split(", ") for text in together]
    common = [part for part in parts[0] if all(part in other for other in parts)]
    rest = {part for own in parts for part in own} - set(common)
    alike = [text for text in every if set(common) <= set(text.split(", ")) | {""}]
    if all(NUMBER.fullmatch(part) for part in rest) and len(alike) == len(together):
        return ", ".join(common)
    return identical_label(together)


def of_column(file: str, column: str) -> str:
    """The label of a column of FILE.csv, with its unit in brackets."""
    if (file, column) in COLUMNS:
        return COLUMNS[file, column]
    if column.endswith("_per_s"):
        return f"{column.removesuffix('_per_s').replace('_', ' ')} (1/s)"
    if column.endswith("_s"):
        return f"{column.removesuffix('_s').replace('_', ' ')} (s)"
    return column.replace("_", " ")
