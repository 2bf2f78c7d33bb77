"""A quantity of many runs, gathered at every point of a figure's axis, with bootstrap draws."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis import stats
from analysis.design import design, resolve_key
from analysis.directories import BadInputError, Scalar, listed
from analysis.runs import Sweep

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """All repeats of one line at one value of the axis.

    Attributes:
        line: which line of the figure, '' when there is only one.
        by: the value on the axis.
        values: what was resampled: a mean for each run or, of a single run, its iterations.
        draws: [draws] bootstrap means of `values`.
        names: the runs.
        seeds: how many different seeds among them.
        oversubscribed: a run needed more cores than it had.
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
        """The mean and its 95% interval; `positive` for times, which cannot fall below zero."""
        bounds = stats.interval_bounds(self.draws, self.values.size, positive=positive)
        return stats.Interval(self.mean, *bounds)

    def rate(self) -> stats.Interval:
        """One over the mean, with its interval: seconds an iteration as iterations a second."""
        bounds = stats.interval_bounds(1 / self.draws, self.values.size, positive=True)
        return stats.Interval(1 / self.mean, *bounds)

    @property
    def runs(self) -> int:
        """How many runs."""
        return len(self.names)

    @property
    def repeats(self) -> str:
        """`3 seeds`, or `3 runs` when seeds repeat."""
        return repeats_text(self.runs, self.seeds)


def repeats_text(runs: int, seeds: int) -> str:
    """`3 seeds`, or `3 runs` when seeds repeat."""
    return f"{runs} {'seed' if seeds == runs else 'run'}{'s' if runs != 1 else ''}"


def after_warmup(frame: pd.DataFrame, warmup: int) -> pd.DataFrame:
    """Without the first `warmup` iterations of each run (and process, in timing.csv)."""
    owner = ["run", "process"] if "process" in frame else ["run"]
    if not warmup or not len(frame):
        return frame
    return frame[frame.groupby(owner, observed=True).cumcount() >= warmup]


def iterations_after_warmup(sweep: Sweep, warmup: int) -> pd.DataFrame:
    """The iterations that count; a run that is shorter than the warm-up is noted.

    Raises:
        BadInputError: nothing is left of any run.
    """
    frame = after_warmup(sweep.iterations, warmup)
    short = [run.name for run in sweep.runs if run.name not in set(frame["run"])]
    if len(short) == len(sweep.runs):
        raise BadInputError(
            f"--warmup {warmup} leaves no iteration of any run; the longest has "
            f"{sweep.iterations.groupby('run', observed=True).size().max()}: use a smaller one"
        )
    if short:
        sweep.note(f"No longer than the warm-up of {warmup}, so not counted: {listed(short)}")
    return frame


def numeric_axis(sweep: Sweep, key: str) -> str:
    """The full key for `--by key`, whose values have to be numbers.

    Raises:
        BadInputError: the key does not exist, or a value is not a number.
    """
    by = resolve_key(sweep, key)
    odd = [v for v in sweep.values(by) if isinstance(v, str | bool)]
    if odd:
        raise BadInputError(f"--by {key}: this figure's axis needs numbers, {by} is {odd[0]!r}")
    return by


def measure(sweep: Sweep, per_run: dict[str, FloatArray], by: str) -> list[Cell]:
    """Cells ordered by line and value.

    Args:
        sweep: the runs.
        per_run: each run's values, such as its iterations' seconds; runs without values are
            left out.
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
    """The runs of each line and value, each with its seed."""
    found: dict[tuple[str, Scalar], dict[str, Scalar]] = {}
    for run, value, line, seed in design(sweep, by).itertuples(index=False):
        found.setdefault((line, value), {})[run] = seed
    return found


def require(frame: pd.DataFrame, *columns: str) -> None:
    """Checks that the columns are there.

    Raises:
        BadInputError: one is not.
    """
    for column in columns:
        if column not in frame:
            raise BadInputError(f"no column {column!r}; the columns are {', '.join(frame.columns)}")


def column_per_run(frame: pd.DataFrame, column: str) -> dict[str, FloatArray]:
    """The values of one column for each run, empty cells left out.

    Raises:
        BadInputError: there is no such column.
    """
    require(frame, column)
    full = frame.dropna(subset=[column])
    groups = full.groupby("run", observed=True)[column]
    return {str(run): values.to_numpy(float) for run, values in groups}


def lines(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells of each line, in order."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.line, []).append(cell)
    return found


def repeats_label(cells: Iterable[Cell]) -> str:
    """`3 seeds`, or `2 to 3 seeds` when the points of a line have different numbers."""
    counts = sorted({(cell.runs, cell.repeats) for cell in cells})
    if len(counts) == 1:
        return counts[0][1]
    return f"{counts[0][0]} to {counts[-1][1]}"


def warmup_sentence(warmup: int) -> str:
    """Says how many iterations are left out."""
    if not warmup:
        return "No warm-up: every iteration counts."
    which = "iteration" if warmup == 1 else f"{warmup} iterations"
    return f"Warm-up: the first {which} of each run left out."


def single_run_note(cells: Iterable[Cell]) -> list[str]:
    """Says where an interval is over the iterations of one run because there is no other seed."""
    single = [cell for cell in cells if cell.runs == 1]
    if not single:
        return []
    return [
        f"One seed only at {len(single)} of the points: intervals there are over the iterations of "
        "that run and say nothing of other seeds."
    ]
