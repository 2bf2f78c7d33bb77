"""Gathers a quantity of many runs at every point of a figure's axis, with intervals.

The configurations decide which runs are values of the axis, which are lines, and which are repeats.
Repeated measurements of seconds share a relative variance, or are compared within blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from walle.analysis.measuring import stats
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import NAMES, BadInputError, Scalar, Sweep
from walle.analysis.writing.format import counted, listed
from walle.errors import nearest

NAMING_LEAVES = ("id", "name")


def resolve_key(sweep: Sweep, key: str) -> str:
    """The full configuration key for `key`: a key, a group's name (`env`) or a last part (`n`).

    Raises BadInputError if no key fits, or several keys do.
    """
    known = sorted({k for run in sweep.runs for k in run.config})
    if key in known:
        return key
    of_group = [f"{key}.{leaf}" for leaf in NAMING_LEAVES if f"{key}.{leaf}" in known]
    leaves = [k for k in known if k.endswith(f".{key}")]
    of_leaf = [k for k in leaves if k in sweep.varying] or leaves
    if of_group:
        return next((k for k in of_group if k in sweep.varying), of_group[0])
    if len(of_leaf) == 1:
        return of_leaf[0]
    if of_leaf:
        raise BadInputError(f"--by {key}: choose one of: {', '.join(of_leaf)}")
    near = nearest(key, sweep.varying or known)
    raise BadInputError(f"--by {key}: no such configuration key; {near}")


def numeric_axis(sweep: Sweep, key: str | None) -> str:
    """The full configuration key of an axis of numbers above zero, by default one that varies.

    Without `key` it is `learner.n` if this varies and `sampler.n` does not, else `sampler.n`.

    Raises BadInputError if the key does not exist, or a value is not such a number.
    """
    if key is None:
        learners = "learner.n" in sweep.varying and "sampler.n" not in sweep.varying
        return "learner.n" if learners else "sampler.n"
    by = resolve_key(sweep, key)
    odd = [value for value in sweep.values(by) if not is_positive(value)]
    if odd:
        raise BadInputError(
            f"--by {key}: this figure's axis needs numbers above 0, {by} is {odd[0]!r}"
        )
    return by


def axis_of(sweep: Sweep) -> str:
    """The key that a figure compares by default: `sampler.n` if it varies or nothing does.

    Otherwise it is the first key that varies.
    """
    if "sampler.n" in sweep.varying:
        return "sampler.n"
    return next(iter(line_keys(sweep, "")), "sampler.n")


def line_keys(sweep: Sweep, *by: str) -> list[str]:
    """The fewest varying keys that, beside the keys `by`, distinguish the lines of a figure.

    `env=hopper,ant` changes `env.id` together with other keys of the group: one of these keys is
    enough. A key that `by` determines is not needed.
    """
    chosen: list[str] = []
    candidates = [key for key in sweep.varying if key not in (*by, *NAMES)]
    for key in sorted(candidates, key=_plainness):
        if not _determined(sweep, key, [*by, *chosen]):
            chosen.append(key)
    return chosen


def changing_together(sweep: Sweep, by: str) -> dict[str, list[str]]:
    """The varying keys that no label shows, grouped by the key of the figure they change with.

    A name (`algo.name`) stands for the other keys of its group, which need no mention.
    """
    lines = line_keys(sweep, by)
    named = [by, *lines] if by in sweep.varying else lines
    groups = [k.rsplit(".", 1)[0] + "." for k in named if k.split(".")[-1] in NAMING_LEAVES]
    together: dict[str, list[str]] = {}
    for key in sorted(sweep.varying, key=_plainness):
        if key in (*named, *NAMES) or key.startswith(tuple(groups)):
            continue
        alone = [other for other in named if _determined(sweep, key, [other])]
        together.setdefault(alone[0] if alone else " and ".join(named), []).append(key)
    return together


def design(sweep: Sweep, by: str, *known: str) -> pd.DataFrame:
    """One row per run: `run`, `by` (the value on the axis), `line` (a label or ''), `seed`.

    Rows that agree in `by`, `line` and the keys `known`, which no label shows, are repeats. The
    rows are ordered by line and value.
    """
    keys = line_keys(sweep, by, *known)
    rows = []
    for run in sweep.runs:
        parts = [value_text(key, run.config.get(key, "null")) for key in keys]
        seed = run.config.get("seed", "")
        rows.append((run.name, run.config.get(by, "null"), ", ".join(parts), seed))
    rows.sort(key=lambda row: (row[2], sort_key(row[1])))
    return pd.DataFrame(rows, columns=["run", "by", "line", "seed"])


def value_text(key: str, value: Scalar, sign: str = " ") -> str:
    """`n 1`, but only `ppo` if the key's last part is `name` or `id`, or the key is `sweep`."""
    leaf = key.split(".")[-1]
    if leaf in (*NAMING_LEAVES, "sweep"):
        return str(value)
    return f"{key if key == 'learner.n' else leaf}{sign}{value}"  # `n` is the number of samplers


def is_positive(value: Scalar) -> bool:
    """Whether a value is a number above zero, as a number of workers is."""
    return isinstance(value, int | float) and value > 0


def sort_key(value: Scalar) -> tuple[int, float, str]:
    """Sorts numbers by size, then everything else by text."""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _plainness(key: str) -> tuple[bool, int, str]:
    return key.split(".")[-1] not in NAMING_LEAVES, key.count("."), key


def _determined(sweep: Sweep, key: str, by: Iterable[str]) -> bool:
    """Whether runs that agree in all of `by` always agree in `key`."""
    seen: dict[tuple[Scalar, ...], Scalar] = {}
    columns = zip(*(sweep.values(k) for k in by), strict=True)
    return all(
        seen.setdefault(known, value) == value
        for known, value in zip(columns, sweep.values(key), strict=True)
    )


@dataclass(frozen=True)
class Cell:
    """All repeats of one line at one value of the axis."""

    line: str  # the label of the figure's line, '' when there is only one line
    by: Scalar  # the value on the axis
    per_run: FloatArray  # [runs] the sample: the mean of each run
    # [draws] draws of `compared` for comparisons with other cells, all equal if values are not
    # positive; they are log-normal, and the comparisons widen them by Student's t with `dof`
    draws: FloatArray
    names: tuple[str, ...]  # the runs
    seeds: int  # the number of different seeds among the runs
    oversubscribed: bool  # whether a run needed more cores than it had
    dof: float  # the degrees of freedom of the spread
    mean: float  # the mean or, in blocks, the median over the runs
    compared: float  # the mean for comparisons with other cells
    blocks: tuple[str, ...] = ()  # the block of each run, if cells are compared within blocks
    # The bounds of the mean's own interval, if the spread is not that of `per_run`
    own: tuple[float, float] | None = None

    @property
    def key(self) -> tuple[str, Scalar]:
        """The line and the value on the axis."""
        return self.line, self.by

    def interval(self, *, positive: bool = False) -> stats.Interval:
        """The mean with its 95% interval; `positive` keeps the interval of a time above zero."""
        ends = stats.mean_bounds(self.per_run, positive=positive)
        return stats.Interval(self.mean, *(self.own or map(float, ends)))

    def rate(self) -> stats.Interval:
        """One over the mean, with its interval: turns seconds per iteration into a rate."""
        value, low, high = self.interval(positive=True)
        return stats.Interval(1 / value, 1 / high, 1 / low)

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
        means = np.array([per_run[name].mean() for name in names])
        draws, mean, dof = stats.mean_draws(means, rng), float(means.mean()), len(names) - 1
        seeds, hollow = len({repeats[name] for name in names}), bool(strained & set(names))
        cells.append(Cell(line, value, means, draws, names, seeds, hollow, dof, mean, mean))
    return cells


def require(frame: pd.DataFrame, *columns: str, file: str = "iterations") -> None:
    """Raises BadInputError, with the nearest name, unless the frame of FILE.csv has the columns."""
    for column in columns:
        if column not in frame:
            near = nearest(column, map(str, frame.columns))
            raise BadInputError(f"no column {column!r} in {file}.csv; {near}")


def column_per_run(frame: pd.DataFrame, column: str) -> dict[str, FloatArray]:
    """The values of a column of iterations.csv for each run, without empty cells; see `require`."""
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


MEDIAN_SPREAD = math.sqrt(math.pi / 2)  # the spread of a median over that of a mean, at most


def share_spread(sweep: Sweep, cells: list[Cell]) -> list[Cell]:
    """The cells with one relative variance of repeats, if a test does not reject it.

    Logarithms of seconds are taken as cell + noise or, if the runs were measured in blocks, as cell
    + block + noise. The noise has one variance for all cells if Bartlett's test does not reject it;
    else one for oversubscribed cells and one for the others; else one for each cell. Its degrees of
    freedom are those of all repeats of these cells. If these have no repeat, a cell stays as it is.

    In blocks, a cell's own seconds are the median of its runs. For comparisons with other cells it
    has the seconds of its line's first cell, times the median over the blocks of the ratio of the
    two cells within a block: what slows a whole block, or a few blocks, cancels out.
    """
    if not cells or any(cell.per_run.min() <= 0 for cell in cells):
        return cells
    blocks = blocks_of(sweep, cells)
    squares = _squares(cells, blocks)
    first: dict[str, dict[str, float]] = {}  # of the first cell of each line, by block
    rng, shared = stats.generator(), []
    for cell in cells:
        centre, own = cell.mean, cell.runs
        paired_s, independent = centre, float(own)
        if blocks:
            values: dict[str, list[float]] = {}
            for name, value in zip(cell.names, np.log(cell.per_run), strict=True):
                values.setdefault(blocks[name], []).append(float(value))
            logs = {block: float(np.mean(mine)) for block, mine in values.items()}
            base = first.setdefault(cell.line, logs)
            ratios = [logs[block] - base[block] for block in logs if block in base]
            paired_s = math.exp(np.median(list(base.values())) + np.median(ratios))
            # The base's own variance is added in comparisons, but only shared blocks count in them.
            independent = own / len(logs) / (2 / len(ratios) - 1 / len(base))
            centre = math.exp(np.median(list(logs.values())))
        alike = np.array([other.oversubscribed == cell.oversubscribed for other in cells])
        groups = (alike | True, alike, np.array([other is cell for other in cells]))
        group = next(g for g in groups if stats.one_variance(*squares[1][:, g]))
        (whole, freedom), (inside, dof) = squares[:, :, group].sum(axis=2)
        if dof < 1:
            shared.append(cell)
            continue
        total, within, between = whole / freedom, inside / dof, freedom - dof
        if between and whole:  # few if whole blocks differ (Satterthwaite 1946)
            outside = max(0.0, whole - inside)
            freedom = (outside + inside) ** 2 / (outside**2 / between + inside**2 / dof)
        widen = MEDIAN_SPREAD if own > 2 and between else 1
        reach = math.exp(stats.student(freedom) * widen * math.sqrt(total / own))
        normal = widen * math.sqrt(within / independent) * stats.normal_draws(rng)
        shared.append(
            replace(
                cell,
                mean=centre,
                compared=paired_s,
                blocks=tuple(blocks[name] for name in cell.names if blocks),
                dof=float(dof),
                draws=paired_s * np.exp(normal),
                own=(centre / reach, centre * reach),
            )
        )
    return shared


def blocks_of(sweep: Sweep, cells: list[Cell]) -> dict[str, str]:
    """The block and line of each run; empty if a cell shares no block with its line's first."""
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


def _squares(cells: list[Cell], blocks: dict[str, str]) -> FloatArray:
    """[2, 2, cells] squares and degrees of freedom around cells, and around cells plus blocks."""
    logs = np.concatenate([np.log(cell.per_run) for cell in cells])
    cell_of = np.repeat(np.arange(len(cells)), [cell.runs for cell in cells])
    factors: list[npt.NDArray[Any]] = [cell_of]
    if blocks:
        factors.append(np.array([blocks[name] for cell in cells for name in cell.names]))
    found = []
    for used in (factors[:1], factors):
        columns = [factor[:, None] == np.unique(factor) for factor in used]
        matrix = np.concatenate(columns, axis=1).astype(float)
        fitted = matrix @ np.linalg.pinv(matrix)
        parts = ((logs - fitted @ logs) ** 2, 1 - np.diag(fitted))
        squares, dof = (np.bincount(cell_of, part) for part in parts)
        found.append([squares, dof.round(9)])
    return np.asarray(found)
