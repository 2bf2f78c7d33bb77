"""Draws the returns that were reached on each task, beside published returns.

`final` is the mean over the seeds of their last return_mean: the last 100 training episodes, with
exploration noise. `best evaluation` is the highest point of the mean curve of the evaluations,
without exploration noise; `best stochastic evaluation` (with `eval.stochastic=true`) is the same of
the evaluations that draw actions. A published return is compared with the number that was measured
like it, by the probability that a seed of ours is above one of theirs. All bars are 95% intervals
of the mean (Student's t, from the standard deviation over seeds), and end where returns are
impossible; small dots are seeds. A hollow marker has another number of environment steps than
`final`; the table has the steps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.comparing import against_published
from walle.analysis.comparing.against_published import (
    ALIKE,
    BEST,
    FINAL,
    STOCHASTIC,
    Improvement,
    Ours,
    Theirs,
    improvements,
)
from walle.analysis.comparing.estimates import Reported
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
        who: the runs, or the source.
        kind: what was averaged.
        mean: the mean over the seeds.
        spread: the standard deviation over the seeds; nan where it is not known.
        seeds: the number of seeds; nan where it is not known.
        env_steps: the environment steps after which it was reached.
        values: the return of each seed, where they are known.
        possible: the least and the greatest possible return.
    """

    who: str
    kind: str
    mean: float
    spread: float
    seeds: float
    env_steps: int
    values: tuple[float, ...] = ()
    possible: possible.Ends = possible.ANY

    @property
    def label(self) -> str:
        """`walle, final`, or a source with the kind of its number."""
        return f"{self.who}, {self.kind}" if self.ours else f"{self.who} ({self.kind})"

    @property
    def ours(self) -> bool:
        """Whether these are runs of the sweep."""
        return bool(self.values)

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
        found = _improvements(task, entries)
        for entry in entries:
            row: dict[str, object] = {"task": task, "algorithm": algorithm, "label": entry.label}
            row |= entry.interval.columns("mean")
            row |= {"spread": entry.spread, "seeds": entry.seeds, "env_steps": entry.env_steps}
            row["other_steps"] = _other_steps(entry, entries[0])
            for one in found:
                if (one.ours.who, one.ours.kind) == (entry.who, entry.kind):
                    row |= one.probability.columns(f"above {one.theirs.source}")
            rows.append(row)
    return cli.Study(_figure(panels), pd.DataFrame(rows), sentences(panels))


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
    """`final` and the best evaluations of the runs `names`, where they have such rows."""
    rows = sweep.iterations[sweep.iterations["run"].isin(names)]
    ends = [values[-1] for values in column_per_run(rows, "return_mean").values() if len(values)]
    if not ends:
        return []
    who = ", ".join(part for part in (WALLE, label) if part)
    steps = int(rows.groupby("run", observed=True)["env_steps"].max().median())
    found = [_entry(FINAL, ends, steps)]
    for kind, column in ((BEST, "return_mean"), (STOCHASTIC, "stochastic_return_mean")):
        best = best_evaluation(sweep.evaluations, names, column)
        found += [] if best is None else [best._replace(kind=kind)]
    return [entry._replace(who=who) for entry in found]


def best_evaluation(
    evaluations: pd.DataFrame, names: list[str], column: str = "return_mean"
) -> Entry | None:
    """The evaluation with the highest mean over the runs `names`; None if they share none."""
    if column not in evaluations or not len(evaluations):
        return None
    mine = evaluations[evaluations["run"].isin(names)]
    mine = mine.astype({"run": str})
    curve = mine.pivot_table(index="env_steps", columns="run", values=column).dropna()
    if len(curve.columns) < len(names) or curve.empty:
        return None
    top = int(curve.mean(axis=1).to_numpy().argmax())
    return _entry(BEST, curve.iloc[top].to_numpy(float).tolist(), int(curve.index[top]))


def _entry(kind: str, values: list[float], env_steps: int) -> Entry:
    return Entry(WALLE, kind, *mean_and_spread(values), len(values), env_steps, tuple(values))


def theirs(task: str, algorithm: str) -> list[Entry]:
    """The published returns of a task and algorithm; those of PPO for `ppo_kl` too."""
    rows = published.returns(task.split("-")[0])
    rows = rows[rows["algorithm"].str.lower() == algorithm.split("_")[0]]
    return [
        Entry(str(row["source"]), str(row["kind"]), *row[["mean", "spread", "seeds", "env_steps"]])
        for _, row in rows.iterrows()
    ]


def _other_steps(entry: Entry, final: Entry) -> bool:
    """Whether the number of environment steps differs from that of `final` by more than 5%."""
    return abs(entry.env_steps / final.env_steps - 1) > SAME_STEPS


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; a single value has the deviation nan."""
    x: FloatArray = np.asarray(values, float)
    return float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else float("nan")


def sentences(panels: Mapping[tuple[str, str], Sequence[Entry]]) -> list[str]:
    """The probabilities of improvement on each source, and what cannot be compared with it.

    A published return counts where the runs ended at its number of environment steps.
    """
    texts: list[str] = []
    for algorithm in dict.fromkeys(algorithm for _, algorithm in panels):
        mine = {task: entries for (task, of), entries in panels.items() if of == algorithm}
        found = [one for task, entries in mine.items() for one in _improvements(task, entries)]
        texts += against_published.sentences(found, algorithm)
        published = {
            (task, entry): _why_not(entry, entries[0])
            for task, entries in mine.items()
            for entry in entries
            if not entry.ours
        }
        for label, reason in dict.fromkeys((e.label, why) for (_, e), why in published.items()):
            tasks = [t for (t, e), why in published.items() if (e.label, why) == (label, reason)]
            if reason:
                texts.append(f"Not compared with {label}, {algorithm}, {reason}: {listed(tasks)}.")
    return texts


def _improvements(task: str, entries: Sequence[Entry]) -> list[Improvement]:
    """Our entries of a task against the published ones that can be compared."""
    ours = [Ours(task, each.who, each.kind, each.values) for each in entries if each.ours]
    theirs = [
        Theirs(task, each.who, each.kind, Reported(each.mean, each.spread, int(each.seeds)))
        for each in entries
        if not (each.ours or _why_not(each, entries[0]))
    ]
    return improvements(ours, theirs)


def _why_not(entry: Entry, final: Entry) -> str:
    """Why a published return cannot be compared; empty if it can."""
    if _other_steps(entry, final):
        return f"as the runs did not end at its {entry.env_steps:,} steps"
    if entry.kind not in ALIKE:
        return "as nothing here is measured in this way"
    return "" if entry.seeds > 1 and entry.spread >= 0 else "as its spread over seeds is not known"


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
    """Our kind of number, or the source, with the number of seeds; the table has theirs."""
    name = entry.label if entry.ours else entry.who
    return name if entry.seeds != entry.seeds else f"{name} ({counted(int(entry.seeds), 'seed')})"


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
