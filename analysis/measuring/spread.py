"""Estimates how much repeats of the same seconds differ: one relative variance, or in blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from walle.analysis.loading.directories import listed
from walle.analysis.measuring import stats
from walle.analysis.measuring.cells import Cell, lines
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Sweep

MEDIAN_SPREAD = math.sqrt(math.pi / 2)  # of a median over that of a mean, at most
FEWEST = 3  # degrees of freedom that oversubscribed cells need for a variance of their own

Blocks = dict[str, str]


class Spread(NamedTuple):
    """The standard deviation of the logarithm of a run's seconds, with its degrees of freedom."""

    deviation: float
    dof: float


class Spreads(NamedTuple):
    """The spread of repeats: in all, and within blocks; the same where there are no blocks."""

    total: Spread
    within: Spread

    @property
    def freedom(self) -> float:
        """The degrees of freedom of `total`: few where whole blocks differ (Satterthwaite 1946)."""
        between = self.total.dof - self.within.dof
        if not between or not self.total.deviation:
            return self.total.dof
        inside = self.within.deviation**2 * self.within.dof
        outside = max(0.0, self.total.deviation**2 * self.total.dof - inside)
        return (outside + inside) ** 2 / (outside**2 / between + inside**2 / self.within.dof)


def share_spread(sweep: Sweep, cells: list[Cell]) -> list[Cell]:
    """The cells with one relative variance of repeats for all of them.

    Logarithms of seconds are taken as cell + noise or, where the runs were measured in blocks, as
    cell + block + noise. The noise has one variance; oversubscribed cells have another one if they
    are enough to tell it. The degrees of freedom are those of all repeats together, so that an
    interval at two seeds is not the ten times wider one that a single pair of values allows. Cells
    without any repeat stay.

    In blocks, a cell's own seconds are the median of its runs. Compared with other cells it has the
    seconds of its line's first cell times the median over the blocks of their ratio within a block:
    what slows a whole block, or few blocks, falls out.
    """
    if not cells or any(cell.per_run.min() <= 0 for cell in cells):
        return cells
    blocks = blocks_of(sweep, cells)
    whole = _spreads(cells, blocks)
    rng, found = stats.generator(), []
    for cell, (centre, paired_s) in zip(cells, _centres(cells, blocks), strict=True):
        alike = [other for other in cells if other.oversubscribed == cell.oversubscribed]
        own = _spreads(alike, blocks)
        spreads = own if min(own.total.dof, own.within.dof) >= FEWEST else whole
        enough = min(spreads.total.dof, spreads.within.dof) >= 1
        paired = replace(
            cell,
            centre=centre,
            paired=paired_s,
            blocks=tuple(blocks[name] for name in cell.names if blocks),
        )
        found.append(_with_spread(paired, spreads, rng) if enough else cell)
    return found


def blocks_of(sweep: Sweep, cells: list[Cell]) -> Blocks:
    """The block of each run, with its line; empty unless every cell shares one with the first."""
    of_run = {run.name: run.block for run in sweep.runs}
    without = [name for cell in cells for name in cell.names if of_run[name] == ""]
    if without and len(without) < sum(cell.runs for cell in cells):
        sweep.note(f"Nothing is compared within blocks, as these runs have none: {listed(without)}")
    if without:
        return {}
    found = {name: f"{of_run[name]}, {cell.line}" for cell in cells for name in cell.names}
    for group in lines(cells).values():
        first = {found[name] for name in group[0].names}
        if any(first.isdisjoint(found[name] for name in cell.names) for cell in group):
            return {}
    return found


def _with_spread(cell: Cell, spreads: Spreads, rng: np.random.Generator) -> Cell:
    median = cell.runs > 2 and spreads.total != spreads.within
    shrink = math.sqrt(cell.runs) / (MEDIAN_SPREAD if median else 1)
    total, within = spreads
    reach = math.exp(stats.student(spreads.freedom) * total.deviation / shrink)
    draws = cell.compared * np.exp(within.deviation / shrink * stats.normal_draws(rng))
    own = (cell.mean / reach, cell.mean * reach)
    return replace(cell, freedom=within.dof, draws=draws, own=own)


def _centres(cells: list[Cell], blocks: Blocks) -> list[tuple[float, float]]:
    """The seconds of each cell by itself, and in comparisons: the mean of its runs, twice.

    In blocks, the median of its runs, and the first cell's median times the median ratio to it.
    """
    if not blocks:
        return [(cell.mean, cell.mean) for cell in cells]
    first: dict[str, dict[str, float]] = {}
    centres = []
    for cell in cells:
        mine = _logs_by_block(cell, blocks)
        base = first.setdefault(cell.line, mine)
        ratios = [mine[block] - base[block] for block in mine if block in base]
        paired = math.exp(np.median(list(base.values())) + np.median(ratios))
        centres.append((math.exp(np.median(list(mine.values()))), paired))
    return centres


def _logs_by_block(cell: Cell, blocks: Blocks) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for name, value in zip(cell.names, np.log(cell.per_run), strict=True):
        found.setdefault(blocks[name], []).append(float(value))
    return {block: float(np.mean(values)) for block, values in found.items()}


def _spreads(cells: list[Cell], blocks: Blocks) -> Spreads:
    """The spread of the runs around their cells, and around their cells and blocks."""
    logs = np.concatenate([np.log(cell.per_run) for cell in cells])
    place = np.repeat(np.arange(len(cells)), [cell.runs for cell in cells])
    total = _residual_spread(logs, [place])
    if not blocks:
        return Spreads(total, total)
    block = [blocks[name] for cell in cells for name in cell.names]
    return Spreads(total, _residual_spread(logs, [place, np.array(block)]))


def _residual_spread(logs: FloatArray, factors: list[npt.NDArray[np.generic]]) -> Spread:
    """The deviation from the least-squares sum of one effect for each level of the factors."""
    columns = [factor[:, None] == np.unique(factor) for factor in factors]
    matrix = np.concatenate(columns, axis=1).astype(float)
    effects, _, rank, _ = np.linalg.lstsq(matrix, logs, rcond=None)
    dof = logs.size - int(rank)
    rest = logs - matrix @ effects
    return Spread(math.sqrt(float(rest @ rest) / dof) if dof else 0.0, dof)
