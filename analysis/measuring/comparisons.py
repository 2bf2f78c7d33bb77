"""Pairs the runs of two sides, and compares them task by task and overall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations, product
from typing import NamedTuple, TypeVar

import numpy as np

from walle.analysis.measuring import stats
from walle.analysis.measuring.groups import (
    line_keys,
    measure,
    resolve_key,
    share_spread,
    sort_key,
    value_text,
)
from walle.analysis.measuring.stats import Estimate, Interval, Sides
from walle.analysis.measuring.wall_clock import iterations_after_warmup, seconds_per_run, unit_of
from walle.analysis.runs import BadInputError, Run, Scalar, Sweep
from walle.analysis.writing.format import listed

WORKERS = ("sampler.n", "learner.n")  # the numbers of processes, which learning does not depend on
OVERALL = "overall"
SCORE = "final score"
UNKNOWN = Interval(math.nan)
SPEEDS = {
    "iteration_s": "steps per second",
    "collect_s": "steps per second of collecting",
    "learn_s": "steps per second of learning",
}
Value = TypeVar("Value")
BySeed = Mapping[tuple[Scalar, int], Value]  # by seed and, if a seed repeats, by number
Seeded = BySeed[float]


class Question(NamedTuple):
    """The question of a comparison: the runs with `key` = `a`, and those with `key` = `b`."""

    key: str
    a: Scalar
    b: Scalar


class Pairing(NamedTuple):
    """Runs that are compared with each other: they differ in the key and in their seeds."""

    label: str  # the other keys that vary, such as the task; '' if nothing else varies
    learning: str  # the same without numbers of workers, which learning does not depend on
    task: str  # the same for the environment alone
    a: BySeed[str]  # the runs of A
    b: BySeed[str]  # the runs of B
    # Whether the same seed gives both sides the same start: both have the same algorithm, networks
    # and environment
    same_start: bool


def with_rows(sweep: Sweep) -> Sweep:
    """The runs that have a row in iterations.csv; notes the others."""
    used = set(sweep.iterations["run"].astype(str))
    if without := [run.name for run in sweep.runs if run.name not in used]:
        sweep.note(f"Not compared, as no iteration can be read: {listed(without)}")
    return Sweep(sweep.paths, [run for run in sweep.runs if run.name in used], sweep.left_out)


def question(sweep: Sweep, by: str | None) -> Question:
    """The question for `--by KEY=A,B`, `--by KEY`, or None: then KEY is the first that varies.

    If KEY has more than two values, A is the first and B the last. The default KEY is `sweep` for
    several directories; it is a number of workers only if no other setting varies, and it is never
    the task.

    Raises BadInputError if there are no two such values.
    """
    varying = line_keys(sweep, "")
    settings = [key for key in varying if key not in WORKERS and not key.startswith("env.")]
    default = next(iter([*settings, *(key for key in varying if key in WORKERS)]), "sampler.n")
    default = "sweep" if "sweep" in sweep.varying else default
    name, _, asked = (by or default).partition("=")
    key = resolve_key(sweep, name)
    known = list(dict.fromkeys(sweep.values(key)))  # for `sweep`, in the order of the command line
    if key != "sweep":
        known.sort(key=sort_key)
    if not asked:
        if len(known) < 2:
            raise BadInputError(
                f"a comparison needs two values of {key}; all runs have {key}={known[0]}: name two "
                f"sweeps, or --by {' or '.join(varying) or 'KEY'}"
            )
        return Question(key, known[0], known[-1])
    typed = _parts(asked)
    same = [(a, b) for a, b in permutations(known, 2) if _parts(f"{a},{b}") == typed]
    if not same:
        raise BadInputError(
            f"--by {by}: needs two different values of {key}, as in --by {key}=A,B; "
            f"the runs have {listed([str(value) for value in known], most=12)}"
        )
    return Question(key, *same[0])


def _parts(text: str) -> list[float | str]:
    """What stands between commas, numbers as such: 1e-4 is 0.0001."""
    parts: list[float | str] = []
    for part in map(str.strip, text.split(",")):
        try:
            parts.append(float(part))
        except ValueError:
            parts.append(part)
    return parts


def restricted(sweep: Sweep, asked: Question) -> Sweep:
    """The sweep with only the runs of A and B."""
    runs = [run for run in sweep.runs if run.config.get(asked.key, "null") in (asked.a, asked.b)]
    return Sweep(sweep.paths, runs, sweep.left_out)


def match(sweep: Sweep, asked: Question) -> list[Pairing]:
    """The pairings that have runs on both sides; notes the other runs.

    Runs are compared if they agree in all keys that both sides have. A key that only one side has,
    such as PPO's clip against A2C, gives a pairing for each of its values; the runs of the other
    side are the same in all of them.

    Raises BadInputError if no pairing has both sides.
    """
    keys = line_keys(sweep, asked.key)
    groups: tuple[dict[str, list[Run]], ...] = ({}, {})  # of A and of B, by label
    owned: tuple[set[str], ...] = (set(), set())  # the keys of A and of B
    for run in sweep.runs:
        side = run.config.get(asked.key, "null") == asked.b
        groups[side].setdefault(_label(run.config, keys), []).append(run)
        owned[side].update(run.config)
    shared = [key for key in keys if key in owned[0] & owned[1]]
    pairings: list[Pairing] = []
    used: set[str] = set()
    for a, b in product(*(by_label.values() for by_label in groups)):
        if _label(a[0].config, shared) == _label(b[0].config, shared):
            both = {k: (a if k in owned[0] else b)[0].config.get(k, "null") for k in keys}
            pairings.append(_pairing(both, a, b))
            used |= {run.name for run in (*a, *b)}
    if len(shared) < len(keys) and len(pairings) > 1:
        sweep.note(
            f"A run that lacks {listed([key for key in keys if key not in shared])} is compared "
            "with the other side's runs of every value; overall results therefore have no interval"
        )
    if not pairings:
        raise BadInputError(
            f"no run with {asked.key}={asked.a} has a partner with {asked.key}={asked.b} that "
            f"agrees in {' and '.join(shared)}: compare sweeps that share tasks and settings"
        )
    if one_sided := [run.name for run in sweep.runs if run.name not in used]:
        sweep.note(f"Not compared, as the other side has no such run: {listed(one_sided)}")
    return sorted(pairings, key=lambda pairing: pairing.label)


def _pairing(settings: Mapping[str, Scalar], a: list[Run], b: list[Run]) -> Pairing:
    starts = set()  # the settings that decide, with the seed, how learning starts
    of_seed: tuple[dict[tuple[Scalar, int], str], ...] = ({}, {})
    for runs, by_seed in zip((a, b), of_seed, strict=True):
        for run in runs:
            seed = run.config.get("seed", "")
            by_seed[seed, sum(key[0] == seed for key in by_seed)] = run.name
            of_start = [k for k in run.config if k == "algo.name" or k.startswith(("env.", "net."))]
            starts.add(tuple((key, run.config[key]) for key in sorted(of_start)))
    return Pairing(
        label=_label(settings, list(settings)),
        learning=_label(settings, [key for key in settings if key not in WORKERS]),
        task=_label(settings, [key for key in settings if key.startswith("env.")]),
        a=of_seed[0],
        b=of_seed[1],
        same_start=len(starts) == 1,
    )


def _label(config: Mapping[str, Scalar], keys: list[str]) -> str:
    return ", ".join(value_text(key, config.get(key, "null")) for key in keys)


class Quantity(NamedTuple):
    """A quantity that is compared."""

    name: str  # its name in the table
    per_run: Mapping[str, float]  # the number of each run that has one
    higher: bool = True  # whether higher is better
    # Whether the seed decides the quantity, so that runs of one seed depend on each other even with
    # different numbers of processes
    seeded: bool = False
    learned: bool = False  # whether the number of processes does not change it at all


class Comparison(NamedTuple):
    """A quantity compared on one task, or overall; an interval that makes no sense is NaN."""

    of: Quantity  # the quantity
    label: str  # the task and other keys that vary, or `overall`
    tasks: Sequence[Sides]  # the runs of each task, more than one for `overall`
    difference: Interval = UNKNOWN  # mean(B) - mean(A); NaN overall, as tasks have different units
    # The difference on the task's scale, where 0 is the start and 1 the better side's mean
    scaled: Interval = UNKNOWN
    # Mean(B) / mean(A), if all numbers are positive; overall the geometric mean
    ratio: Interval = UNKNOWN
    improvement: Interval = UNKNOWN  # the probability that a run of B is better than one of A
    # The task's range; None if the better side's mean is not above the start
    range: tuple[float, float] | None = None
    # The numbers of A and B, if they are not the means of their runs
    centres: tuple[float, float] | None = None

    @property
    def identical(self) -> bool:
        """Whether A and B agree in every run."""
        return all(both.identical for both in self.tasks)


def compare(
    quantity: Quantity,
    pairings: Sequence[Pairing],
    *,
    blocks: bool,
    starts: Mapping[str, float] | None = None,
) -> list[Comparison]:
    """Compares a quantity in each pairing that has it on both sides, and overall.

    `blocks` says that runs with the same seed ran in the same block of time, as those of one sweep
    do; their times are then paired. What is learned is paired if `Pairing.same_start` is true.
    `starts` holds each run's first return, for `scaled`.
    """
    samples = _samples(quantity, pairings)
    tasks: dict[str, Sides] = {}
    ranges: dict[str, tuple[float, float]] = {}
    scaled: dict[str, Estimate] = {}
    for label, (pairing, a, b) in samples.items():
        both = sides(a, b, shared=pairing.same_start if quantity.learned else blocks)
        tasks[label] = both
        names = [*pairing.a.values(), *pairing.b.values()]
        first = [starts[name] for name in names if name in starts] if starts else []
        start = float(np.mean(first)) if first else math.nan
        best = float(max(both.a.mean(), both.b.mean()))
        if best > start:
            ranges[label] = start, best
            value, variance, dof = stats.difference(both)
            scaled[label] = Estimate(value / (best - start), variance / (best - start) ** 2, dof)
    ratios = _log_ratios(tasks)
    comparisons = [
        Comparison(
            quantity,
            label,
            [both],
            stats.difference(both).interval(),
            scaled[label].interval() if label in scaled else UNKNOWN,
            ratios[label].interval(math.exp) if ratios else UNKNOWN,
            stats.improvement([both], higher=quantity.higher),
            ranges.get(label),
        )
        for label, both in tasks.items()
    ]
    if len(comparisons) < 2:
        return comparisons
    if quantity.seeded and not quantity.learned:
        whole = _overall_seeded(quantity, samples, blocks=blocks)
    else:
        ranged = {label: tasks[label] for label in scaled} if scaled else tasks
        whole = _overall(quantity, ranged, list(scaled.values()))
    return [*comparisons, _independent(whole, pairings)]


def compare_speeds(
    sweep: Sweep, pairings: Sequence[Pairing], asked: Question, *, warmup: int
) -> list[Comparison]:
    """Compares environment steps per second: of whole iterations, of collecting and of learning.

    Seconds, blocks and spread are treated as in speedups. Without any iteration after the warm-up
    there is nothing to compare, which is noted.
    """
    try:
        frame, unit = iterations_after_warmup(sweep, warmup), unit_of(sweep).steps
    except BadInputError as error:
        sweep.note(f"No speeds are compared: {error}")
        return []
    comparisons = []
    for column, name in SPEEDS.items():
        seconds = seconds_per_run(sweep, frame, column)
        positive = {run: values for run, values in seconds.items() if values.mean() > 0}
        cells = share_spread(sweep, measure(sweep, positive, asked.key))
        cell_of = {name: cell for cell in cells for name in cell.names}
        quantity = Quantity(name, {})
        tasks, ratios = [], []
        for pairing in pairings:
            a, b = (
                next((cell_of[name] for name in side.values() if name in cell_of), None)
                for side in (pairing.a, pairing.b)
            )
            if a is None or b is None:
                continue
            ratio = Estimate(math.log(a.compared / b.compared))
            difference = Interval(unit / b.compared - unit / a.compared)
            if a.own and b.own:
                dof = min(a.dof, b.dof)
                variance = float(np.log(a.draws).var() + np.log(b.draws).var())
                ratio = ratio._replace(variance=variance, dof=dof)
                ends = stats.interval_bounds(unit / b.draws - unit / a.draws, math.inf, dof)
                difference = Interval(difference.value, *map(float, ends))
            tasks.append(Sides(unit / a.per_run, unit / b.per_run, bool(a.blocks)))
            ratios.append(ratio)
            comparisons.append(
                Comparison(
                    quantity,
                    pairing.label,
                    tasks[-1:],
                    difference,
                    ratio=ratio.interval(math.exp),
                    improvement=stats.improvement(tasks[-1:]),
                    centres=(unit / a.compared, unit / b.compared),
                )
            )
        if len(tasks) > 1:
            whole = stats.overall(ratios, pooled=True).interval(math.exp)
            better = stats.improvement(tasks)
            found = Comparison(quantity, OVERALL, tasks, ratio=whole, improvement=better)
            comparisons.append(_independent(found, pairings))
    return comparisons


def repeated(pairings: Sequence[Pairing]) -> bool:
    """Whether a run is in several pairings, whose results then depend on each other."""
    names = [name for each in pairings for name in (*each.a.values(), *each.b.values())]
    return len(set(names)) < len(names)


def _independent(overall: Comparison, pairings: Sequence[Pairing]) -> Comparison:
    """The overall comparison, without intervals if its pairings depend on each other."""
    if not repeated(pairings):
        return overall
    scaled, ratio, improvement = overall.scaled, overall.ratio, overall.improvement
    return overall._replace(
        scaled=Interval(scaled.value),
        ratio=Interval(ratio.value),
        improvement=Interval(improvement.value),
    )


def _overall(
    quantity: Quantity, tasks: Mapping[str, Sides], scaled: Sequence[Estimate]
) -> Comparison:
    ratios = _log_ratios(tasks)
    return Comparison(
        quantity,
        OVERALL,
        list(tasks.values()),
        scaled=stats.overall(scaled).interval() if scaled else UNKNOWN,
        ratio=stats.overall(list(ratios.values())).interval(math.exp) if ratios else UNKNOWN,
        improvement=stats.improvement(list(tasks.values()), higher=quantity.higher),
    )


def _overall_seeded(
    quantity: Quantity, samples: Mapping[str, tuple[Pairing, Seeded, Seeded]], *, blocks: bool
) -> Comparison:
    """The comparison over tasks of each seed's mean over the numbers of processes.

    A seed's times to a return depend on each other, whatever the number of samplers, because
    learning takes the same steps: they count as one value.
    """
    by_task: dict[str, list[tuple[Seeded, Seeded]]] = {}
    for pairing, a, b in samples.values():
        by_task.setdefault(pairing.learning, []).append((a, b))
    tasks = {
        task: sides(*(_means(part) for part in zip(*pairs, strict=True)), shared=blocks)
        for task, pairs in by_task.items()
    }
    return _overall(quantity, tasks, [])


def _means(parts: Sequence[Seeded]) -> Seeded:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: float(np.mean([part[key] for part in parts if key in part])) for key in keys}


def _samples(
    quantity: Quantity, pairings: Sequence[Pairing]
) -> dict[str, tuple[Pairing, Seeded, Seeded]]:
    """The numbers of both sides by label; what is learned counts once for all `sampler.n`."""

    def numbers(side: BySeed[str]) -> Seeded:
        return {key: quantity.per_run[n] for key, n in side.items() if n in quantity.per_run}

    by_learning: dict[str, list[tuple[Pairing, Seeded, Seeded]]] = {}
    for pairing in pairings:
        key = pairing.learning if quantity.learned else pairing.label
        alike = by_learning.setdefault(key, [])
        a, b = numbers(pairing.a), numbers(pairing.b)
        if a and b:
            alike.append((pairing, a, b))
    samples = {}
    for learning, alike in by_learning.items():
        once = merged([(a, b) for _, a, b in alike])
        for i, (a, b) in once.items():
            label = learning if len(once) == 1 else alike[i][0].label
            samples[label] = (alike[i][0], a, b)
    return samples


def _log_ratios(tasks: Mapping[str, Sides]) -> dict[str, Estimate]:
    """The logarithmic ratio of each task; empty if a number is not positive."""
    if any(min(both.a.min(), both.b.min()) <= 0 for both in tasks.values()):
        return {}
    return {label: stats.log_ratio(both) for label, both in tasks.items()}


def sides(a: Seeded, b: Seeded, *, shared: bool) -> Sides:
    """The two samples, paired by seed if `shared` and the seeds are the same."""
    paired = shared and set(a) == set(b)
    partners = [b[key] for key in a] if paired else list(b.values())
    return Sides(np.array(list(a.values()), float), np.array(partners, float), paired)


def merged(samples: Sequence[tuple[Seeded, Seeded]]) -> dict[int, tuple[Seeded, Seeded]]:
    """Merges samples that hold the same runs again, so that each run counts once.

    Learning is the same for every number of samplers, so runs of `sampler.n` 1 and 2 hold the same
    returns for the same seed. Two samples are merged if, on one side, all seeds that they share
    agree exactly; one side is enough, because the other may be free-running, and then never agrees.
    A run with a new value is a further run of its seed. The key of a merged sample is the index of
    the first sample in it.
    """

    def agree(old: Seeded, new: Seeded) -> bool:
        shared = set(old) & set(new)
        return bool(shared) and all(old[key] == new[key] for key in shared)

    def union(old: Seeded, new: Seeded) -> Seeded:
        both = dict(old)
        for (seed, _), value in new.items():
            same = [other for (of, _), other in both.items() if of == seed]
            if value not in same:
                both[seed, len(same)] = value
        return both

    once: dict[int, tuple[Seeded, Seeded]] = {}
    for number, new in enumerate(samples):
        for first, old in once.items():
            if any(map(agree, old, new)):
                once[first] = (union(old[0], new[0]), union(old[1], new[1]))
                break
        else:
            once[number] = new
    return once
