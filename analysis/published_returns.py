"""Draws the returns that were reached on each task, beside published returns.

`end of training` is the mean return in training, with exploration noise, over the last tenth of the
steps; `evaluation at the end` is without noise. `best evaluation` is the highest point of the mean
curve of the evaluations, without exploration noise; `best stochastic evaluation` (with
`eval.stochastic=true`) is the same for evaluations with sampled actions. A published return is
compared with our number that was measured in the same way, by the probability that a seed of ours
is above one of theirs. All bars are 95% intervals of the mean (Student's t, from the standard
deviation over seeds), cut to possible returns; small dots are seeds. A hollow marker is at another
number of environment steps than the end of the runs; the table has the steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, published, style
from walle.analysis.measuring import groups, scores, stats
from walle.analysis.runs import BadInputError, Sweep
from walle.analysis.writing import cli
from walle.analysis.writing.format import counted, joined, listed, with_range

WALLE = "walle"
SAME_STEPS = 0.05
COLUMNS = 4
TRAINED, END = "end of training", "evaluation at the end"
BEST, STOCHASTIC = "best evaluation", "best stochastic evaluation"
# By published kind: our numbers that are measured in the same way, in order of preference.
ALIKE = {
    "max of average return over training": (STOCHASTIC, BEST),
    "end of training": (TRAINED,),
    "final, stochastic policy": (TRAINED,),
}


class Entry(NamedTuple):
    """A return in a panel."""

    who: str  # the runs, or the source
    kind: str  # what was averaged
    mean: float  # the mean over the seeds
    spread: float  # the standard deviation over the seeds; NaN if it is not known
    seeds: float  # the number of seeds; NaN if it is not known
    env_steps: int  # the environment steps after which it was reached
    values: tuple[float, ...] = ()  # the return of each seed of runs of the sweep
    bounds: scores.Ends = scores.ANY  # the least and the greatest possible return

    @property
    def label(self) -> str:
        """`walle, end of training`, or a source with the kind of its number."""
        return f"{self.who}, {self.kind}" if self.values else f"{self.who} ({self.kind})"

    @property
    def interval(self) -> stats.Interval:
        """The 95% interval of the mean: Student's t times the spread over sqrt(seeds)."""
        if not self.seeds > 1:
            return stats.Interval(self.mean)
        reach = stats.student(self.seeds - 1) * self.spread / math.sqrt(self.seeds)
        return stats.Interval(self.mean, self.mean - reach, self.mean + reach).within(*self.bounds)

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


Pair = tuple[str, Entry, Entry]  # a task, a return of ours, a published one measured like it


# By task and algorithm; the first entry is a return at the end of our runs.
Panels = Mapping[tuple[str, str], list[Entry]]


def study(sweep: Sweep) -> cli.Study:
    """A panel for each task and algorithm: the runs' numbers, then the published ones."""
    panels = _panels(sweep)
    if not panels:
        raise BadInputError("no episode has ended yet")
    rows = []
    for (task, algorithm), entries in panels.items():
        pairs = _pairs(task, entries)
        for entry in entries:
            row: dict[str, object] = {"task": task, "algorithm": algorithm, "label": entry.label}
            row |= entry.interval.columns("mean")
            row |= {"spread": entry.spread, "seeds": entry.seeds, "env_steps": entry.env_steps}
            row["other_steps"] = entry.other_steps(entries[0])
            for _, ours, other in pairs:
                if ours is entry:
                    row |= _probability([(task, ours, other)]).columns(f"above {other.who}")
            rows.append(row)
    return cli.Study(_figure(panels), pd.DataFrame(rows), _sentences(panels))


main = cli.command("published_returns", study, __doc__)


def _panels(sweep: Sweep) -> Panels:
    """The entries of each task and algorithm with an episode that has ended."""
    by = groups.axis_of(sweep)
    named = labels.merged(sweep, by, sweep.iterations, "return_mean", final=True)
    algorithms = {run.name: str(run.config.get("algo.name", "")) for run in sweep.runs}
    reached: dict[tuple[str, str], list[Entry]] = {}
    for (task, label), names in named.items():
        algorithm = algorithms[names[0]]
        rows = sweep.iterations[sweep.iterations["run"].isin(names)]
        kinds = {TRAINED: scores.training(sweep, names), END: scores.at_end(sweep, names)}
        ends = {kind: [*found.of.values()] for kind, found in kinds.items() if found and found.of}
        if ends:
            who = joined((WALLE, *(part for part in label.text.split(", ") if part != algorithm)))
            steps = int(rows.groupby("run", observed=True)["env_steps"].max().min())
            evaluations = (
                best_evaluation(sweep.evaluations, names),
                best_evaluation(sweep.evaluations, names, "stochastic_return_mean", STOCHASTIC),
            )
            entries = [_entry(kind, values, steps) for kind, values in ends.items()]
            entries += filter(None, evaluations)
            mine = reached.setdefault((task, algorithm), [])
            mine.extend(entry._replace(who=who) for entry in entries)
    panels = {}
    for (task, algorithm), entries_ in sorted(reached.items()):
        bounds = scores.possible_returns(r for r in sweep.runs if labels.task_of(r) == task)
        every = [*entries_, *theirs(task, algorithm)]
        panels[task, algorithm] = [entry._replace(bounds=bounds) for entry in every]
    return panels


def best_evaluation(
    evaluations: pd.DataFrame, names: list[str], column: str = "return_mean", kind: str = BEST
) -> Entry | None:
    """The evaluation with the highest mean over the runs `names`; None if they share none."""
    if column not in evaluations or not len(evaluations):
        return None
    mine = evaluations[evaluations["run"].isin(names)].astype({"run": str})
    curve = mine.pivot_table(index="env_steps", columns="run", values=column).dropna()
    if len(curve.columns) < len(names) or curve.empty:
        return None
    top = int(curve.mean(axis=1).to_numpy().argmax())
    return _entry(kind, curve.iloc[top].to_numpy(float).tolist(), int(curve.index[top]))


def _entry(kind: str, values: list[float], env_steps: int) -> Entry:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    mean = float(np.mean(values))
    return Entry(WALLE, kind, mean, spread, len(values), env_steps, tuple(values))


def theirs(task: str, algorithm: str) -> list[Entry]:
    """The published returns of a task and algorithm; `ppo_kl` has those of PPO."""
    return [
        Entry(str(row["source"]), str(row["kind"]), *row[["mean", "spread", "seeds", "env_steps"]])
        for _, row in published.returns(task, algorithm).iterrows()
    ]


def _pairs(task: str, entries: Sequence[Entry]) -> list[Pair]:
    """Ours with each published return of a task that can be compared, like with like."""
    pairs = []
    for other in entries:
        if other.values or other.why_not(entries[0]):
            continue
        for who in dict.fromkeys(entry.who for entry in entries if entry.values):
            of_kind = {entry.kind: entry for entry in entries if entry.values and entry.who == who}
            mine = next((of_kind[kind] for kind in ALIKE[other.kind] if kind in of_kind), None)
            pairs += [(task, mine, other)] if mine else []
    return pairs


def _probability(pairs: Sequence[Pair]) -> stats.Interval:
    """Over tasks, the probability that a run of ours is above one of theirs."""
    return stats.improvement_on_reported(
        [(np.array(mine.values), o.mean, o.spread, int(o.seeds)) for _, mine, o in pairs]
    )


def _sentences(panels: Panels) -> list[str]:
    """The probabilities of improvement on each source, and what cannot be compared with it.

    A published return counts if the runs ended at its number of environment steps.
    """

    def on(pairs: Sequence[Pair]) -> str:
        tasks = [task.split("-v")[0] for task, *_ in pairs]
        return f"on {len(tasks)} ({listed(tasks)})" if tasks else "on none"

    texts: list[str] = []
    for algorithm in dict.fromkeys(algorithm for _, algorithm in panels):
        by_source: dict[tuple[str, ...], list[Pair]] = {}
        reasons: dict[tuple[str, str], list[str]] = {}
        for task, entries in ((task, panels[task, of]) for task, of in panels if of == algorithm):
            for _, ours, other in _pairs(task, entries):
                by_source.setdefault((ours.label, other.label), []).append((task, ours, other))
            for entry in entries:
                if not entry.values and (reason := entry.why_not(entries[0])):
                    reasons.setdefault((entry.label, reason), []).append(task)
        for pairs in by_source.values():
            _, ours, other = pairs[0]
            noise = (
                " Their evaluations draw actions, and these do not: eval.stochastic=true makes "
                "such evaluations too."
            )
            texts.append(
                f"Probability that a seed of {ours.who} ({ours.kind}) is above one of {other.who} "
                f"({other.kind}, taken as normal), {algorithm}: "
                f"{with_range(_probability(pairs), '{:.0%}'.format)} over "
                f"{counted(len(pairs), 'task')}; "
                f"wholly above 50% {on([p for p in pairs if _probability([p]).low > 0.5])}, "
                f"wholly below {on([p for p in pairs if _probability([p]).high < 0.5])}."
                f"{noise if (ours.kind, ALIKE[other.kind][0]) == (BEST, STOCHASTIC) else ''}"
            )
        for (label, reason), tasks in reasons.items():
            texts.append(f"Not compared with {label}, {algorithm}, {reason}: {listed(tasks)}.")
    return texts


def _figure(panels: Panels) -> style.Figure:
    figure, axes = style.panels(len(panels), height=1.9, columns=COLUMNS)
    several = len({algorithm for _, algorithm in panels}) > 1
    looks: dict[str, style.Look] = {}
    others = False
    for area, ((task, algorithm), entries) in zip(axes, panels.items(), strict=True):
        for x, entry in enumerate(entries):
            name = entry.label if entry.values else entry.who
            if entry.seeds == entry.seeds:
                name = f"{name} ({counted(int(entry.seeds), 'seed')})"
            look = looks.setdefault(name, style.look(len(looks)))
            hollow = entry.other_steps(entries[0])
            others |= hollow
            style.point(area, x, entry.interval, look, hollow=hollow, dots=entry.values)
        # The axis ends beyond all means and seeds; intervals of few seeds do not set it.
        values = [value for entry in entries for value in (entry.mean, *entry.values)]
        spreads = [entry.spread for entry in entries if entry.spread == entry.spread]
        span, (low, high) = max(values) - min(values), entries[0].bounds
        margin, aside = max([*spreads, 0.1 * span]) or 1.0, 0.05 * span
        bottom, top = min(values) - margin, max(values) + margin
        area.set_ylim(max(bottom, low - aside), min(top, high + aside))
        name = task.split("-v")[0]
        area.set_title(f"{name}, {algorithm}" if several else name)
        area.set_xticks([])
        area.margins(x=0.3)
    for area in axes[::COLUMNS]:
        area.set_ylabel("return")
    for label, look in looks.items():
        axes[0].plot([], [], look.marker, color=look.color, label=label)
    if others:
        style.explain_hollow(axes[0], "other env steps")
    style.legend(figure)
    return figure


if __name__ == "__main__":
    raise SystemExit(main())
