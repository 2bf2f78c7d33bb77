"""Labels lines by what differs between them and axes by their columns; lays out task panels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.measuring.groups import Cell, design, lines, require, value_text
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Run, Scalar, Sweep
from walle.analysis.writing.format import joined

COLUMNS = {
    ("iterations", "return_mean"): "return, mean of the\nlast 100 episodes",
    ("iterations", "training_return"): "return in training,\nmean of a window",
    ("eval", "return_mean"): "return, mean of\nan evaluation",
    ("iterations", "round_steps"): "environment steps\nof an iteration",
}

BASELINE = "baseline"
NUMBER = re.compile(r"(learner\.)?n( =)? \d+")  # of samplers or learners


class Label(NamedTuple):
    """The words that distinguish a line from the others, without the task."""

    value: str  # of the key that the figure compares by, such as `n = 1` or `ppo`; may be ''
    others: str = ""  # the values of other keys that differ, such as `a2c`; may be ''
    same: tuple[str, ...] = ()  # the labels of the identical lines that are drawn as this one

    @property
    def text(self) -> str:
        """Both parts."""
        return joined((self.value, self.others))


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
        own = value_text(by, value, " = ") if varies and str(value) != tasks[run] else ""
        found[run] = Label(own, without_task(line, tasks[run]))
    return found


def groups(sweep: Sweep, by: str | None, runs: Iterable[Run]) -> Groups:
    """The names of the runs of each line, by task and label; `by` is None for a baseline."""
    tasks = {run.name: task_of(run) for run in runs}
    found: Groups = {}
    for run, label in of_runs(sweep, by or "seed").items():
        if run not in tasks:
            continue
        named = label if by else label._replace(value=BASELINE)
        found.setdefault((tasks[run], named), []).append(run)
    return found


def merged(
    sweep: Sweep, by: str | None, frame: pd.DataFrame, y: str, *, final: bool = False
) -> Groups:
    """Like `groups`, but merges groups of a task that learnt the same, with one run per seed.

    For `final` scores, running runs are left out, and runs of different lengths are not the same.
    """
    separate = groups(sweep, by, sweep.scored if final else sweep.learning)
    once: Groups = {}
    for task in dict.fromkeys(task for task, _ in separate):
        mine = {label.text: (label, runs) for (of, label), runs in separate.items() if of == task}
        runs_of = {text: runs for text, (_, runs) in mine.items()}
        for texts in learnt_alike(sweep, frame, ["env_steps", y], runs_of, whole=final):
            label, runs = mine[texts[0]]
            if len(texts) > 1:
                label = Label(one_text(texts, list(mine)), same=tuple(texts))
                runs = one_per_seed(sweep, frame, (run for text in texts for run in mine[text][1]))
            once[task, label] = runs
    return once


def one_per_seed(sweep: Sweep, frame: pd.DataFrame, runs: Iterable[str]) -> list[str]:
    """One run for each seed: the one with the most rows in `frame`, or the first of several."""
    seeds = {run.name: run.config.get("seed", "") for run in sweep.runs}
    rows = frame["run"].value_counts()
    longest = sorted(runs, key=lambda run: -rows.get(run, 0))
    return list({seeds[run]: run for run in reversed(longest)}.values())


def one_text(together: Sequence[str], every: Sequence[str]) -> str:
    """One label for identical lines, without the process counts that make no difference.

    A process count makes no difference if the lines with every such count are identical: `n = 1,
    a2c` and `n = 2, a2c` become `a2c`. Otherwise all labels are listed.
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
    for ending, unit in (("_per_s", " (1/s)"), ("_s", " (s)")):
        if column.endswith(ending):
            return column.removesuffix(ending).replace("_", " ") + unit
    return "environment steps" if column == "env_steps" else column.replace("_", " ")


def learnt_alike(
    sweep: Sweep,
    frame: pd.DataFrame,
    columns: list[str],
    runs_of: Mapping[str, Iterable[str]],
    *,
    whole: bool = False,
) -> list[list[str]]:
    """The labels, grouped if their runs have equal values in `columns` for each task and seed."""
    require(frame, *columns)
    rows = dict(iter(frame.groupby(frame["run"].astype(str))))
    known = {run.name: (task_of(run), run.config.get("seed", "")) for run in sweep.runs}
    series: dict[str, dict[Any, FloatArray]] = {label: {} for label in runs_of}
    for label, mine in series.items():
        for run in runs_of[label]:
            if run in rows:
                number = sum(key[:-1] == known[run] for key in mine)
                mine[*known[run], number] = rows[run][columns].to_numpy(float)
    return identical_groups(series, whole=whole)


def identical_groups(
    learnt: Mapping[str, Mapping[Any, FloatArray]], *, whole: bool = False
) -> list[list[str]]:
    """The labels of `learnt`, grouped if their runs learnt the same at every seed they share."""

    def alike(mine: Mapping[Any, FloatArray], group: list[str]) -> bool:
        # Compared as far as the shorter one goes, unless `whole`. With the same seed the first row
        # is the same, whatever is learnt from it.
        pairs = [(mine[s], learnt[o][s]) for o in group for s in mine if s in learnt[o]]
        if whole and any(len(a) != len(b) for a, b in pairs):
            return False
        cut = [(a[: len(b)], b[: len(a)]) for a, b in pairs]
        same = all(len(a) and np.array_equal(a, b, equal_nan=True) for a, b in cut)
        return same and any(np.isfinite(a[1:]).all(axis=1).any() for a, _ in cut)

    groups: list[list[str]] = []
    for label, mine in learnt.items():
        same = next((group for group in groups if alike(mine, group)), None)
        if same is None:
            groups.append([label])
        else:
            same.append(label)
    return groups


def identical_label(labels: Sequence[str]) -> str:
    """One label for lines that are identical, such as `n = 1; n = 2, identical`."""
    if len(labels) == 1:
        return labels[0]
    shown = labels if len(labels) < 4 else [labels[0], "…", labels[-1]]
    return f"{'; '.join(shown)}, identical"


PANELS = 3
SPREAD = 0.1  # between neighbouring lines, as a part of the axis
GAP = 0.7  # the part of the distance between two ticks over which a tick's lines spread


def panels(sweep: Sweep, cells: Iterable[Cell]) -> dict[str, dict[str, list[Cell]]]:
    """The cells of each task, by the line's label without the task."""
    tasks = {run.name: task_of(run) for run in sweep.runs}
    found: dict[str, dict[str, list[Cell]]] = {}
    for line, group in lines(cells).items():
        task = tasks[group[0].names[0]]
        found.setdefault(task, {})[without_task(line, task)] = group
    return found


def without_task(line: str, task: str) -> str:
    """The label of a line in the panel of its task."""
    return joined(part for part in line.split(", ") if part != task)


def looks(names: Iterable[str]) -> dict[str, style.Look]:
    """One look for each label, the same in all panels."""
    return {name: style.look(i) for i, name in enumerate(dict.fromkeys(names))}


def axes_of(
    tasks: Collection[str], rows: int = 1, height: float = 2.5
) -> tuple[style.Figure, list[list[style.Axes]]]:
    """A figure, and the axes of each of its `rows`: one panel for each task.

    At most three panels stand side by side: a row of more tasks wraps. With a single task, the
    one-panel rows stand side by side too.
    """
    count = len(tasks)
    columns = count if 1 < count <= PANELS else PANELS
    figure, axes = style.panels(rows * count, height=height, columns=columns)
    if count > 1:
        for area, task in zip(axes, [*tasks] * rows, strict=True):
            area.set_title(task)
    return figure, [axes[row * count : (row + 1) * count] for row in range(rows)]


def aside(places: Mapping[Scalar, float], number: int, count: int) -> dict[Scalar, float]:
    """The x positions of line `number` of `count`, shifted from the ticks of an axis of words.

    Do not shift points on an axis of numbers: beside its tick, a point would mean another value.
    """
    step = SPREAD * max(1, len(places) - 1)
    step = min(step, GAP / count) * (number - (count - 1) / 2)
    return {value: place + step for value, place in places.items()}
