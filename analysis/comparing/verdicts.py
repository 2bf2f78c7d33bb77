"""Says in words what a comparison of two sides has found."""

from __future__ import annotations

from walle.analysis.comparing.comparisons import OVERALL, SCORE, Comparison
from walle.analysis.comparing.matching import Group, Question
from walle.analysis.loading.directories import counted, listed
from walle.analysis.writing import words


def name(asked: Question, value: object) -> str:
    """The short name of a side: `ppo` and `trpo`, but `n=1` and `n=2`."""
    return str(value) if isinstance(value, str) else f"{asked.key.split('.')[-1]}={value}"


def sides(groups: list[Group], asked: Question) -> str:
    """A sentence that says which runs A and B are."""
    a = counted(len({run for group in groups for run in group.a.values()}), "run")
    b = counted(len({run for group in groups for run in group.b.values()}), "run")
    return f"A is {asked.key}={asked.a} ({a}), B is {asked.key}={asked.b} ({b})."


def of_each(found: list[Comparison], groups: list[Group], asked: Question) -> list[str]:
    """A sentence for each quantity, about all tasks or the only one."""
    heads = {one.of.name: one for one in found}  # `overall` is the last
    same = {of: all(one.identical for one in found if one.of.name == of) for of in heads}
    return [
        f"{of.capitalize()}: {_verdict(one, asked, _kind(found, groups, of), identical=same[of])}"
        for of, one in heads.items()
    ]


def _kind(found: list[Comparison], groups: list[Group], of: str) -> str:
    """The word for the groups: tasks where the environment alone labels them, else groups."""
    mine = [one for one in found if one.of.name == of]
    labels = {one.label for one in mine[:-1]}
    if mine[0].of.seeded and not mine[0].of.learned:  # combined over numbers of workers first
        labels = {group.learning for group in groups}
    return "tasks" if labels <= {group.task for group in groups} else "groups"


def ranges(found: list[Comparison]) -> list[str]:
    """Sentences about the ranges of scaled differences, and about tasks that have none."""
    scores = [one for one in found if one.of.name == SCORE and one.label != OVERALL]
    known = [
        words.of_line(one.label, "{:.4g} to {:.4g}".format(*one.range))
        for one in scores
        if one.range
    ]
    said = (
        [f"Range, from the start to the better side's mean: {'; '.join(known)}."] if known else []
    )
    none = [one.label for one in scores if not one.range and one.label]
    if none:
        said.append(
            f"No range, so not in the overall final score: {listed(none)}; the returns of neither "
            "side rose from the start."
        )
    return said


def _verdict(one: Comparison, asked: Question, kind: str, *, identical: bool) -> str:
    a, b = name(asked, asked.a), name(asked, asked.b)
    if identical:
        return f"{a} and {b} are identical in every run."
    where = f" over {len(one.tasks)} {kind}" if len(one.tasks) > 1 else ""
    of_score = one.of.name == SCORE
    interval, none = (one.difference, 0.0) if of_score else (one.ratio, 1.0)
    text = f"{b} - {a} = {interval}" if of_score else f"{b} / {a} = {interval}"
    if of_score and len(one.tasks) > 1:
        interval = one.scaled
        text = f"{b} - {a} = {interval} of a task's range"
    if interval.value != interval.value:
        text, interval = "no number for all tasks", interval._replace(low=none, high=none)
    if interval.low != interval.low:
        return f"{text}{where}; one run a side says nothing about chance."
    shown = "" if interval.low <= none <= interval.high else _better(one, interval.value > none, b)
    chance = f"P(a run of {b} is better) = {one.improvement}"
    return f"{text}{where}; {shown or 'no difference is shown'}; {chance}."


def _better(one: Comparison, above: bool, b: str) -> str:
    return f"{b} is {'better' if above == one.of.higher else 'worse'}"


def pairing(found: list[Comparison]) -> str:
    """A sentence that says for which quantities runs of the same seed are compared."""
    paired = dict.fromkeys(one.of.name for one in found if all(t.paired for t in one.tasks))
    if not paired:
        return "Runs are independent: no seeds are paired."
    return f"Paired by seed: {listed(list(paired))}."
