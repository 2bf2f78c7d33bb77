"""Draws the policy lag of the rollouts, and the speed that comes with it.

The left panel shows the distribution of the lag, averaged over an iteration's rollouts, if the lag
varies. The other panels show environment steps per second for each task and value of --by; small
dots are seeds. The table has the final return too (the evaluation at the end if all runs have one,
else the return in training over the last tenth of the steps), and compares an iteration's time with
the longer of collecting and learning: the ratio is 1 for perfect overlap, and 2 for lock-step if
collecting and learning take the same time.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, style
from walle.analysis.measuring import groups, scores, stats, wall_clock
from walle.analysis.runs import BadInputError, Scalar, Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import joined

MAX_LAG = "sampler.max_lag"
MODES: dict[Scalar, str] = {0: "0, lock-step", 1: "1, overlapped", "null": "null, free-running"}
SPEED = "environment steps per second"
Lags = list[tuple[groups.Cell, stats.FloatArray]]  # the lag in each iteration of all runs of a cell
Measured = list[tuple[groups.Cell, stats.Interval]]


def study(sweep: Sweep, *, by: str | None = None, warmup: int = 1) -> cli.Study:
    """Distribution of the lag and steps per second for each value of `by`.

    By default `by` is `sampler.max_lag` if it varies, else what varies, see `axis_of`. A lag that
    is the same in all iterations is no distribution: it gets a sentence and no panel.
    """
    default = MAX_LAG if MAX_LAG in sweep.varying else groups.axis_of(sweep)
    by = groups.resolve_key(sweep, by) if by else default
    frame = wall_clock.iterations_after_warmup(sweep, warmup)
    if "lag_mean" not in frame or not frame["lag_mean"].notna().any():
        raise BadInputError("no run has a value in the column lag_mean")
    cells = groups.measure(sweep, groups.column_per_run(frame, "lag_mean"), by)
    lags = [(cell, _values(frame, cell, "lag_mean")) for cell in cells]
    rates, steps = [], wall_clock.unit_of(sweep).steps
    if "env_steps" in frame:
        speeds = wall_clock.measure_seconds(sweep, frame, "iteration_s", by)
        rates = [(cell, stats.Interval(*(steps * x for x in cell.rate()))) for cell in speeds]
    overlap = groups.measure(sweep, _over_longer(sweep, frame), by)
    longer = [(cell, cell.interval(positive=True)) for cell in overlap]
    ends = {run.name: scores.possible_returns([run]) for run in sweep.runs}
    task_of = {run.name: labels.task_of(run) for run in sweep.learning}
    tasks = {task: {run for run in task_of if task_of[run] == task} for task in task_of.values()}
    found = scores.final_scores(sweep, tasks).values()
    per_run = {run: np.array([x]) for of_task in found for run, x in of_task.of.items()}
    finals = [
        (cell, cell.interval().within(*ends[cell.names[0]]))
        for cell in groups.measure(sweep, per_run, by)
    ]
    figure = _figure(sweep, by, lags, rates)
    columns = {"env_steps_per_s": rates, "iteration_over_longer": longer, "final_return": finals}
    texts: list[str] = []
    rows = []
    constant: dict[float, dict[str, None]] = {}
    for cell, values in lags:
        if np.ptp(values) == 0:
            constant.setdefault(float(values[0]), {})[f"{by}={cell.by}"] = None
        row = {
            "line": cell.line,
            by: cell.by,
            "repeats": cell.repeats,
            "lag_mean": values.mean(),
            "lag_median": np.median(values),
            "lag_p95": np.quantile(values, 0.95),
            "lag_max": _values(frame, cell, "lag_max" if "lag_max" in frame else "lag_mean").max(),
        }
        for name, measured in columns.items():
            intervals = {other.key: interval for other, interval in measured}
            row |= intervals.get(cell.key, stats.Interval(math.nan)).columns(name)
        rows.append(row)
    for lag, where in constant.items():
        texts.append(f"The lag is {lag:g} in every iteration at {', '.join(where)}.")
    for line, group in groups.lines(overlap).items():
        ratios = [f"{cell.interval(positive=True)} at {by}={cell.by}" for cell in group]
        text = "Divided by the longer of collecting and learning, the time of an iteration is"
        texts.append(sentences.for_line(line, f"{text} {', '.join(ratios)}."))
    texts += [f"Final return: {source}." for source in dict.fromkeys(s.source for s in found)]
    texts += sentences.few_repeats(cells) + sentences.also_differ(sweep, by)
    table, notes = sentences.without_lone_line(pd.DataFrame(rows)), sentences.sample(warmup, cells)
    return cli.Study(figure, table, texts, notes=notes)


main = cli.command("lag", study, __doc__)


def _values(frame: pd.DataFrame, cell: groups.Cell, column: str) -> stats.FloatArray:
    """The values of a column in all runs of a cell."""
    return frame.loc[frame["run"].isin(cell.names), column].dropna().to_numpy(float)


def _over_longer(sweep: Sweep, frame: pd.DataFrame) -> dict[str, stats.FloatArray]:
    """Each run's iteration time, divided by the longer of its mean times to collect and to learn.

    For collecting, the slowest sampler's time counts, see `seconds_per_run`. Runs without values of
    `collect_s` or of `learn_s` are left out.
    """
    if not {"collect_s", "learn_s", "env_steps"} <= set(frame):
        return {}
    seconds = wall_clock.seconds_per_run(sweep, frame, "iteration_s")
    learn = wall_clock.seconds_per_run(sweep, frame, "learn_s")
    collect = wall_clock.seconds_per_run(sweep, frame, "collect_s", busy=True)
    return {
        run: values / max(collect[run].mean(), learn[run].mean())
        for run, values in seconds.items()
        if run in collect and run in learn
    }


def _figure(sweep: Sweep, by: str, lags: Lags, rates: Measured) -> style.Figure:
    """The distribution of the lag if it varies; then the speed in a panel for each task."""
    cells, varying = [cell for cell, _ in lags], [lag for lag in lags if np.ptp(lag[1]) > 0]
    tasks = labels.panels(sweep, cells)
    names = list(dict.fromkeys(name for mine in tasks.values() for name in mine))
    values_of_by = list(dict.fromkeys(cell.by for cell in cells))
    task_of = {run.name: labels.task_of(run) for run in sweep.runs}

    def look_of(cell: groups.Cell) -> style.Look:
        """One look for each line; with a single line, one for each value of the axis."""
        name = labels.without_task(cell.line, task_of[cell.names[0]])
        return style.look(values_of_by.index(cell.by) if len(names) == 1 else names.index(name))

    steps = wall_clock.unit_of(sweep).steps
    drawn: dict[str, Measured] = {}
    for rate in rates:
        drawn.setdefault(task_of[rate[0].names[0]], []).append(rate)
    if not (varying or drawn):
        raise BadInputError("nothing to draw: the lag is constant, and no speed is known")
    figure, axes = style.panels(len(drawn) + bool(varying), height=2.6)
    for cell, values in varying:
        look, share = look_of(cell), 100 * np.arange(values.size + 1) / values.size
        label = f"{joined((MODES.get(cell.by, str(cell.by)), cell.line))} ({cell.repeats})"
        line = {"color": look.color, "linestyle": look.dash, "label": label}
        axes[0].step([0, *np.sort(values)], share, where="post", **line)
    if varying:
        reach = max(1.0, *(values.max() for _, values in lags))
        axes[0].set(xlim=(-0.05 * reach, 1.05 * reach), ylim=(0, 103))
        axes[0].set_xlabel("mean lag (policy versions)")
        axes[0].set_ylabel("iterations with at most this lag (%)")
    at = {value: float(i) for i, value in enumerate(values_of_by)}
    for area, (task, mine) in zip(axes[bool(varying) :], drawn.items(), strict=True):
        shown = list(dict.fromkeys(labels.without_task(cell.line, task) for cell, _ in mine))
        for cell, interval in mine:  # lines stand beside each other
            name, look = labels.without_task(cell.line, task), look_of(cell)
            x = labels.aside(at, shown.index(name), len(shown))[cell.by]
            dots = steps / cell.per_run if cell.runs > 1 else ()
            style.point(area, x, interval, look, hollow=cell.oversubscribed, dots=dots)
            if len(names) > 1:
                area.plot([], [], look.marker, color=look.color, label=name)
        area.set_xticks(range(len(at)), [str(value) for value in at])
        area.set_xlim(-0.5, len(at) - 0.5)
        area.set(xlabel=style.AXIS_NAMES.get(by, by), ylabel=SPEED)
        area.set_title(task if len(tasks) > 1 else "")
        style.from_zero(area)
    if any(cell.oversubscribed for cell, _ in rates):
        style.explain_hollow(axes[-1])
    style.legend(figure)
    return figure


if __name__ == "__main__":
    raise SystemExit(main())
