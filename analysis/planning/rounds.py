"""Tells what samplers and learners divide of whole rounds, and computes what many would bring.

Rounds in lock-step, without the evaluations and checkpoints between them, which come by steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd

from walle.analysis.loading.directories import Run, counted
from walle.analysis.measuring import times
from walle.analysis.measuring.cells import Cell
from walle.analysis.measuring.clocks import AGENT
from walle.analysis.measuring.design import design
from walle.analysis.measuring.dividing import (
    FittedParts,
    Parts,
    Shares,
    fit_cells,
    largest_share,
)
from walle.analysis.measuring.stats import Interval
from walle.analysis.planning.costs import PUBLISH_S, RECEIVE_S, WAKE_S, Setup
from walle.analysis.planning.measured import NETWORKS, divides_networks
from walle.analysis.runs import Sweep

MANY = 16
SAMPLER_S = RECEIVE_S + PUBLISH_S + 1.5 * WAKE_S  # of the agent for each sampler, see `Costs`
BETWEEN_ROUNDS = ("evaluate_s", "checkpoint_s")


class RoundFit(NamedTuple):
    """The seconds of whole rounds of runs that differ in their samplers and learners only.

    Attributes:
        line: a label where there are several such groups of runs; else ''.
        setups: the samplers and learners of each cell.
        cells: the seconds of a round, in the order of the setups.
        lanes: of a round.
        shards: of a minibatch; or the networks, if learners divide these.
        networks: whether they do.
        sampler_s: what each sampler adds to the agent's work in these seconds.
        fitted: the parts.
    """

    line: str
    setups: list[Setup]
    cells: list[Cell]
    lanes: int
    shards: int
    networks: bool
    sampler_s: float
    fitted: FittedParts

    @property
    def samplers_vary(self) -> bool:
        """Whether what samplers divide can be told from the serial part."""
        return len({setup.samplers for setup in self.setups}) > 1

    @property
    def learners_vary(self) -> bool:
        """Whether what learners divide can be told from the serial part."""
        return len({setup.learners for setup in self.setups}) > 1

    @property
    def many(self) -> Setup:
        """The workers that the speedup is computed for: `MANY` of each kind that varies.

        Learners that divide networks are as many as these at most.
        """
        most = max(self.setups, key=lambda setup: (setup.samplers, setup.learners))
        learners = self.shards if self.networks else MANY
        return Setup(
            MANY if self.samplers_vary else most.samplers,
            learners if self.learners_vary else most.learners,
        )

    def made_of(self, setup: Setup, shards: int) -> Parts:
        """The seconds of a round with these processes, by what shortens them."""
        shares, parts = shares_of(setup, max(self.lanes, setup.samplers), shards), self.fitted.parts
        return Parts(parts.serial, parts.collect * shares.sampler, parts.learn * shares.learner)

    def speedup(self, setup: Setup, shards: int | None = None) -> Interval:
        """Computed: how much faster than one sampler and one learner, with other shards if given.

        Each sampler above those of the runs costs the agent what it costs in `walle plan`.
        """
        pieces = max(self.lanes, setup.samplers), shards or self.shards
        shares = shares_of(setup, *pieces)
        measured = max(each.samplers for each in self.setups)
        more_s = self.sampler_s * max(0, setup.samplers - measured)

        def of(parts: Parts) -> float:
            return parts.time(Shares(1.0, 1.0)) / (parts.time(shares) + more_s)

        return self.fitted.interval(of)


def shares_of(setup: Setup, lanes: int, shards: int) -> Shares:
    """The largest shares of lanes and of shards that a process has."""
    return Shares(largest_share(lanes, setup.samplers), largest_share(shards, setup.learners))


def fit_rounds(sweep: Sweep, iterations: pd.DataFrame, *, fit_all: bool = False) -> list[RoundFit]:
    """Fits each group of runs in lock-step that differ in samplers or learners.

    Args:
        sweep: the runs.
        iterations: the rows of sweep.iterations that count.
        fit_all: use cells with more busy processes than cores too.
    """
    frame = iterations.assign(
        round_s=iterations["iteration_s"] - _between_rounds(sweep, iterations)
    )
    cells = times.measure_seconds(sweep, frame, "round_s", "sampler.n")
    lines = design(sweep, "sampler.n", "learner.n").set_index("run")["line"]
    runs = {run.name: run for run in sweep.runs}
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(str(lines[cell.names[0]]), []).append(cell)
    found = [
        _fitted(line, _chosen(group, fit_all=fit_all), runs, times.unit_of(sweep).steps)
        for line, group in groups.items()
        if all(times.mode_of(runs[name]) == times.LOCK_STEP for c in group for name in c.names)
    ]
    return [each for each in found if each is not None]


def _between_rounds(sweep: Sweep, iterations: pd.DataFrame) -> pd.Series[float]:
    """[rows of iterations] the agent's seconds that come by steps and not by rounds."""
    timing, keys = sweep.timing, ["run", "iteration"]
    columns = [name for name in BETWEEN_ROUNDS if name in timing]
    if not columns:
        return pd.Series(0.0, index=iterations.index)
    agent = timing[timing["process"].astype(str) == AGENT]
    spent = agent.groupby(keys, observed=True)[columns].sum().sum(axis=1)
    places = pd.MultiIndex.from_frame(iterations[keys])
    return pd.Series(spent.reindex(places).fillna(0.0).to_numpy(), index=iterations.index)


def _chosen(cells: list[Cell], *, fit_all: bool) -> list[Cell]:
    """The cells to fit: those within the machine's cores, or all when fewer than two are."""
    inside = [cell for cell in cells if not cell.oversubscribed]
    return cells if fit_all or len(inside) < 2 else inside


class _Shape(NamedTuple):
    """The processes of a run, and the pieces and steps of its rounds."""

    samplers: int
    learners: int
    lanes: int
    shards: int
    steps: int
    networks: bool


def _shape(run: Run) -> _Shape | None:
    """The shape of a run's rounds; None where its configuration does not tell it."""
    keys = ("sampler.n", "learner.n", "sampler.lanes", "learner.shards", "batch_size")
    values = [run.config.get(key, 1) for key in keys]
    known = [value for value in values if isinstance(value, int) and value > 0]
    elsewhere = run.config.get("sampler.name") == "ray"
    if elsewhere or len(known) < len(keys):
        return None
    samplers, learners, lanes, shards, steps = known
    networks = divides_networks(run.config)
    return _Shape(samplers, learners, lanes, NETWORKS if networks else shards, steps, networks)


def _fitted(line: str, cells: list[Cell], runs: dict[str, Run], unit: int) -> RoundFit | None:
    """The fit; None where the runs do not tell their processes, or these do not vary."""
    shapes = [shape for cell in cells if (shape := _shape(runs[cell.names[0]]))]
    if len(shapes) < len(cells):
        return None
    setups = [Setup(shape.samplers, shape.learners) for shape in shapes]
    shares = [
        shares_of(s, shape.lanes, shape.shards) for s, shape in zip(setups, shapes, strict=True)
    ]
    try:
        fitted = fit_cells(cells, shares)
    except ValueError:  # too few different numbers of processes
        return None
    _, _, lanes, shards, steps, networks = shapes[0]
    sampler_s = SAMPLER_S * unit / steps
    found = RoundFit(line, setups, cells, lanes, shards, networks, sampler_s, fitted)
    return found if found.samplers_vary or found.learners_vary else None


def sentences(fit: RoundFit, unit: str) -> list[str]:
    """Sentences: what divides a round, and the computed speedup with many workers.

    Args:
        fit: the fit.
        unit: the words for what the seconds are for, such as `round of 2,048 steps`.
    """
    parts = fit.fitted.parts
    divided = [
        f"{_ms(fit.fitted.interval(lambda p: p.collect))} are divided by the samplers",
        f"{_ms(fit.fitted.interval(lambda p: p.learn))} by the learners",
    ]
    varied = [fit.samplers_vary, fit.learners_vary]
    told = [text for text, there in zip(divided, varied, strict=True) if there]
    said = f"Whole rounds ({len(fit.cells)} points), per {unit}: {' and '.join(told)}"
    serial = _ms(fit.fitted.interval(lambda p: p.serial))
    kept = [] if all(varied) else [_not_told(fit)]
    limit = f"at most {parts.time(Shares(1.0, 1.0)) / parts.serial:.3g}x" if parts.serial else ""
    rest = "; ".join(filter(None, [f"{serial} are serial", limit, *kept]))
    return [f"{said}; {rest}.", _computed(fit)]


def _not_told(fit: RoundFit) -> str:
    key, of = ("sampler.n", "collecting") if fit.learners_vary else ("learner.n", "learning")
    return f"{of} is in the serial part, as {key} does not vary"


def _computed(fit: RoundFit) -> str:
    many = fit.many
    settings = f"sampler.n={many.samplers} learner.n={many.learners}"
    enough = max(fit.shards, many.learners)
    said = f"Computed, not measured: {fit.speedup(many, enough)}x end to end on {MANY} cores with "
    said += settings
    if fit.learners_vary:
        said += " learner.divide=networks" if fit.networks else f" learner.shards={enough}"
    samplers, learners = (max(counts) for counts in zip(*map(_workers, fit.setups), strict=True))
    up_to = f"{counted(samplers, 'sampler')} and {counted(learners, 'learner')}"
    said += f", from runs with up to {up_to}"
    if enough > fit.shards:
        said += f"; with learner.shards={fit.shards}, as here, {fit.speedup(many)}x"
    return f"{said}."


def _workers(setup: Setup) -> tuple[int, int]:
    return setup.samplers, setup.learners


def _ms(seconds: Interval) -> str:
    value, low, high = (_number(1e3 * each) for each in seconds)
    return f"{value} ms" if math.isnan(seconds.low) else f"{value} [{low}, {high}] ms"


def _number(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
