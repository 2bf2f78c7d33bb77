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

from walle.analysis.drawing import labels, published, style
from walle.analysis.loading.directories import BadInputError
from walle.analysis.measuring import scores, stats
from walle.analysis.measuring.groups import axis_of, column_per_run
from walle.analysis.measuring.stats import Interval, Reported
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli
from walle.analysis.writing.format import counted, joined, listed, with_range

WALLE = "walle"
SAME_STEPS = 0.05
COLUMNS = 4
FINAL, BEST, STOCHASTIC = "final", "best evaluation", "best stochastic evaluation"
# The numbers of ours, in the order of preference, that are measured as a published kind is.
ALIKE = {
    "max of average return over training": (STOCHASTIC, BEST),
    "end of training": (FINAL,),
    "final, stochastic policy": (FINAL,),
}


class Entry(NamedTuple):
    """A return in a panel."""

    who: str  # the runs, or the source
    kind: str  # what was averaged
    mean: float  # the mean over the seeds
    spread: float  # the standard deviation over the seeds; NaN where it is not known
    seeds: float  # the number of seeds; NaN where it is not known
    env_steps: int  # the environment steps after which it was reached
    values: tuple[float, ...] = ()  # the return of each seed, where they are known
    bounds: scores.Ends = scores.ANY  # the least and the greatest possible return

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
        if not self.seeds > 1:
            return Interval(self.mean)
        reach = stats.student(self.seeds - 1) * self.spread / math.sqrt(self.seeds)
        return Interval(self.mean, self.mean - reach, self.mean + reach).within(*self.bounds)

    def other_steps(self, final: Entry) -> bool:
        """Whether the number of environment steps differs from that of `final` by more than 5%."""
        return abs(self.env_steps / final.env_steps - 1) > SAME_STEPS

    def why_not(self, final: Entry) -> str:
        """Why this published return cannot be compared with ours; empty if it can."""
        if self.other_steps(final):
            return f"as the runs did not end at its {self.env_steps:,} steps"
        if self.kind not in ALIKE:
            return "as nothing here is measured in this way"
        known = self.seeds > 1 and self.spread >= 0
        return "" if known else "as its spread over seeds is not known"


class Improvement(NamedTuple):
    """The probability that a run of ours is above a published one on a task."""

    task: str
    ours: Entry
    theirs: Entry
    probability: Interval


Panels = Mapping[tuple[str, str], list[Entry]]  # by task and algorithm; the first one is `final`


def study(sweep: Sweep) -> cli.Study:
    """A panel for each task and algorithm: the runs' two numbers, then the published ones."""
    panels = _panels(sweep)
    if not panels:
        raise BadInputError("no episode has ended yet")
    rows = []
    for (task, algorithm), entries in panels.items():
        found = improvements(task, entries)
        for entry in entries:
            row: dict[str, object] = {"task": task, "algorithm": algorithm, "label": entry.label}
            row |= entry.interval.columns("mean")
            row |= {"spread": entry.spread, "seeds": entry.seeds, "env_steps": entry.env_steps}
            row["other_steps"] = entry.other_steps(entries[0])
            for each in found:
                if (each.ours.who, each.ours.kind) == (entry.who, entry.kind):
                    row |= each.probability.columns(f"above {each.theirs.who}")
            rows.append(row)
    return cli.Study(_figure(panels), pd.DataFrame(rows), sentences(panels))


main = cli.command("published_returns", study, __doc__)


def _panels(sweep: Sweep) -> dict[tuple[str, str], list[Entry]]:
    """The entries of each task and algorithm of which an episode has ended."""
    groups = labels.groups(sweep, axis_of(sweep))
    groups = labels.merged(sweep, groups, sweep.iterations, "return_mean")
    algorithms = {run.name: str(run.config.get("algo.name", "")) for run in sweep.runs}
    found: dict[tuple[str, str], list[Entry]] = {}
    for (task, label), names in groups.items():
        algorithm = algorithms[names[0]]
        text = joined(part for part in label.text.split(", ") if part != algorithm)
        found.setdefault((task, algorithm), []).extend(ours(sweep, names, text))
    panels = {}
    for (task, algorithm), entries in sorted(found.items()):
        mine = [run for run in sweep.runs if labels.task_of(run) == task]
        bounds = scores.possible_returns(mine)
        every = [*entries, *theirs(task, algorithm)] if entries else []
        panels[task, algorithm] = [entry._replace(bounds=bounds) for entry in every]
    return {key: entries for key, entries in panels.items() if entries}


def ours(sweep: Sweep, names: list[str], label: str = "") -> list[Entry]:
    """`final` and the best evaluations of the runs `names`, where they have such rows."""
    rows = sweep.iterations[sweep.iterations["run"].isin(names)]
    ends = [values[-1] for values in column_per_run(rows, "return_mean").values() if len(values)]
    if not ends:
        return []
    steps = int(rows.groupby("run", observed=True)["env_steps"].max().median())
    found = [_entry(FINAL, ends, steps)]
    for kind, column in ((BEST, "return_mean"), (STOCHASTIC, "stochastic_return_mean")):
        best = best_evaluation(sweep.evaluations, names, column)
        found += [] if best is None else [best._replace(kind=kind)]
    return [entry._replace(who=joined((WALLE, label))) for entry in found]


def best_evaluation(
    evaluations: pd.DataFrame, names: list[str], column: str = "return_mean"
) -> Entry | None:
    """The evaluation with the highest mean over the runs `names`; None if they share none."""
    if column not in evaluations or not len(evaluations):
        return None
    mine = evaluations[evaluations["run"].isin(names)].astype({"run": str})
    curve = mine.pivot_table(index="env_steps", columns="run", values=column).dropna()
    if len(curve.columns) < len(names) or curve.empty:
        return None
    top = int(curve.mean(axis=1).to_numpy().argmax())
    return _entry(BEST, curve.iloc[top].to_numpy(float).tolist(), int(curve.index[top]))


def _entry(kind: str, values: list[float], env_steps: int) -> Entry:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    mean = float(np.mean(values))
    return Entry(WALLE, kind, mean, spread, len(values), env_steps, tuple(values))


def theirs(task: str, algorithm: str) -> list[Entry]:
    """The published returns of a task and algorithm; those of PPO for `ppo_kl` too."""
    rows = published.returns(task.split("-")[0])
    rows = rows[rows["algorithm"].str.lower() == algorithm.split("_")[0]]
    return [
        Entry(str(row["source"]), str(row["kind"]), *row[["mean", "spread", "seeds", "env_steps"]])
        for _, row in rows.iterrows()
    ]


def improvements(task: str, entries: Sequence[Entry]) -> list[Improvement]:
    """Ours against each published return of a task that can be compared, like with like."""
    found = []
    for other in entries:
        if other.ours or other.why_not(entries[0]):
            continue
        for who in dict.fromkeys(entry.who for entry in entries if entry.ours):
            of_kind = {entry.kind: entry for entry in entries if entry.ours and entry.who == who}
            mine = next((of_kind[kind] for kind in ALIKE[other.kind] if kind in of_kind), None)
            if mine:
                probability = _probability([(mine, other)])
                found.append(Improvement(task, mine, other, probability))
    return found


def _probability(pairs: Sequence[tuple[Entry, Entry]]) -> Interval:
    """Over tasks, the probability that a run of ours is above one of theirs."""
    return stats.improvement_on_reported(
        [
            (np.array(mine.values), Reported(other.mean, other.spread, int(other.seeds)))
            for mine, other in pairs
        ]
    )


def sentences(panels: Panels) -> list[str]:
    """The probabilities of improvement on each source, and what cannot be compared with it.

    A published return counts where the runs ended at its number of environment steps.
    """
    texts: list[str] = []
    for algorithm in dict.fromkeys(algorithm for _, algorithm in panels):
        mine = {task: entries for (task, of), entries in panels.items() if of == algorithm}
        by_source: dict[tuple[str, ...], list[Improvement]] = {}
        for task, entries in mine.items():
            for each in improvements(task, entries):
                key = (each.ours.who, each.ours.kind, each.theirs.who, each.theirs.kind)
                by_source.setdefault(key, []).append(each)
        texts += [_sentence(found, algorithm, *key) for key, found in by_source.items()]
        reasons: dict[tuple[str, str], list[str]] = {}
        for task, entries in mine.items():
            for entry in entries:
                if not entry.ours and (reason := entry.why_not(entries[0])):
                    reasons.setdefault((entry.label, reason), []).append(task)
        for (label, reason), tasks in reasons.items():
            texts.append(f"Not compared with {label}, {algorithm}, {reason}: {listed(tasks)}.")
    return texts


def _sentence(
    found: Sequence[Improvement], algorithm: str, who: str, kind: str, source: str, published: str
) -> str:
    def on(what: str, chosen: Sequence[Improvement]) -> str:
        names = [each.task.split("-v")[0] for each in chosen]
        return f"{what} on {len(names)} ({listed(names)})" if names else f"{what} on none"

    overall = _probability([(each.ours, each.theirs) for each in found])
    clear = on("wholly above 50%", [each for each in found if each.probability.low > 0.5])
    behind = on("wholly below", [each for each in found if each.probability.high < 0.5])
    noise = (
        " Their evaluations draw actions, and these do not: eval.stochastic=true makes such "
        "evaluations too."
    )
    return (
        f"Probability that a seed of {who} ({kind}) is above one of {source} ({published}, taken "
        f"as normal), {algorithm}: {with_range(overall, '{:.0%}'.format)} over "
        f"{counted(len(found), 'task')}; {clear}, {behind}."
        f"{noise if (kind, ALIKE[published][0]) == (BEST, STOCHASTIC) else ''}"
    )


def _figure(panels: Panels) -> style.Figure:
    figure, axes = style.panels(len(panels), height=1.9, columns=COLUMNS)
    several = len({algorithm for _, algorithm in panels}) > 1
    looks: dict[str, style.Look] = {}
    for area, ((task, algorithm), entries) in zip(axes, panels.items(), strict=True):
        for x, entry in enumerate(entries):
            name = entry.label if entry.ours else entry.who
            if entry.seeds == entry.seeds:
                name = f"{name} ({counted(int(entry.seeds), 'seed')})"
            look = looks.setdefault(name, style.look(len(looks)))
            hollow = entry.other_steps(entries[0])
            style.point(area, x, entry.interval, look, hollow=hollow, dots=entry.values)
        _limit(area, entries)
        name = task.split("-v")[0]
        area.set_title(f"{name}, {algorithm}" if several else name)
        area.set_xticks([])
        area.margins(x=0.3)
    for area in axes[::COLUMNS]:
        area.set_ylabel("return")
    for label, look in looks.items():
        axes[0].plot([], [], look.marker, color=look.color, label=label)
    if any(entry.other_steps(entries[0]) for entries in panels.values() for entry in entries):
        style.explain_hollow(axes[0], "other env steps")
    style.legend(figure)
    return figure


def _limit(axes: style.Axes, entries: list[Entry]) -> None:
    """Ends the axis beyond all means and seeds; intervals of few seeds do not set it."""
    values = [value for entry in entries for value in (entry.mean, *entry.values)]
    stds = [entry.spread for entry in entries if entry.spread == entry.spread]
    margin = max([*stds, 0.1 * (max(values) - min(values))]) or 1.0
    low, high = entries[0].bounds
    aside = 0.05 * (max(values) - min(values))
    axes.set_ylim(max(min(values) - margin, low - aside), min(max(values) + margin, high + aside))


if __name__ == "__main__":
    sys.exit(main())
