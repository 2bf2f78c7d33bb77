"""Gathers a quantity of many runs at every point of a figure's axis, with bootstrap draws."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from walle.analysis.loading.directories import BadInputError, Scalar, counted, listed
from walle.analysis.measuring import stats
from walle.analysis.measuring.design import design, is_positive, resolve_key
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Sweep
from walle.errors import nearest


@dataclass(frozen=True)
class Cell:
    """All repeats of one line at one value of the axis.

    Attributes:
        line: the label of the figure's line, '' when there is only one line.
        by: the value on the axis.
        values: the sample: a mean for each run or, for a single run, a value for each iteration.
        draws: [draws] bootstrap means of `values`.
        names: the runs.
        seeds: the number of different seeds among the runs.
        oversubscribed: whether a run needed more cores than it had.
    """

    line: str
    by: Scalar
    values: FloatArray
    draws: FloatArray
    names: tuple[str, ...]
    seeds: int
    oversubscribed: bool

    @property
    def mean(self) -> float:
        """The mean over the runs."""
        return float(self.values.mean())

    def interval(self, *, positive: bool = False) -> stats.Interval:
        """The mean with its 95% interval; `positive` keeps the interval of a time above zero."""
        bounds = stats.interval_bounds(self.draws, self.values.size, positive=positive)
        return stats.Interval(self.mean, *bounds)

    def rate(self) -> stats.Interval:
        """One over the mean, with its interval: turns seconds an iteration into a rate."""
        bounds = stats.interval_bounds(1 / self.draws, self.values.size, positive=True)
        return stats.Interval(1 / self.mean, *bounds)

    @property
    def runs(self) -> int:
        """The number of runs."""
        return len(self.names)

    @property
    def repeats(self) -> str:
        """`3 seeds`, or `3 runs` when seeds repeat."""
        return repeats_text(self.runs, self.seeds)


def repeats_text(runs: int, seeds: int) -> str:
    """`3 seeds`, or `3 runs` when seeds repeat."""
    return counted(runs, "seed" if seeds == runs else "run")


def after_warmup(frame: pd.DataFrame, warmup: int) -> pd.DataFrame:
    """Drops the first `warmup` iterations of each run (and process, in timing.csv)."""
    owner = ["run", "process"] if "process" in frame else ["run"]
    if not warmup or not len(frame):
        return frame
    return frame[frame.groupby(owner, observed=True).cumcount() >= warmup]


def iterations_after_warmup(sweep: Sweep, warmup: int) -> pd.DataFrame:
    """The iterations after the warm-up; notes the runs that have none.

    Raises:
        BadInputError: no run has an iteration after the warm-up.
    """
    frame = after_warmup(sweep.iterations, warmup)
    short = [run.name for run in sweep.runs if run.name not in set(frame["run"])]
    if len(short) == len(sweep.runs):
        raise BadInputError(
            f"--warmup {warmup} leaves no iteration of any run; the longest has "
            f"{sweep.iterations.groupby('run', observed=True).size().max()}: use a smaller K"
        )
    if short:
        sweep.note(f"Runs without an iteration after the warm-up of {warmup}: {listed(short)}")
    return frame


def numeric_axis(sweep: Sweep, key: str) -> str:
    """The full configuration key for `--by key`; its values have to be numbers above zero.

    Raises:
        BadInputError: the key does not exist, or a value is not such a number.
    """
    by = resolve_key(sweep, key)
    odd = [value for value in sweep.values(by) if not is_positive(value)]
    if odd:
        raise BadInputError(
            f"--by {key}: this figure's axis needs numbers above 0, {by} is {odd[0]!r}"
        )
    return by


def measure(sweep: Sweep, per_run: dict[str, FloatArray], by: str) -> list[Cell]:
    """Gathers the values of the runs into cells, ordered by line and by value on the axis.

    Args:
        sweep: the runs.
        per_run: values of each run, such as the seconds of its iterations; runs without values
            are left out.
        by: the full configuration key on the axis.
    """
    rng = stats.generator()
    strained = {run.name for run in sweep.runs if run.oversubscribed}
    cells = []
    for (line, value), repeats in _repeats(sweep, by).items():
        names = tuple(name for name in repeats if len(per_run.get(name, ())))
        if not names:
            continue
        runs = [per_run[name] for name in names]
        values = np.array([r.mean() for r in runs]) if len(runs) > 1 else runs[0]
        seeds = len({repeats[name] for name in names})
        hollow = bool(strained & set(names))
        draws = stats.resample_means(values, rng)
        cells.append(Cell(line, value, values, draws, names, seeds, hollow))
    return cells


def _repeats(sweep: Sweep, by: str) -> dict[tuple[str, Scalar], dict[str, Scalar]]:
    """The runs and their seeds, for each line and value on the axis."""
    found: dict[tuple[str, Scalar], dict[str, Scalar]] = {}
    for run, value, line, seed in design(sweep, by).itertuples(index=False):
        found.setdefault((line, value), {})[run] = seed
    return found


def require(frame: pd.DataFrame, *columns: str, file: str = "iterations") -> None:
    """Checks that the frame of FILE.csv has the columns.

    Raises:
        BadInputError: a column is missing; the message names the nearest one.
    """
    for column in columns:
        if column not in frame:
            near = nearest(column, map(str, frame.columns))
            raise BadInputError(f"no column {column!r} in {file}.csv; {near}")


def column_per_run(frame: pd.DataFrame, column: str) -> dict[str, FloatArray]:
    """The values of a column of iterations.csv for each run, without empty cells.

    Raises:
        BadInputError: the frame has no such column.
    """
    require(frame, column)
    full = frame.dropna(subset=[column])
    groups = full.groupby("run", observed=True)[column]
    return {str(run): values.to_numpy(float) for run, values in groups}


def lines(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells of each line, in their order."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.line, []).append(cell)
    return found


def repeats_label(cells: Iterable[Cell]) -> str:
    """`3 seeds`, or `2 to 3 seeds` when the cells of a line have different numbers of runs."""
    counts = sorted({(cell.runs, cell.repeats) for cell in cells})
    if len(counts) == 1:
        return counts[0][1]
    return f"{counts[0][0]} to {counts[-1][1]}"


def of_line(line: str, sentence: str) -> str:
    """The sentence, after the line's label where the figure has several lines."""
    return f"{line}: {sentence}" if line else sentence


def warmup_sentence(warmup: int) -> str:
    """A sentence that says how many iterations are left out."""
    if not warmup:
        return "No warm-up: every iteration counts."
    which = "iteration" if warmup == 1 else f"{warmup} iterations"
    return f"Warm-up: the first {which} of each run is left out."


def single_run_note(cells: Iterable[Cell]) -> list[str]:
    """A sentence about the points with one run only, whose intervals are over its iterations."""
    single = sum(cell.runs == 1 for cell in cells)
    if not single:
        return []
    return [
        f"Where a point has one run only ({counted(single, 'point')}), its interval is over the "
        "run's iterations and says nothing about other seeds."
    ]
