"""Lists the final scores of every task and setting, from training and from evaluations."""

from __future__ import annotations

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels
from walle.analysis.drawing.labels import Label
from walle.analysis.measuring import possible, stats
from walle.analysis.measuring.scores import Scores, evaluated, final_scores
from walle.analysis.runs import Sweep
from walle.analysis.writing import words


def table(sweep: Sweep, by: str) -> tuple[pd.DataFrame, list[str]]:
    """A row for each task and label: the seeds, and mean scores with 95% intervals.

    Runs that learnt the same count once. Beside the table stand sentences about what the scores
    are; both are empty where no episode has ended.
    """
    groups = labels.groups(sweep, by)
    groups, _ = labels.merged(sweep, groups, sweep.iterations, "return_mean")
    rows = []
    said: list[str] = []
    for task in dict.fromkeys(task for task, _ in groups):
        mine = {label: names for (of, label), names in groups.items() if of == task}
        ends = possible.of_returns(run for run in sweep.runs if labels.task_of(run) == task)
        for label, found in _scores(sweep, mine).items():
            row: dict[str, object] = {"task": task, "line": label.text, "seeds": len(mine[label])}
            for column, scores in found.items():
                values = np.array([scores.of[name] for name in mine[label] if name in scores.of])
                row |= stats.mean_interval(values).within(*ends).columns(column)
                said.append(f"Column {column}: {scores.source}.")
                if scores.cut is not None:
                    said.append(f"For {task}: read at {scores.cut:,} steps, where a run ends.")
            rows.append(row)
    if not rows:
        return pd.DataFrame(), []
    return words.without_lone_line(pd.DataFrame(rows)), list(dict.fromkeys(said))


def _scores(sweep: Sweep, mine: dict[Label, list[str]]) -> dict[Label, dict[str, Scores]]:
    """For each label the scores of a task from training and, where they exist, evaluations."""
    names = {name for runs in mine.values() for name in runs}
    sources = {"training": final_scores(sweep, names, evaluations=False)}
    if evaluated(sweep, names):
        sources["evaluation"] = final_scores(sweep, names, evaluations=True)
    return {
        label: found
        for label, runs in mine.items()
        if (found := {k: v for k, v in sources.items() if set(runs) & set(v.of)})
    }
