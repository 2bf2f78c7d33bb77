"""Plans a run from a short one: its time with more samplers, learners, machines and cores.

Reads the seconds of one run's processes (or those of a sweep over sampler.n and learner.n), and
computes rounds with other numbers of them, in lock-step, overlapped and free-running. Intervals
hold the spread of the measured iterations and the model's errors against real runs; runs with
`trace=true` or several samplers also show how much steps vary. docs/planning.md has the model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.measuring import round_model
from walle.analysis.measuring.round_model import Costs, Prediction, Setup, predict
from walle.analysis.measuring.stats import mean_interval
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import counted

COUNT = partial(cli.whole_number, least=1)
SAMPLERS, LAGS = tuple(2**k for k in range(11)), (0, 1, None)
# The least gain that is worth more samplers or a change; the most changes that are named.
ENOUGH, SHOWN = 1.05, 3
HALF = 0.5  # from this share of learning on, learning is the place to save
SHORTER = {  # what shortens learning, by the setting of the algorithm
    "algo.epochs": "fewer algo.epochs or a larger algo.minibatch_size",
    "algo.updates_per_step": "fewer algo.updates_per_step",
}
_SPEEDUP = ["speedup", "speedup_low", "speedup_high"]
SUMMARY = ["mode", "samplers", "iteration_s", "learn_share", *_SPEEDUP, "core_hours_per_million"]


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _lag(text: str) -> int | None:
    if text != "null" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor null")
    return None if text == "null" else int(text)


_FLAGS: list[tuple[str, Any, str, Any, str]] = [
    ("--samplers", COUNT, "N", SAMPLERS, "numbers of samplers (default: 1 2 4 ... 1024)"),
    ("--lag", _lag, "K", LAGS, "sampler.max_lag; null: free-running (default: 0 1 null)"),
    ("--learners", COUNT, "L", None, "learners (default: the run's)"),
    ("--machines", COUNT, "M", 1, "(default: 1)"),
    ("--cores", COUNT, "C", None, "cores of each machine (default: the most of a run)"),
    ("--bandwidth", _positive, "GBIT", 10.0, "of the agent's link, in Gbit/s (default: 10)"),
    ("--latency", _positive, "MS", 0.5, "of a message between machines (default: 0.5)"),
    ("--exchange", _positive, "MS", 10.0, "of software that carries a round (default: 10)"),
    ("--step-bytes", _positive, "B", 200.0, "experience of a step (default: 200, HalfCheetah)"),
    ("--env-cpu", _positive, "MS", None, "of a core for a step of the environment; what it takes "
     "beyond is waiting (default: all that it takes)"),
]  # fmt: skip
FLAGS: dict[str, Any] = {
    name: {"type": kind, "metavar": metavar, "default": default, "help": text}
    | ({"nargs": "+"} if isinstance(default, tuple) else {})
    for name, kind, metavar, default, text in _FLAGS
}


def study(
    sweep: Sweep,
    *,
    samplers: Sequence[int] = SAMPLERS,
    lag: Sequence[int | None] = LAGS,
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
    """Predicted rounds and end-to-end speedups; the keywords are the flags, in their units."""
    costs = round_model.read_costs(sweep, warmup, None if env_cpu is None else env_cpu / 1000)
    first = replace(
        costs.measured,
        learners=learners or costs.measured.learners,
        machines=machines,
        cores=cores or _cores(sweep),
        bandwidth=bandwidth * 1e9 / 8,
        latency_s=latency / 1000,
        exchange_s=exchange / 1000,
        step_bytes=step_bytes,
    )
    base = predict(costs, replace(first, samplers=1, learners=1, machines=1, max_lag=0))
    modes = {
        _mode(k): [
            predict(costs, replace(first, samplers=n, max_lag=k)) for n in sorted(set(samplers))
        ]
        for k in dict.fromkeys(lag)
    }
    rows = [
        {
            "mode": mode,
            "samplers": point.setup.samplers,
            "learners": point.setup.learners,
            "machines": point.setup.machines,
            "steps": point.setup.round_steps,
            **point.seconds().columns("iteration_s"),
            "collect_share": point.collect_s / point.round_s[0],
            "learn_share": point.learn_s / point.round_s[0],
            "steps_per_s": 1 / point.step_s,
            **point.speedup(base).columns("speedup"),
            "core_hours_per_million": point.core_hours,
        }
        for mode, points in modes.items()
        for point in points
    ]
    shorter = [text for key, text in SHORTER.items() if key in sweep.runs[0].config]
    texts = [text for mode in modes for text in _advice(costs, mode, modes[mode], base, shorter)]
    planned, *notes = _about(costs, first, warmup)
    if max(samplers) > first.lanes:
        notes.append(f"Beyond {first.lanes} samplers sampler.lanes grows: each has one lane.")
    figure, points = _figure(sweep, modes, base, first, warmup), pd.DataFrame(rows)
    return cli.Study(figure, points[SUMMARY], [*texts, planned], points, notes=notes)


main = cli.command("plan", study, __doc__, FLAGS)


def _about(costs: Costs, first: Setup, warmup: int) -> list[str]:
    """Sentences about what was measured, and about the machines that the plan is for."""
    was, step_s = costs.measured, float(costs.step_s[0])
    cpu_s = min(step_s, costs.env_cpu_s or step_s)
    spread = "No stragglers are planned: measure with trace=true or several samplers for them."
    if costs.spread_from:
        rollout_s = costs.step_deviation_s * (was.round_steps / was.samplers) ** 0.5
        spread = f"A sampler's round varies by {1000 * rollout_s:.2g} ms ({costs.spread_from})."
    planned = (
        f"Planned: {counted(first.learners, 'learner')}, {counted(first.machines, 'machine')} of "
        f"{counted(first.cores or 0, 'core')}. Speedups are over one sampler in lock-step."
    )
    return [
        planned,
        f"Measured: {counted(costs.iterations, 'iteration')} of {was.round_steps:,} steps with "
        f"{counted(was.samplers, 'sampler')}, {counted(was.learners, 'learner')}, "
        f"{_mode(was.max_lag)}, on {counted(was.cores or 0, 'core')}.",
        sentences.warmup_sentence(warmup),
        "Without compiling and evaluating. Intervals hold the spread of the measured iterations "
        f"and the model's errors beside real runs: on two cores {round_model.ERROR:.0%} in "
        f"lock-step with a core for each process and {round_model.ERROR_SHARED:.0%} otherwise, "
        f"{round_model.ERROR_MANY:.0%} with more processes on more cores.",
        f"A step of one environment takes {1000 * cpu_s:.3g} ms of a core and "
        f"{1000 * (step_s - cpu_s):.3g} ms of waiting. {spread}",
    ]


def _cores(sweep: Sweep) -> int | None:
    """The most cores that a run had: a launcher gives a run no more than it needs."""
    return max(run.cores for run in sweep.runs) or None


def _mode(lag: int | None) -> str:
    return {0: "lock-step", None: "free-running"}.get(lag, f"lag {lag}")


def enough_samplers(points: Sequence[Prediction]) -> Prediction:
    """The fewest samplers whose time per step is at most 5% above the least."""
    best = min(point.step_s for point in points)
    return next(point for point in points if point.step_s <= ENOUGH * best)


def _advice(
    costs: Costs,
    mode: str,
    points: Sequence[Prediction],
    base: Prediction,
    shorter: Sequence[str],
) -> list[str]:
    """Sentences about the samplers that are enough, their speedup, and what to change next."""
    point = enough_samplers(points)
    bound = f"nothing is gained beyond {counted(point.setup.samplers, 'sampler')} (5%)"
    if point is points[-1]:
        bound = f"the table ends at {counted(point.setup.samplers, 'sampler')}, and more may gain"
    gains = {
        text: point.step_s / predict(costs, setup).step_s
        for text, setup in _changes(costs, point.setup)
    }
    best = sorted((text for text in gains if gains[text] >= ENOUGH), key=lambda text: -gains[text])
    texts = [f"{text} ({gains[text]:.2f} times as fast)" for text in best[:SHOWN]]
    share = point.learn_s / float(point.round_s[0])
    learn = f"  Learning takes {share:.0%} of a round"
    learn += "".join(f": {text} shorten it, and change what is learned" for text in shorter)
    return [
        f"{'In' if mode == 'lock-step' else 'With'} {mode} {bound}: {point.speedup(base)} times as "
        f"fast as one sampler, {point.seconds()} s a round of {point.setup.round_steps:,} steps, "
        f"{point.core_hours:.3g} core-hours for a million steps.",
        f"  Next: {', '.join(texts)}." if texts else "  Next: nothing gains 5%.",
        *([f"{learn}."] if share > HALF else []),
    ]


def _changes(costs: Costs, setup: Setup) -> Iterator[tuple[str, Setup]]:
    """The changes that may make a step faster."""
    n, cores = 2 * setup.samplers, 2 * (setup.cores or 0)
    if setup.max_lag == 0:
        yield "sampler.max_lag=1", replace(setup, max_lag=1)
    if costs.shards > setup.learners:
        learners = min(2 * setup.learners, costs.shards)
        yield f"learner.n={learners}", replace(setup, learners=learners)
    yield f"sampler.n={n}", replace(setup, samplers=n)
    text = f"rounds of batch_size={2 * setup.round_steps} in as many lanes"
    yield text, replace(setup, steps=2 * setup.steps)
    if setup.steps > 1:
        wider = replace(setup, steps=setup.steps // 2, lanes=2 * setup.lanes)
        yield f"sampler.lanes={wider.lanes} in rounds of the same size", wider
    if cores:
        yield f"machines of {cores} cores", replace(setup, cores=cores)
        text = f"machines of {cores} cores with sampler.n={n}"
        yield text, replace(setup, cores=cores, samplers=n)


def _figure(
    sweep: Sweep, modes: dict[str, list[Prediction]], base: Prediction, first: Setup, warmup: int
) -> style.Figure:
    """Seconds of a round and speedups; the runs measured on the planned machine are hollow."""
    figure, (left, right) = style.panels(2, height=2.7)
    looks = {mode: style.look(i) for i, mode in enumerate(modes)}
    for mode, points in modes.items():
        numbers, enough = [point.setup.samplers for point in points], enough_samplers(points)
        seconds = [point.seconds(first.round_steps) for point in points]
        speedups = [point.speedup(base) for point in points]
        for area, values in ((left, seconds), (right, speedups)):
            y, low, high = zip(*values, strict=True)
            area.plot(numbers, y, color=looks[mode].color, linestyle=looks[mode].dash, label=mode)
            area.fill_between(numbers, low, high, color=looks[mode].color, alpha=0.15, linewidth=0)
        if enough is not points[-1]:
            at = enough.setup.samplers, enough.speedup(base).value
            right.plot(*at, "o", ms=9, mfc="none", color=looks[mode].color, zorder=4)
    right.plot([], [], "o", ms=9, mfc="none", color=style.PAPER_GREY, label="more gain nothing")
    ideal = min(max(numbers), max(p.speedup(base).value for mine in modes.values() for p in mine))
    right.plot([1, ideal], [1, ideal], color=style.IDEAL_GREY, ls="--", zorder=1, label="ideal")
    measured, machine = False, _cores(sweep)
    for run, setup, rows in round_model.read_rounds(sweep, warmup):
        cores = setup.cores if run.oversubscribed else machine
        there = (setup.learners, cores, 1) == (first.learners, first.cores, first.machines)
        if there and (mode := _mode(setup.max_lag)) in looks:
            round_s = mean_interval(first.round_steps * rows["round_s"] / rows["steps"])
            style.point(left, setup.samplers, round_s, looks[mode], hollow=True)
            measured = True
    if measured:
        style.explain_hollow(left, "measured")
    left.set_ylabel(f"iteration (s)\nper round of {first.round_steps:,} steps")
    right.set_ylabel("end-to-end speedup")
    for area in (left, right):
        area.set_xlabel(style.AXIS_NAMES["sampler.n"])
        style.scale_axes(area, style.axis_places(numbers), log=True, hollow=False)
        style.mark_cores(area, (first.cores or 0) * first.machines)
    style.legend(figure)
    return figure


if __name__ == "__main__":
    sys.exit(main())
