"""Gathers a quantity of many runs at every point of a figure's axis, with intervals.

Repeats of the same seconds have one relative variance, or are compared within blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from walle.analysis.loading.directories import BadInputError, Scalar
from walle.analysis.measuring import stats
from walle.analysis.measuring.design import design
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Sweep
from walle.analysis.writing.format import counted, listed
from walle.errors import nearest


@dataclass(frozen=True)
class Cell:
    """All repeats of one line at one value of the axis."""

    line: str  # the label of the figure's line, '' when there is only one line
    by: Scalar  # the value on the axis
    # The sample: a mean for each run or, for a single run, a value for each iteration
    values: FloatArray
    # [draws] draws of `compared` of positive values, for comparisons with other cells; their spread
    # is that of normal draws, and Student's t with `dof` stretches it
    draws: FloatArray
    names: tuple[str, ...]  # the runs
    seeds: int  # the number of different seeds among the runs
    oversubscribed: bool  # whether a run needed more cores than it had
    dof: float  # the degrees of freedom of the spread
    mean: float  # the mean or, in blocks, the median over the runs
    compared: float  # the mean for comparisons with other cells
    blocks: tuple[str, ...] = ()  # the block of each run, where cells are compared within blocks
    # The bounds of the mean's own interval, where the spread is not that of `values`
    own: tuple[float, float] | None = None

    @property
    def key(self) -> tuple[str, Scalar]:
        """The line and the value on the axis."""
        return self.line, self.by

    def interval(self, *, positive: bool = False) -> stats.Interval:
        """The mean with its 95% interval; `positive` keeps the interval of a time above zero."""
        ends = stats.mean_bounds(self.values, positive=positive, size=self.dof + 1)
        return stats.Interval(self.mean, *(self.own or map(float, ends)))

    def rate(self) -> stats.Interval:
        """One over the mean, with its interval: turns seconds an iteration into a rate."""
        value, low, high = self.interval(positive=True)
        return stats.Interval(1 / value, 1 / high, 1 / low)

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


def measure(sweep: Sweep, per_run: dict[str, FloatArray], by: str) -> list[Cell]:
    """Gathers the values of the runs into cells, ordered by line and by value on the axis."""
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
        alone = len(names) == 1
        values = per_run[names[0]] if alone else np.array([per_run[n].mean() for n in names])
        size = min(values.size, stats.effective_size(values)) if alone else values.size
        draws, mean = stats.mean_draws(values, rng, size=size), float(values.mean())
        seeds, hollow = len({repeats[name] for name in names}), bool(strained & set(names))
        cells.append(Cell(line, value, values, draws, names, seeds, hollow, size - 1, mean, mean))
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


MEDIAN_SPREAD = math.sqrt(math.pi / 2)  # of a median over that of a mean, at most
FEWEST = 3  # degrees of freedom that oversubscribed cells need for a variance of their own

Blocks = dict[str, str]


class Spread(NamedTuple):
    """The standard deviation of the logarithm of a run's seconds, with its degrees of freedom."""

    deviation: float
    dof: float


def share_spread(sweep: Sweep, cells: list[Cell]) -> list[Cell]:
    """The cells with one relative variance of repeats for all of them.

    Logarithms of seconds are taken as cell + noise or, where the runs were measured in blocks, as
    cell + block + noise. The noise has one variance; oversubscribed cells have another one where
    they are enough to estimate it. The degrees of freedom are those of all repeats together, so
    that an interval at two seeds is not the ten times wider one that a single pair of values
    allows. Cells without any repeat stay.

    In blocks, a cell's own seconds are the median of its runs. Compared with other cells it has the
    seconds of its line's first cell times the median over the blocks of their ratio within a block:
    what slows a whole block, or few blocks, falls out.
    """
    if not cells or any(cell.per_run.min() <= 0 for cell in cells):
        return cells
    blocks = blocks_of(sweep, cells)
    whole = _spreads(cells, blocks)
    rng, shared = stats.generator(), []
    for cell, (centre, paired_s) in zip(cells, _centres(cells, blocks), strict=True):
        alike = [other for other in cells if other.oversubscribed == cell.oversubscribed]
        spreads = _spreads(alike, blocks)
        total, within = spreads if min(spread.dof for spread in spreads) >= FEWEST else whole
        if min(total.dof, within.dof) < 1:
            shared.append(cell)
            continue
        freedom, between = total.dof, total.dof - within.dof
        if between and total.deviation:  # few where whole blocks differ (Satterthwaite 1946)
            inside = within.deviation**2 * within.dof
            outside = max(0.0, total.deviation**2 * total.dof - inside)
            freedom = (outside + inside) ** 2 / (outside**2 / between + inside**2 / within.dof)
        median = cell.runs > 2 and total != within
        shrink = math.sqrt(cell.runs) / (MEDIAN_SPREAD if median else 1)
        reach = math.exp(stats.student(freedom) * total.deviation / shrink)
        normal = within.deviation / shrink * stats.normal_draws(rng)
        shared.append(
            replace(
                cell,
                mean=centre,
                compared=paired_s,
                blocks=tuple(blocks[name] for name in cell.names if blocks),
                dof=within.dof,
                draws=paired_s * np.exp(normal),
                own=(centre / reach, centre * reach),
            )
        )
    return shared


def blocks_of(sweep: Sweep, cells: list[Cell]) -> Blocks:
    """The block of each run, with its line; empty unless every cell shares one with the first."""
    of_run = {run.name: run.block for run in sweep.runs}
    without = [name for cell in cells for name in cell.names if of_run[name] == ""]
    if without and len(without) < sum(cell.runs for cell in cells):
        sweep.note(f"Nothing is compared within blocks, as these runs have none: {listed(without)}")
    if without:
        return {}
    blocks = {name: f"{of_run[name]}, {cell.line}" for cell in cells for name in cell.names}
    for group in lines(cells).values():
        first = {blocks[name] for name in group[0].names}
        if any(first.isdisjoint(blocks[name] for name in cell.names) for cell in group):
            return {}
    return blocks


def _centres(cells: list[Cell], blocks: Blocks) -> list[tuple[float, float]]:
    """The seconds of each cell by itself, and in comparisons: the mean of its runs, twice.

    In blocks, the median of its runs, and the first cell's median times the median ratio to it.
    """
    if not blocks:
        return [(cell.mean, cell.mean) for cell in cells]
    first: dict[str, dict[str, float]] = {}
    centres = []
    for cell in cells:
        values: dict[str, list[float]] = {}
        for name, value in zip(cell.names, np.log(cell.per_run), strict=True):
            values.setdefault(blocks[name], []).append(float(value))
        logs = {block: float(np.mean(mine)) for block, mine in values.items()}
        base = first.setdefault(cell.line, logs)
        ratios = [logs[block] - base[block] for block in logs if block in base]
        paired = math.exp(np.median(list(base.values())) + np.median(ratios))
        centres.append((math.exp(np.median(list(logs.values()))), paired))
    return centres


def _spreads(cells: list[Cell], blocks: Blocks) -> list[Spread]:
    """The spread of the runs around their cells, and around their cells and blocks.

    It is the deviation from the least-squares sum of one effect for each cell and each block.
    """
    logs = np.concatenate([np.log(cell.per_run) for cell in cells])
    cell_of = np.repeat(np.arange(len(cells)), [cell.runs for cell in cells])
    factors: list[npt.NDArray[Any]] = [cell_of]
    if blocks:
        factors.append(np.array([blocks[name] for cell in cells for name in cell.names]))
    spreads = []
    for used in (factors[:1], factors):
        columns = [factor[:, None] == np.unique(factor) for factor in used]
        matrix = np.concatenate(columns, axis=1).astype(float)
        effects, _, rank, _ = np.linalg.lstsq(matrix, logs, rcond=None)
        dof, rest = logs.size - int(rank), logs - matrix @ effects
        spreads.append(Spread(math.sqrt(float(rest @ rest) / dof) if dof else 0.0, dof))
    return spreads
