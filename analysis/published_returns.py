"""Draws the returns that were reached on each task, beside published returns.

`final` is the mean over the seeds of their last return_mean: the last 100 training episodes, with
exploration noise. `best evaluation` is the highest point of the mean curve of the evaluations,
without exploration noise; compare it with a published "max of average return over training". All
bars are 95% intervals of the mean (Student's t, from the standard deviation over seeds), and end
where returns are impossible; small dots are seeds. A
hollow marker has another number of environment steps than `final`; the table has the steps.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, published, style
from walle.analysis.loading.directories import BadInputError, Run, counted, listed
from walle.analysis.measuring import possible
from walle.analysis.measuring.cells import column_per_run
from walle.analysis.measuring.design import axis_of
from walle.analysis.measuring.stats import TAIL, FloatArray, Interval
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli

WALLE = "walle"
SAME_STEPS = 0.05
COLUMNS = 4


class Entry(NamedTuple):
    """A return in a panel.

    Attributes:
        label: who reached it.
        mean: the mean over the seeds.
        spread: the standard deviation over the seeds; nan where it is not known.
        seeds: the number of seeds; nan where it is not known.
        env_steps: the environment steps after which it was reached.
        values: the return of each seed, where they are known.
        possible: the least and the greatest possible return.
    """

    label: str
    mean: float
    spread: float
    seeds: float
    env_steps: int
    values: tuple[float, ...] = ()
    possible: possible.Ends = possible.ANY

    @property
    def interval(self) -> Interval:
        """The 95% interval of the mean: Student's t times the spread over sqrt(seeds)."""
        from scipy.special import stdtrit

        if not self.seeds > 1:
            return Interval(self.mean)
        reach = float(stdtrit(self.seeds - 1, 1 - TAIL)) * self.spread / math.sqrt(self.seeds)
        found = Interval(self.mean, self.mean - reach, self.mean + reach)
        return found.within(*self.possible)


def study(sweep: Sweep) -> cli.Study:
    """A panel for each task and algorithm: the runs' two numbers, then the published ones."""
    panels = {key: found for key, found in _panels(sweep).items() if found}
    if not panels:
        raise BadInputError("no episode has ended yet")
    rows = []
    for (task, algorithm), entries in panels.items():
        for entry in entries:
            row: dict[str, object] = {"task": task, "algorithm": algorithm, "label": entry.label}
            row |= entry.interval.columns("mean")
            row |= {"spread": entry.spread, "seeds": entry.seeds, "env_steps": entry.env_steps}
            row["other_steps"] = _other_steps(entry, entries[0])
            rows.append(row)
    table = pd.DataFrame(rows)
    return cli.Study(_figure(panels), table, sentences(table))


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__).parse_args(argv)
    return cli.run(args, "published_returns", study)


def _panels(sweep: Sweep) -> dict[tuple[str, str], list[Entry]]:
    """The entries of each task and algorithm; none where no episode has ended."""
    by = axis_of(sweep)
    groups = labels.groups(sweep, by)
    groups, _ = labels.merged(sweep, groups, sweep.iterations, "return_mean")
    algorithms = {run.name: str(run.config.get("algo.name", "")) for run in sweep.runs}
    found: dict[tuple[str, str], list[Entry]] = {}
    for (task, label), names in groups.items():
        algorithm = algorithms[names[0]]
        text = ", ".join(part for part in label.text.split(", ") if part not in ("", algorithm))
        found.setdefault((task, algorithm), []).extend(ours(sweep, names, text))
    ends = {task: possible.of_returns(_of_task(sweep, task)) for task, _ in found}
    return {
        (task, algorithm): [
            entry._replace(possible=ends[task]) for entry in (*entries, *theirs(task, algorithm))
        ]
        if entries
        else []
        for (task, algorithm), entries in sorted(found.items())
    }


def _of_task(sweep: Sweep, task: str) -> list[Run]:
    return [run for run in sweep.runs if labels.task_of(run) == task]


def ours(sweep: Sweep, names: list[str], label: str = "") -> list[Entry]:
    """`final` and `best evaluation` of the runs `names`, where they have such rows."""
    rows = sweep.iterations[sweep.iterations["run"].isin(names)]
    ends = [values[-1] for values in column_per_run(rows, "return_mean").values() if len(values)]
    if not ends:
        return []
    who = ", ".join(part for part in (WALLE, label) if part)
    steps = int(rows.groupby("run", observed=True)["env_steps"].max().median())
    found = [_entry(f"{who}, final", ends, steps)]
    best = best_evaluation(sweep.evaluations, names)
    return found if best is None else [*found, best._replace(label=f"{who}, best evaluation")]


def best_evaluation(evaluations: pd.DataFrame, names: list[str]) -> Entry | None:
    """The evaluation with the highest mean over the runs `names`; None if they share none."""
    if not len(evaluations):
        return None
    mine = evaluations[evaluations["run"].isin(names)]
    mine = mine.astype({"run": str})
    curve = mine.pivot_table(index="env_steps", columns="run", values="return_mean").dropna()
    if len(curve.columns) < len(names) or curve.empty:
        return None
    top = int(curve.mean(axis=1).to_numpy().argmax())
    return _entry("", curve.iloc[top].to_numpy(float).tolist(), int(curve.index[top]))


def _entry(label: str, values: list[float], env_steps: int) -> Entry:
    return Entry(label, *mean_and_spread(values), len(values), env_steps, tuple(values))


def theirs(task: str, algorithm: str) -> list[Entry]:
    """The published returns of a task and algorithm; those of PPO for `ppo_kl` too."""
    rows = published.returns(task.split("-")[0])
    rows = rows[rows["algorithm"].str.lower() == algorithm.split("_")[0]]
    return [
        Entry(f"{row['source']} ({row['kind']})", *row[["mean", "spread", "seeds", "env_steps"]])
        for _, row in rows.iterrows()
    ]


def _other_steps(entry: Entry, final: Entry) -> bool:
    """Whether the number of environment steps differs from that of `final` by more than 5%."""
    return abs(entry.env_steps / final.env_steps - 1) > SAME_STEPS


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; a single value has the deviation nan."""
    x: FloatArray = np.asarray(values, float)
    return float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else float("nan")


def sentences(table: pd.DataFrame) -> list[str]:
    """Sentences that count, for each source, the tasks on which the runs reach its return.

    A published return counts where the runs ended at its number of environment steps.
    """
    texts = []
    is_ours = table["label"].str.startswith("walle")
    for (source, algorithm), every in table[~is_ours].groupby(["label", "algorithm"]):
        rows = every[~every["other_steps"].astype(bool)]
        mine = table[is_ours & (table["algorithm"] == algorithm)]
        if len(rows):
            counts = [
                f"by {kind} on {_reached(rows, mine[mine['label'].str.contains(kind)])}"
                for kind in ("best evaluation", "final")
            ]
            tasks = counted(len(rows), "task")
            texts.append(f"At or above {source}, {algorithm}: {' and '.join(counts)} of {tasks}.")
        if len(rows) < len(every):
            other = every[every["other_steps"].astype(bool)]
            steps = ", ".join(f"{steps:,}" for steps in sorted(set(other["env_steps"])))
            texts.append(
                f"Not counted against {source}, {algorithm}, as the runs did not end at its "
                f"{steps} steps: {listed(other['task'].tolist())}."
            )
    return texts


def _reached(rows: pd.DataFrame, mine: pd.DataFrame) -> int:
    """The number of tasks on which a return of `mine` is at least the published one."""
    best = mine.groupby("task")["mean"].max()
    return sum(best.get(row["task"], -math.inf) >= row["mean"] for _, row in rows.iterrows())


def _figure(panels: dict[tuple[str, str], list[Entry]]) -> style.Figure:
    figure, axes = style.small_multiples(len(panels), height=1.9, columns=COLUMNS)
    several = len({algorithm for _, algorithm in panels}) > 1
    looks: dict[str, style.Look] = {}
    hollow = False
    for area, ((task, algorithm), entries) in zip(axes, panels.items(), strict=True):
        for x, entry in enumerate(entries):
            look = looks.setdefault(_legend_name(entry), style.look(len(looks)))
            other = _other_steps(entry, entries[0])
            style.point(area, x, entry.interval, look, hollow=other, dots=entry.values)
            hollow |= other
        _limit(area, entries)
        name = task.split("-v")[0]
        area.set_title(f"{name}, {algorithm}" if several else name)
        area.set_xticks([])
        area.margins(x=0.3)
    for area in axes[::COLUMNS]:
        area.set_ylabel("return")
    for label, look in looks.items():
        axes[0].plot([], [], look.marker, color=look.color, label=label)
    if hollow:
        grey = style.PAPER_GREY
        axes[0].plot([], [], "o", color=grey, markerfacecolor="white", label="other env steps")
    style.legend(figure)
    return figure


def _legend_name(entry: Entry) -> str:
    """The source with its number of seeds; its kind of mean stands in the table."""
    source = entry.label.split(" (")[0]
    return (
        source if entry.seeds != entry.seeds else f"{source} ({counted(int(entry.seeds), 'seed')})"
    )


def _limit(axes: style.Axes, entries: list[Entry]) -> None:
    """Ends the axis beyond all means and seeds; intervals of few seeds do not set it."""
    values = [value for entry in entries for value in (entry.mean, *entry.values)]
    stds = [entry.spread for entry in entries if entry.spread == entry.spread]
    margin = max([*stds, 0.1 * (max(values) - min(values))]) or 1.0
    low, high = entries[0].possible
    aside = 0.05 * (max(values) - min(values))
    axes.set_ylim(max(min(values) - margin, low - aside), min(max(values) + margin, high + aside))


if __name__ == "__main__":
    sys.exit(main())
