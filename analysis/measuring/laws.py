"""Fits how seconds depend on the number of workers, with intervals.

Amdahl's law and the universal scalability law describe one kind of worker. A round of N samplers
and L learners that take turns takes t(N, L) = serial + collect x + learn y, where x is the largest
share of the lanes that a sampler has, about 1/N, and y the largest share of a minibatch's shards
that a learner has, about 1/L. All are sums of terms with weights >= 0, fitted by non-negative least
squares of the relative errors: there is one solution, and no starting point is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from walle.analysis.measuring import stats, wall_clock
from walle.analysis.measuring.groups import Cell, design
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.measuring.wall_clock import AGENT
from walle.analysis.runs import LOCK_STEP, Run, Sweep
from walle.analysis.writing.format import milliseconds, percent, with_range

T = TypeVar("T")
FEWEST = 3  # points of a law: any law with two parameters goes through two points


class Law(NamedTuple):
    """Time of n workers on a fixed amount of work: T(n) = T(1) [(1-s)/n + s + k (n-1)].

    With k = 0 this is Amdahl's law; k > 0 is Gunther's universal scalability law
    S(n) = n / (1 + s (n-1) + k n (n-1)).
    """

    time_1: float  # T(1), in the unit of the fitted times
    serial: float  # s, the fraction of the work that more workers do not make shorter (contention)
    coherence: float  # k, the cost of each further worker to all others, as a fraction of T(1)

    def time(self, n: npt.ArrayLike) -> FloatArray:
        """T(n)."""
        n = np.asarray(n, float)
        return self.time_1 * ((1 - self.serial) / n + self.serial + self.coherence * (n - 1))

    def speedup(self, n: npt.ArrayLike, base: float = 1.0) -> FloatArray:
        """T(base) / T(n)."""
        return self.time(base) / self.time(n)

    @property
    def best_n(self) -> float:
        """The number of workers beyond which more workers slow the work: sqrt((1-s)/k)."""
        return math.sqrt((1 - self.serial) / self.coherence) if self.coherence > 0 else math.inf

    def workers_for(self, time: float) -> float:
        """The (real) number of workers at which T(n) falls to `time`, by Amdahl's law.

        It is 1 when a single worker is fast enough, infinity when no number of workers is.
        """
        if time >= self.time_1:
            return 1.0
        rest = time - self.time_1 * self.serial
        return self.time_1 * (1 - self.serial) / rest if rest > 0 else math.inf


def fit_law(n: npt.ArrayLike, time: npt.ArrayLike, *, coherence: bool = False) -> Law:
    """The law with the least squared relative errors of `time`, [points]; s, k >= 0.

    Without `coherence` k is 0.

    Raises ValueError if there are fewer different n than parameters of the law.
    """
    from scipy.optimize import nnls

    time = np.asarray(time, float)
    terms = _terms_of_law(tuple(np.asarray(n, float).tolist()), 3 if coherence else 2)
    weights, _ = nnls(terms / time[:, None], np.ones_like(time))
    parallel, serial, coherent = (*weights, 0.0)[:3]
    time_1 = parallel + serial
    return Law(float(time_1), float(serial / time_1), float(coherent / time_1))


@lru_cache(maxsize=16)  # thousands of draws are fitted with the same terms
def _terms_of_law(workers: tuple[float, ...], parameters: int) -> FloatArray:
    if len(set(workers)) < parameters:
        raise ValueError(f"{parameters} parameters from {len(set(workers))} worker counts")
    n = np.array(workers)
    return np.stack([1 / n, np.ones_like(n), n - 1][:parameters], axis=1)


class Shares(NamedTuple):
    """The largest shares of a round that a sampler collects and that a learner learns from."""

    sampler: float
    learner: float


class RoundParts(NamedTuple):
    """The seconds of a round with one sampler and one learner, by what would shorten them."""

    serial: float  # neither more samplers nor more learners
    collect: float  # more samplers
    learn: float  # more learners

    def with_shares(self, shares: Shares) -> RoundParts:
        """The seconds of a round whose workers have these largest shares."""
        return RoundParts(self.serial, self.collect * shares.sampler, self.learn * shares.learner)


def largest_share(pieces: int, workers: int) -> float:
    """The largest share that a worker has of equal pieces: ⌈pieces / workers⌉ / pieces.

    Of 8 pieces it is 1/4 for 4 workers and 3/8 for 3; workers beyond the eighth have nothing to do.
    """
    return math.ceil(pieces / workers) / pieces


def fit_parts(shares: Sequence[Shares], seconds: npt.ArrayLike) -> RoundParts:
    """The parts, all >= 0, with the least sum of squared relative errors of the seconds.

    If a share never varies, the work that it divides counts as serial.

    Raises ValueError if there are fewer different shares than parts to separate.
    """
    from scipy.optimize import nnls

    times = np.asarray(seconds, float)
    terms, varied = _terms_of_parts(tuple(shares))
    weights = np.zeros(3)
    weights[varied], _ = nnls(terms / times[:, None], np.ones_like(times))
    return RoundParts(*weights.tolist())


@lru_cache(maxsize=16)
def _terms_of_parts(shares: tuple[Shares, ...]) -> tuple[FloatArray, list[int]]:
    """The terms of the parts that the shares can separate, and the places of these parts."""
    terms = np.array([(1.0, *each) for each in shares])
    varied = [0, *(i for i in (1, 2) if np.unique(terms[:, i]).size > 1)]
    if np.linalg.matrix_rank(terms[:, varied]) < len(varied):
        raise ValueError(f"{len(varied)} parts cannot be separated by shares {sorted(set(shares))}")
    return terms[:, varied], varied


class Fit(NamedTuple, Generic[T]):
    """A fit to cells, with its draws."""

    value: T  # fitted to the means of the cells
    # Fitted to each draw of these means, stretched by Student's t beforehand; empty if the spread
    # is not known
    draws: list[T]
    cells: list[Cell]

    def interval(self, of: Callable[[T], float], most: float = math.inf) -> stats.Interval:
        """The number that `of` reads from the fit, with its 95% interval within 0 and `most`."""
        if not self.draws:
            return stats.Interval(of(self.value))
        low, high = np.quantile([of(draw) for draw in self.draws], [stats.TAIL, 1 - stats.TAIL])
        return stats.Interval(of(self.value), max(float(low), 0.0), min(float(high), most))


def fit_cells(cells: list[Cell], fit: Callable[[FloatArray], T]) -> Fit[T]:
    """Calls `fit` for the seconds of the cells, and for each draw of them.

    The seconds are stretched, and not what is read from the fit: at a bound many draws have the
    same serial fraction, and stretching that number adds too little (docs/notes/statistics.md).
    """
    centres = np.array([cell.compared for cell in cells])
    dof = min(cell.dof for cell in cells)
    if dof < stats.LEAST_DOF:
        return Fit(fit(centres), [], cells)
    stretch = stats.student(dof) / stats.student(math.inf)
    logs = np.log(np.stack([cell.draws for cell in cells], axis=1))
    # Ranks of a Kronecker sequence (multiples of square roots of primes), so that all cells
    # together vary evenly: draws in a random order would move the ends of an interval by a few
    # percent.
    roots = np.sqrt([n for n in range(2, 1000) if all(n % k for k in range(2, n))][: len(cells)])
    ranks = (np.outer(np.arange(1, len(logs) + 1), roots) % 1).argsort(axis=0).argsort(axis=0)
    logs = np.take_along_axis(np.sort(logs, axis=0), ranks, axis=0)
    draws = np.exp(np.log(centres) + stretch * (logs - np.log(centres)))
    return Fit(fit(centres), [fit(seconds) for seconds in draws], cells)


def within_cores(cells: list[Cell], *, fit_all: bool) -> list[Cell]:
    """The cells to fit: those within the machine's cores, or all when fewer than two are."""
    inside = [cell for cell in cells if not cell.oversubscribed]
    return cells if fit_all or len(inside) < 2 else inside


def fit_law_of(cells: list[Cell], *, coherence: bool = False) -> Fit[Law] | None:
    """Fits the law to the cells; None if these are fewer than two, or four with `coherence`."""
    n = [float(cell.by) for cell in cells]
    if len(cells) < (4 if coherence else 2):
        return None
    return fit_cells(cells, lambda seconds: fit_law(n, seconds, coherence=coherence))


def describe(
    cells: list[Cell], learn_s: float | None, unit: str = "round", work: str = "samplers collect"
) -> list[str]:
    """Sentences: the fits of both laws, and where learning becomes the bottleneck; or none."""
    amdahl, usl = fit_law_of(cells), fit_law_of(cells, coherence=True)
    if amdahl is None or len(cells) < FEWEST:
        return []
    most = max(float(cell.by) for cell in cells)

    def beyond(n: float) -> str:
        return f" (extrapolated: measured up to N = {most:g})" if most < n < math.inf else ""

    law, serial = amdahl.value, with_range(amdahl.interval(lambda law: law.serial, most=1), percent)
    points = f"Amdahl ({len(cells)} points)"
    universal = []
    if usl is not None:
        contention = with_range(usl.interval(lambda law: law.serial, most=1), percent)
        coherence = with_range(usl.interval(lambda law: law.coherence), percent)
        best = usl.value.best_n
        peak = "no peak" if math.isinf(best) else f"fastest at N = {best:.3g}{beyond(best)}"
        universal.append(
            f"Universal scalability law: contention {contention}, coherence {coherence}; {peak}."
        )
    if law.serial >= 1:
        text = f"more {work} no faster here, so the serial fraction is at its bound"
        return [f"{points}: {text}, {serial}, and no law is drawn.", *universal]
    limit = "no limit in sight"
    if law.serial > 0:
        base = min(float(cell.by) for cell in cells)
        most_x = float(law.time(base)) / (law.time_1 * law.serial)  # with infinitely many workers
        over = "" if base == 1 else f" over N = {base:g}"
        limit = f"at most {most_x:.3g}x{over} (extrapolated: measured up to N = {most:g})"
    sentences = [f"{points}: serial fraction {serial}, so {limit}.", *universal]
    if learn_s is None:
        return sentences
    # If no N is enough, N is infinite and has no interval, but 1 / N is 0 and has one.
    share = amdahl.interval(lambda law: 1 / law.workers_for(learn_s), most=1)
    n = stats.Interval(*(1 / x if x else math.inf for x in (share.value, share.high, share.low)))
    where = f"it becomes the bottleneck from N = {n} samplers on{beyond(n.value)}"
    if n.value <= 1:
        where = "it is the bottleneck with one sampler already"
    elif math.isinf(n.value):
        where = "less than the serial part of collection, so never the bottleneck"
    return [*sentences, f"Learning takes {learn_s:.3g} s per {unit}: {where}."]


class RoundFit(NamedTuple):
    """The parts of whole rounds of runs that differ in their samplers and learners only."""

    line: str  # a label if there are several such groups of runs; else ''
    workers: list[tuple[int, int]]  # the samplers and learners of each cell
    shares: list[Shares]  # the largest shares of each cell
    fit: Fit[RoundParts]  # the parts, with the cells: seconds of a round

    @property
    def varied(self) -> tuple[bool, bool]:
        """Whether the samplers vary, and whether the learners do."""
        samplers, learners = (set(counts) for counts in zip(*self.workers, strict=True))
        return len(samplers) > 1, len(learners) > 1


def fit_rounds(sweep: Sweep, iterations: pd.DataFrame, *, fit_all: bool = False) -> list[RoundFit]:
    """Fits each group of runs in lock-step that differ in samplers or learners.

    The time of a round excludes evaluations and checkpoints, which are due after numbers of steps
    and not of rounds.
    """
    round_s, timing = iterations["iteration_s"], sweep.timing
    if apart := [name for name in ("evaluate_s", "checkpoint_s") if name in timing]:
        agent = timing[timing["process"].astype(str) == AGENT]
        spent = agent.groupby(["run", "iteration"], observed=True)[apart].sum().sum(axis=1)
        rows = pd.MultiIndex.from_frame(iterations[["run", "iteration"]])
        round_s = round_s - spent.reindex(rows).fillna(0.0).to_numpy()
    iterations = iterations.assign(round_s=round_s)
    cells = wall_clock.measure_seconds(sweep, iterations, "round_s", "sampler.n")
    line_of = design(sweep, "sampler.n", "learner.n").set_index("run")["line"]
    runs = {run.name: run for run in sweep.runs}
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(str(line_of[cell.names[0]]), []).append(cell)
    fits = []
    for line, group in groups.items():
        chosen = within_cores(group, fit_all=fit_all)
        known = [each for cell in chosen if (each := _shares(runs[cell.names[0]]))]
        modes = {runs[name].mode for cell in group for name in cell.names}
        if modes != {LOCK_STEP} or len(known) < len(chosen):
            continue
        workers, shares = [counts for counts, _ in known], [share for _, share in known]
        try:
            fit = fit_cells(chosen, lambda seconds, s=shares: fit_parts(s, seconds))  # type: ignore[misc]
        except ValueError:  # too few different numbers of processes
            continue
        fits.append(RoundFit(line, workers, shares, fit))
    # With as many parts as points, the fit would go through all points, whatever the law.
    return [fit for fit in fits if any(fit.varied) and len(fit.workers) > 1 + sum(fit.varied)]


def _shares(run: Run) -> tuple[tuple[int, int], Shares] | None:
    """The samplers and learners of a run with their shares; None if it does not show them."""
    keys = ("sampler.n", "learner.n", "sampler.lanes", "learner.shards")
    values = [run.config.get(key, 1) for key in keys]
    known = [value for value in values if isinstance(value, int) and value > 0]
    if run.config.get("sampler.name") == "ray" or len(known) < len(keys):
        return None
    samplers, learners, lanes, shards = known
    shares = Shares(largest_share(lanes, samplers), largest_share(shards, learners))
    return (samplers, learners), shares


def describe_rounds(fit: RoundFit, unit: str) -> list[str]:
    """Sentences about what divides a round, and how to compute other numbers of workers."""
    parts, varied = fit.fit.value, fit.varied
    serial, collect, learn = (
        with_range(fit.fit.interval(lambda p, i=i: p[i]), milliseconds, " ms")  # type: ignore[misc]
        for i in range(3)
    )
    divided = [f"{collect} are divided by the samplers"] * varied[0]
    divided += [f"{learn} {'' if divided else 'are divided '}by the learners"] * varied[1]
    rest = [f"{serial} are serial"]
    if parts.serial:
        rest.append(f"at most {sum(parts) / parts.serial:.3g}x")
    if not all(varied):
        key, of = ("sampler.n", "collecting") if varied[1] else ("learner.n", "learning")
        rest.append(f"{of} is in the serial part, as {key} does not vary")
    return [
        f"Whole rounds ({len(fit.workers)} points), per {unit}: {' and '.join(divided)}; "
        f"{'; '.join(rest)}.",
        "`walle plan` computes rounds with other numbers of processes.",
    ]
