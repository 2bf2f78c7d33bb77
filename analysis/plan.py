"""Plans a run from a short one: its time with more samplers, learners and machines.

Reads the seconds of one run's processes (or those of a sweep over sampler.n), and simulates the
same rounds with other numbers of samplers, learners, machines and cores, in lock-step, overlapped
and free-running. A run with `trace=true` also tells how much steps differ, so how long a round
waits for its slowest sampler. docs/cluster.md explains the model.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pandas as pd

from walle.analysis.drawing import plans, style
from walle.analysis.drawing.plans import Curve
from walle.analysis.loading.directories import counted
from walle.analysis.measuring.stats import mean_interval
from walle.analysis.planning import advice
from walle.analysis.planning.costs import Network, Setup
from walle.analysis.planning.flags import FLAGS, LAGS, SAMPLERS
from walle.analysis.planning.measured import ROUND, TRACE, Measured, read, seconds
from walle.analysis.planning.points import Point, base_point, learn_spread, points
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, words

MODES = {0: "lock-step", None: "free-running"}
SHOWN = 3  # changes that a sentence names


OPTIONS = ("samplers", "lag", "learners", "machines", "cores", "bandwidth", "latency")
MORE = ("exchange", "step_bytes", "env_cpu", "warmup")


def study(
    sweep: Sweep,
    *,
    samplers: tuple[int, ...] | list[int] = SAMPLERS,
    lag: tuple[int | None, ...] | list[int | None] = LAGS,
    learners: int | None = None,
    machines: int = 1,
    cores: int | None = None,
    bandwidth: float = 10.0,
    latency: float = 0.5,
    exchange: float = 10.0,
    step_bytes: float = 200.0,
    env_cpu: float | None = None,
    warmup: int = 1,
) -> cli.Study:
    """Predicted iterations for every number of samplers and every lag.

    Args:
        sweep: a run, or runs of one configuration that differ in their numbers of processes.
        samplers: the numbers of samplers.
        lag: values of `sampler.max_lag`; None for free-running.
        learners: the number of learners; None: as measured.
        machines: over which the samplers are dealt; the agent is on the first of them.
        cores: of each machine; None: as measured.
        bandwidth: Gbit/s of the agent's link.
        latency: milliseconds of a message between machines.
        exchange: milliseconds that the software adds to a round between machines.
        step_bytes: bytes of an environment step.
        env_cpu: milliseconds of a core for an environment step; None: all that it takes.
        warmup: the number of iterations of each run that do not count.
    """
    measured = read(sweep, warmup, None if env_cpu is None else env_cpu / 1000)
    network = Network(
        bandwidth=bandwidth * 1e9 / 8,
        latency_s=latency / 1000,
        exchange_s=exchange / 1000,
        step_bytes=step_bytes,
    )
    first = replace(
        measured.setup,
        learners=learners or measured.setup.learners,
        machines=machines,
        cores=cores or measured.setup.cores,
        network=network,
    )
    numbers = sorted(set(samplers))
    found = {
        _mode(one): points(measured, [replace(first, samplers=n, max_lag=one) for n in numbers])
        for one in dict.fromkeys(lag)
    }
    base = base_point(measured, first)
    sentences = _about(measured, first, warmup) + _findings(found, measured)
    if max(numbers) > measured.lanes:
        sentences.append(
            f"Beyond {measured.lanes} samplers each has one lane: sampler.lanes grows with them."
        )
    figure = _figure(sweep, found, base, measured, first, warmup)
    return cli.Study(figure, _table(found, base), sentences)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, FLAGS, by=None).parse_args(argv)
    return cli.run(args, "plan", study, OPTIONS + MORE)


def _mode(lag: int | None) -> str:
    return MODES.get(lag, f"lag {lag}")


def _in(mode: str) -> str:
    return f"In {mode}" if mode == MODES[0] else f"With {mode}"


def _round_of(measured: Measured) -> int:
    return measured.costs().round_steps


def _about(measured: Measured, first: Setup, warmup: int) -> list[str]:
    """Sentences about what was measured, and about what the plan is for."""
    own = measured.setup
    said = [
        f"Measured: {counted(len(measured.learn_s), 'iteration')} of {_round_of(measured):,} steps "
        f"with {counted(own.samplers, 'sampler')}, {counted(own.learners, 'learner')}, "
        f"{_mode(own.max_lag)}, on {counted(own.cores or 0, 'core')}.",
        f"Planned: {counted(first.learners, 'learner')}, {counted(first.machines, 'machine')} of "
        f"{counted(first.cores or 0, 'core')}.",
        words.warmup_sentence(warmup),
        "Without compiling, evaluating and what hides behind collecting. Intervals draw among "
        "the measured iterations; they do not tell how far the model is from the machine.",
    ]
    costs = measured.costs()
    if costs.env_wait_s:
        said.append(
            f"A step of the environment waits {1000 * costs.env_wait_s:.3g} ms and needs a core "
            f"for {1000 * costs.env_cpu_s:.3g} ms."
        )
    deviation = 1000 * costs.env_var**0.5
    taken = 1000 * (costs.env_cpu_s + costs.env_wait_s)
    stragglers = {
        TRACE: f"A step takes {taken:.3g} ms and differs by {deviation:.2g} ms (trace.csv).",
        ROUND: f"A step takes {taken:.3g} ms and differs by {deviation:.2g} ms, as the samplers of "
        "one round do.",
    }
    nothing = (
        "No stragglers are planned: measure with trace=true or with several samplers for them."
    )
    return [*said, stragglers.get(measured.spread_from, nothing)]


def _findings(found: dict[str, list[Point]], measured: Measured) -> list[str]:
    """Sentences about how many samplers are enough in each mode, and what to change then."""
    said = []
    for mode, mine in found.items():
        enough = _enough(mine)
        point = next(p for p in mine if p.setup.samplers == enough)
        predicted = point.predicted
        collect, learn = (
            x / predicted.iteration_s for x in (predicted.collect_s, predicted.learn_s)
        )
        said.append(
            f"{_in(mode)} {_bound(enough, mine)}: a round takes "
            f"{predicted.iteration_s:.3g} s, of which collecting is {collect:.0%} and "
            f"learning {learn:.0%}; its lag is {predicted.lag:.2g}, and a million steps cost "
            f"{point.core_hours:.3g} core-hours."
        )
        changes = advice.changes(measured.costs(), point.setup, learn_spread(measured))[:SHOWN]
        texts = [f"{change.words} ({change.gain:.2f} times as fast)" for change in changes]
        said.append(f"  Next: {', '.join(texts)}." if texts else "  Next: nothing gains 2%.")
    return said


def _bound(enough: int, mine: list[Point]) -> str:
    """A clause about the samplers beyond which nothing is gained, if the table shows them."""
    if _ends_at(enough, mine):
        return f"the table ends at {counted(enough, 'sampler')}, and more may gain"
    return f"nothing is gained beyond {counted(enough, 'sampler')} (5%)"


def _ends_at(enough: int, mine: list[Point]) -> bool:
    """Whether the table has no more samplers, so that nothing is known of these."""
    return enough == max(p.setup.samplers for p in mine)


def _enough(mine: list[Point]) -> int:
    return advice.enough_samplers([(p.setup.samplers, p.predicted) for p in mine])


def _ring(mine: list[Point]) -> int | None:
    """Where the figure shows that more samplers gain nothing; None if the table does not tell."""
    enough = _enough(mine)
    return None if _ends_at(enough, mine) else enough


def _table(found: dict[str, list[Point]], base: Point) -> pd.DataFrame:
    rows = [
        {
            "mode": mode,
            "samplers": p.setup.samplers,
            "learners": p.setup.learners,
            "machines": p.setup.machines,
            "steps": p.predicted.steps,
            **p.seconds(p.predicted.steps).columns("iteration_s"),
            "collect_share": p.predicted.collect_s / p.predicted.iteration_s,
            "learn_share": p.predicted.learn_s / p.predicted.iteration_s,
            "lag": p.predicted.lag,
            "steps_per_s": 1 / p.predicted.step_s,
            **p.speedup(base).columns("speedup"),
            "core_hours_per_million": p.core_hours,
        }
        for mode, mine in found.items()
        for p in mine
    ]
    return pd.DataFrame(rows)


def _figure(
    sweep: Sweep,
    found: dict[str, list[Point]],
    base: Point,
    measured: Measured,
    first: Setup,
    warmup: int,
) -> style.Figure:
    """The curves of the plan, and the measured runs where they ran on the planned machine."""
    steps = _round_of(measured)
    numbers = [p.setup.samplers for p in next(iter(found.values()))]
    planned = {mode: Curve(numbers, [p.seconds(steps) for p in f]) for mode, f in found.items()}
    speedups = {
        mode: Curve(numbers, [p.speedup(base) for p in mine], _ring(mine))
        for mode, mine in found.items()
    }
    points_of: dict[str, list[tuple[int, np.ndarray]]] = {}
    for setup, step_s in seconds(sweep, warmup):
        if (setup.learners, setup.cores, 1) == (first.learners, first.cores, first.machines):
            points_of.setdefault(_mode(setup.max_lag), []).append((setup.samplers, step_s))
    drawn = {
        mode: Curve([n for n, _ in mine], [mean_interval(steps * s) for _, s in mine])
        for mode, mine in points_of.items()
        if mode in found
    }
    cores = (first.cores or 0) * first.machines
    unit = f"round of {steps:,} steps"
    return plans.figure(planned, drawn, speedups, cores=cores, unit=unit)


if __name__ == "__main__":
    sys.exit(main())
