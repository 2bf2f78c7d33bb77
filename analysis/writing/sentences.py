"""Sentences about what a figure is made of, and its table as text."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import pandas as pd

from walle.analysis.measuring import wall_clock
from walle.analysis.measuring.groups import Cell, changing_together, sort_key
from walle.analysis.runs import FREE, DamagedError, Scalar, Sweep, read_json
from walle.analysis.writing.format import counted, listed, table_digits, with_range

SAME = 0.01  # lengths that differ by less are the same
FEW_LANES = 8


def account(sweep: Sweep) -> list[str]:
    """Sentences about the runs: how many were used, which were left out and why, the notes."""
    used, out = len(sweep.runs), len(sweep.left_out)
    text = [f"{used} of {used + out} runs used."]
    text += [f"Left out: {run.name}: {run.reason}." for run in sweep.left_out]
    return text + [f"{note}." for note in sweep.notes]


def ended(sentence: object) -> str:
    """The sentence with a full stop, unless it ends in a mark already."""
    text = str(sentence)
    return text if text.endswith((".", "?")) else f"{text}."


def of_line(line: str, phrase: str) -> str:
    """The phrase, after the line's label if the figure has several lines."""
    return f"{line}: {phrase}" if line else phrase


def for_line(line: str, sentence: str) -> str:
    """The sentence, with the line that it is about if the figure has several lines."""
    return f"For {line}: {sentence}" if line else sentence[:1].upper() + sentence[1:]


def also_differ(sweep: Sweep, by: str) -> list[str]:
    """Sentences about the keys that change together with those that a figure names."""
    sentences = []
    for key, others in changing_together(sweep, by).items():
        texts = []
        for other in others:
            values = map(str, sorted(set(sweep.values(other)), key=sort_key))
            texts.append(f"{other} ({listed(list(values), most=3)})")
        sentences.append(f"With {key} also differ: {listed(texts)}.")
    return sentences


def machine(sweep: Sweep) -> list[str]:
    """The launcher's sentences about unequal cores and other programs, over all launches."""
    sentences: list[str] = []
    for path in sweep.paths:
        try:
            launches = read_json(path / "manifest.json").get("launches", [])
            sentences += [n for one in launches for n in one.get("machine", {}).get("notes", [])]
        except (DamagedError, AttributeError, TypeError) as error:
            sentences.append(f"What {path.name} says of the machine cannot be read: {error}.")
    return list(dict.fromkeys(sentences))


def repeats_label(cells: Iterable[Cell]) -> str:
    """`3 seeds`, or `2 to 3 seeds` when the cells of a line have different numbers of runs."""
    counts = sorted({(cell.runs, cell.repeats) for cell in cells})
    return counts[0][1] if len(counts) == 1 else f"{counts[0][0]} to {counts[-1][1]}"


def warmup_sentence(warmup: int) -> str:
    """A sentence that says how many iterations are left out."""
    if not warmup:
        return "No warm-up: every iteration counts."
    which = "iteration" if warmup == 1 else f"{warmup} iterations"
    return f"Warm-up: the first {which} of each run is left out."


def seconds(sweep: Sweep, iterations: pd.DataFrame, by: str) -> list[str]:
    """A sentence about the unit of all seconds, and the steps of iterations if they differ."""
    text = f"All seconds are per {wall_clock.unit_of(sweep).words}"
    rows = wall_clock.steps_of(sweep).loc[iterations.index]
    means = rows.groupby(iterations["run"], observed=True).mean()
    if means.max() >= (1 + SAME) * means.min():
        values = {run.name: run.config.get(by, "null") for run in sweep.runs}
        steps: dict[Scalar, list[float]] = {}
        for run, mean in means.items():
            steps.setdefault(values[str(run)], []).append(float(mean))
        texts = {v: dict.fromkeys(f"{x:,.0f}" for x in sorted(steps[v])) for v in steps}
        ordered = sorted(texts, key=sort_key)
        each = ", ".join(f"{' or '.join(texts[v])} at {by}={v}" for v in ordered)
        text += f", as iterations differ in their steps: {each}"
    return [f"{text}."]


def throughput(sweep: Sweep, cells: Iterable[Cell]) -> list[str]:
    """A sentence about what the seconds of collection mean for free-running runs."""
    names = {name for cell in cells for name in cell.names}
    if not any(run.mode == FREE and run.name in names for run in sweep.runs):
        return []
    return [
        "Free-running, collection is timed by the wall clock: the seconds in which so many steps "
        "arrived, with all waiting of the samplers."
    ]


def few_lanes(sweep: Sweep, by: str) -> list[str]:
    """A sentence about the values of `sampler.n` at which samplers have few lanes."""
    few = {run.config.get(by, "") for run in sweep.runs if run.lanes and run.lanes[0] < FEW_LANES}
    if by != "sampler.n" or not few:
        return []
    return [
        f"At n={', '.join(map(str, sorted(few, key=sort_key)))} a sampler has fewer than "
        f"{FEW_LANES} lanes. A call of the policy has a fixed cost, which few lanes share, "
        "so the speedup has a ceiling that the law calls serial: use more sampler.lanes to measure "
        "the samplers alone."
    ]


def sample(warmup: int, cells: Collection[Cell]) -> list[str]:
    """Sentences about the sample: the warm-up, blocks, and the variance that all points share."""
    sentences = [warmup_sentence(warmup)]
    if blocks := {block.partition(", ")[0] for cell in cells for block in cell.blocks}:
        sentences.append(
            f"The runs were measured in {counted(len(blocks), 'block')}: points are compared with "
            "the first one within each block, and the median over the blocks counts."
        )
    shown = [cell for cell in cells if cell.own and cell.own[0] == cell.own[0]]
    if dofs := list(dict.fromkeys(cell.dof for cell in shown)):
        sentences.append(
            "Points share one relative variance of repeats unless Bartlett's test (5%) rejects it; "
            f"degrees of freedom: {listed([f'{dof:.3g}' for dof in dofs])}."
        )
    return sentences


def few_repeats(cells: Iterable[Cell]) -> list[str]:
    """A sentence on how to get intervals, if points have none."""
    few = [cell for cell in cells if math.isnan(cell.interval().low)]
    if not few:
        return []
    count = repeats_label(few)
    return [f"Points of {count} have no interval: add seed=0,1,2 to the sweep's command."]


def without_lone_line(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Drops `line` (or the given columns) if all rows have the same value."""
    lone = [c for c in columns or ("line",) if table[c].nunique() == 1]
    return table.drop(columns=lone)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table as text without empty columns: intervals in brackets, four significant digits.

    Large numbers keep all their digits before the point: 240000 steps, not 2.4e+05.
    """

    def text(value: object, low: float = math.nan, high: float = math.nan) -> str:
        if isinstance(value, bool) or type(value).__name__ == "bool":
            return "yes" if value else ""
        if isinstance(value, float):
            missing = math.isnan(value) and math.isnan(low)
            return "" if missing else with_range((value, low, high), table_digits)
        return str(value)

    bounds = {c + end for c in table.columns for end in ("_low", "_high")}
    columns = {}
    for name in table.columns:
        if name not in bounds:
            parts = [name, f"{name}_low", f"{name}_high"] if f"{name}_low" in table else [name]
            columns[name] = [text(*row) for row in zip(*(table[c] for c in parts), strict=True)]
    return pd.DataFrame({name: cells for name, cells in columns.items() if any(cells)})
