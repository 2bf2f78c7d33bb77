"""Gathers a quantity of many runs at every point of a figure's axis, with their intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from walle.analysis.loading.directories import BadInputError, Scalar, counted, listed
from walle.analysis.measuring import stats
from walle.analysis.measuring.clocks import clock, counted_rows
from walle.analysis.measuring.design import design
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
        draws: [draws] draws of `compared` of positive values, for comparisons with other cells;
            their spread is that of normal draws, and Student's t with `dof` stretches it.
        names: the runs.
        seeds: the number of different seeds among the runs.
        oversubscribed: whether a run needed more cores than it had.
        independent: the number of independent values; None: as many as `values`.
        freedom: the degrees of freedom of the spread; None: one less than the independent values.
        centre: a centre of the runs other than their mean.
        paired: the seconds in comparisons, where cells are compared within blocks.
        blocks: the block of each run, where cells are compared within blocks.
        own: the bounds of the mean's own interval, where the spread is not that of `values`.
    """

    line: str
    by: Scalar
    values: FloatArray
    draws: FloatArray
    names: tuple[str, ...]
    seeds: int
    oversubscribed: bool
    independent: float | None = None
    freedom: float | None = None
    centre: float | None = None
    paired: float | None = None
    blocks: tuple[str, ...] = ()
    own: tuple[float, float] | None = None

    @property
    def key(self) -> tuple[str, Scalar]:
        """The line and the value on the axis."""
        return self.line, self.by

    @property
    def mean(self) -> float:
        """The mean over the runs, or `centre` in its place."""
        return float(self.values.mean()) if self.centre is None else self.centre

    @property
    def compared(self) -> float:
        """The mean for comparisons with other cells: what `draws` are draws of."""
        return self.mean if self.paired is None else self.paired

    @property
    def dof(self) -> float:
        """The degrees of freedom of the spread."""
        size = self.values.size if self.independent is None else self.independent
        return size - 1 if self.freedom is None else self.freedom

    def interval(self, *, positive: bool = False) -> stats.Interval:
        """The mean with its 95% interval; `positive` keeps the interval of a time above zero."""
        return stats.Interval(self.mean, *(self.own or self._bounds(positive)))

    def rate(self) -> stats.Interval:
        """One over the mean, with its interval: turns seconds an iteration into a rate."""
        low, high = self.own or self._bounds(positive=True)
        return stats.Interval(1 / self.mean, 1 / high, 1 / low)

    def _bounds(self, positive: bool) -> tuple[float, float]:
        low, high = stats.mean_bounds(self.values, positive=positive, size=self.independent)
        return float(low), float(high)

    @property
    def per_run(self) -> FloatArray:
        """[runs] the mean of each run."""
        return self.values if self.runs > 1 else self.values.mean(keepdims=True)

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


def iterations_after_warmup(sweep: Sweep, warmup: int, *, compiling: bool = False) -> pd.DataFrame:
    """The iterations after the warm-up; notes the runs that have none.

    The warm-up is the first `warmup` iterations after each start of a run, and after it went on.
    The times are without compiling, unless `compiling` leaves it in.

    Raises:
        BadInputError: no run has an iteration after the warm-up.
    """
    frame = clock(sweep, compiling=compiling)[counted_rows(sweep, warmup)]
    short = [run.name for run in sweep.runs if run.name not in set(frame["run"])]
    if len(short) == len(sweep.runs):
        raise BadInputError(
            f"--warmup {warmup} leaves no iteration of any run; the longest has "
            f"{sweep.iterations.groupby('run', observed=True).size().max()}: use a smaller K"
        )
    if short:
        sweep.note(f"Runs without an iteration after the warm-up of {warmup}: {listed(short)}")
    return frame


def measure_column(sweep: Sweep, frame: pd.DataFrame, column: str, by: str) -> list[Cell]:
    """`measure` of a column of iterations.csv, see `column_per_run`."""
    return measure(sweep, column_per_run(frame, column), by)


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
    seeds_of: dict[tuple[str, Scalar], dict[str, Scalar]] = {}
    for run, value, line, seed in design(sweep, by).itertuples(index=False):
        seeds_of.setdefault((line, value), {})[run] = seed
    cells = []
    for (line, value), repeats in seeds_of.items():
        names = tuple(name for name in repeats if len(per_run.get(name, ())))
        if not names:
            continue
        runs = [per_run[name] for name in names]
        alone = len(runs) == 1
        values = runs[0] if alone else np.array([r.mean() for r in runs])
        size = min(values.size, stats.effective_size(values)) if alone else values.size
        seeds = len({repeats[name] for name in names})
        hollow = bool(strained & set(names))
        draws = stats.mean_draws(values, rng, size=size)
        cells.append(Cell(line, value, values, draws, names, seeds, hollow, independent=size))
    return cells


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


def learnt(frame: pd.DataFrame, column: str) -> dict[str, FloatArray]:
    """[rows, 2]: the environment steps and the column of iterations.csv, of each run."""
    require(frame, "env_steps", column)
    groups = frame.groupby("run", observed=True)
    return {str(run): rows[["env_steps", column]].to_numpy(float) for run, rows in groups}


def lines(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells of each line, in their order."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.line, []).append(cell)
    return found
