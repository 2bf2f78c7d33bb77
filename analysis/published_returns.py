"""Draws the returns that were reached on each task, beside published returns.

`final` is the mean over the runs of their last return_mean: the last 100 training episodes, with
exploration noise. `best evaluation` is the highest point of the mean curve of the evaluations,
without exploration noise; compare it with a published "max of average return over training". Bars
are one standard deviation. The table has the environment steps of each number.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import published, style
from walle.analysis.drawing.labels import task_of
from walle.analysis.loading.directories import BadInputError, counted
from walle.analysis.measuring.cells import column_per_run
from walle.analysis.measuring.stats import FloatArray, Interval
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli


class Entry(NamedTuple):
    """A return in a panel, with its spread (one standard deviation; nan where it is not known)."""

    label: str
    mean: float
    spread: float
    env_steps: int


def study(sweep: Sweep) -> cli.Study:
    """A panel for each task and algorithm: the runs' two numbers, then the published ones."""
    groups: dict[tuple[str, str], list[str]] = {}
    for run in sweep.runs:
        key = (task_of(run), str(run.config.get("algo.name", "")))
        groups.setdefault(key, []).append(run.name)
    rows = [
        {"task": task, "algorithm": algorithm, **entry._asdict()}
        for (task, algorithm), names in sorted(groups.items())
        for entry in [*ours(sweep, names), *theirs(task, algorithm)]
    ]
    if not any(row["label"].startswith("walle") for row in rows):
        raise BadInputError("no episode has ended yet")
    table = pd.DataFrame(rows)
    return cli.Study(_figure(table), table, sentences(table))


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__).parse_args(argv)
    return cli.run(args, "published_returns", study)


def ours(sweep: Sweep, names: list[str]) -> list[Entry]:
    """`final` and `best evaluation` of the runs `names`, where they have such rows."""
    rows = sweep.iterations[sweep.iterations["run"].isin(names)]
    ends = [values[-1] for values in column_per_run(rows, "return_mean").values() if len(values)]
    if not ends:
        return []
    steps = int(rows.groupby("run")["env_steps"].max().median())
    found = [Entry(f"walle, final ({counted(len(ends), 'run')})", *mean_and_spread(ends), steps)]
    best = best_evaluation(sweep.evaluations, names)
    return found if best is None else [*found, best]


def best_evaluation(evaluations: pd.DataFrame, names: list[str]) -> Entry | None:
    """The evaluation with the highest mean over the runs `names`; None if they share none."""
    if not len(evaluations):
        return None
    mine = evaluations[evaluations["run"].isin(names)]
    curve = mine.pivot_table(index="env_steps", columns="run", values="return_mean").dropna()
    if len(curve.columns) < len(names) or curve.empty:
        return None
    top = int(curve.mean(axis=1).to_numpy().argmax())
    values = curve.iloc[top].to_numpy(float).tolist()
    return Entry("walle, best evaluation", *mean_and_spread(values), int(curve.index[top]))


def theirs(task: str, algorithm: str) -> list[Entry]:
    """The published returns of a task and algorithm; those of PPO for `ppo_kl` too."""
    rows = published.returns(task.split("-")[0])
    rows = rows[rows["algorithm"].str.lower() == algorithm.split("_")[0]]
    return [
        Entry(f"{row['source']} ({row['kind']})", row["mean"], row["spread"], row["env_steps"])
        for _, row in rows.iterrows()
    ]


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; a single value has the deviation nan."""
    x: FloatArray = np.asarray(values, float)
    return float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else float("nan")


def sentences(table: pd.DataFrame) -> list[str]:
    """Sentences that count, for each source, the tasks on which the runs reach its return."""
    texts = []
    is_ours = table["label"].str.startswith("walle")
    for (source, algorithm), rows in table[~is_ours].groupby(["label", "algorithm"]):
        mine = table[is_ours & (table["algorithm"] == algorithm)]
        counts = []
        for kind in ("best evaluation", "final"):
            found = mine[mine["label"].str.contains(kind)]
            reached = sum(
                (found[found["task"] == row["task"]]["mean"] >= row["mean"]).any()
                for _, row in rows.iterrows()
            )
            counts.append(f"by {kind} on {reached}")
        said = " and ".join(counts)
        texts.append(f"At or above {source}, {algorithm}: {said} of {len(rows)} tasks.")
    return texts


def _figure(table: pd.DataFrame) -> style.Figure:
    panels = list(table.groupby(["task", "algorithm"], sort=False))
    figure, axes = style.small_multiples(len(panels), height=1.9, columns=4)
    looks: dict[str, style.Look] = {}
    for area, ((task, algorithm), rows) in zip(axes, panels, strict=True):
        spreads = rows["spread"].fillna(0).astype(float)
        numbers = zip(rows["label"], rows["mean"].astype(float), spreads, strict=True)
        for x, (label, mean, spread) in enumerate(numbers):
            look = looks.setdefault(str(label).split(" (")[0], style.look(len(looks)))
            style.point(area, x, Interval(mean, mean - spread, mean + spread), look)
        name = str(task).split("-v")[0]
        area.set_title(name if table["algorithm"].nunique() == 1 else f"{name}, {algorithm}")
        area.set_xticks([])
        area.margins(x=0.3)
    for label, look in looks.items():
        axes[0].plot([], [], look.marker, color=look.color, label=label)
    style.legend(figure)
    return figure


if __name__ == "__main__":
    sys.exit(main())
