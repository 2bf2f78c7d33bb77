"""Policy lag: how old the policies were that collected, and what that cost and bought.

Left the distribution of the mean lag of an iteration's rollouts, then iterations per second and the
final return (mean of return_mean over the last tenth of the iterations) for each --by. The table
and a sentence say how long an iteration takes next to the longer of collecting and learning: 1 is
perfect overlap, and lock-step comes to 2 where both take the same time.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import pandas as pd

from analysis import cli, style
from analysis.design import resolve_key
from analysis.directories import BadInputError, Scalar
from analysis.measures import (
    Cell,
    FloatArray,
    column_per_run,
    iterations_after_warmup,
    lines,
    measure,
    single_run_note,
    warmup_sentence,
)
from analysis.runs import Sweep
from analysis.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Key = tuple[str, Scalar]
MODES: dict[Scalar, str] = {0: "0, lock-step", 1: "1, overlapped", "null": "null, free-running"}
FINAL = 0.1
NOTHING = Interval(math.nan, math.nan, math.nan)


def study(sweep: Sweep, *, by: str = "sampler.max_lag", warmup: int = 1) -> cli.Study:
    """Distribution of the lag, iterations per second and final return for each value of `by`."""
    by = resolve_key(sweep, by)
    frame = iterations_after_warmup(sweep, warmup)
    if "lag_mean" not in frame or not frame["lag_mean"].notna().any():
        raise BadInputError("no run has a value in lag_mean: nothing to show")
    lag = measure(sweep, column_per_run(frame, "lag_mean"), by)
    seconds = measure(sweep, column_per_run(frame, "iteration_s"), by)
    returns = measure(sweep, final_returns(frame), by)
    overlap = measure(sweep, over_longer(frame), by)
    figure, axes = style.panels(3, height=2.6)
    looks = {(cell.line, cell.by): style.look(i) for i, cell in enumerate(lag)}
    _draw_distribution(axes[0], frame, lag, looks)
    _draw_cells(axes[1], [(cell, cell.rate()) for cell in seconds], looks, by)
    axes[1].set_ylabel("iterations per second")
    style.from_zero(axes[1])
    _draw_cells(axes[2], [(cell, cell.interval()) for cell in returns], looks, by)
    axes[2].set_ylabel("final return")
    style.legend(figure)
    sentences = [warmup_sentence(warmup), *single_run_note(lag)]
    sentences += _overlap_sentences(overlap, by)
    if not returns:
        sentences.append("No episode has ended: there is no return to show.")
    return cli.Study(figure, _table(frame, lag, seconds, overlap, returns, by), sentences)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    args = cli.parser(__doc__, by="sampler.max_lag").parse_args(argv)
    return cli.run(args, "lag", lambda sweep: study(sweep, by=args.by, warmup=args.warmup))


def final_returns(iterations: pd.DataFrame) -> dict[str, FloatArray]:
    """Each run's `return_mean` in the last tenth of its iterations, at least one."""
    found = {}
    for run, values in column_per_run(iterations, "return_mean").items():
        found[run] = values[-max(1, round(FINAL * values.size)) :]
    return found


def over_longer(iterations: pd.DataFrame) -> dict[str, FloatArray]:
    """Each run's `iteration_s` in units of the longer of its mean `collect_s` and `learn_s`.

    Runs without the one or the other are left out.
    """
    if not {"collect_s", "learn_s"} <= set(iterations):
        return {}
    seconds = column_per_run(iterations, "iteration_s")
    collect, learn = (column_per_run(iterations, name) for name in ("collect_s", "learn_s"))
    return {
        run: values / max(collect[run].mean(), learn[run].mean())
        for run, values in seconds.items()
        if run in collect and run in learn
    }


def _overlap_sentences(cells: list[Cell], by: str) -> list[str]:
    return [
        (f"{line}: " if line else "")
        + "An iteration takes, of the longer of collecting and learning, "
        + ", ".join(f"{cell.interval(positive=True)} times at {by}={cell.by}" for cell in group)
        + "."
        for line, group in lines(cells).items()
    ]


def _of_cell(frame: pd.DataFrame, cell: Cell, column: str) -> FloatArray:
    return frame.loc[frame["run"].isin(cell.names), column].dropna().to_numpy(float)


def _draw_distribution(
    axes: Axes, frame: pd.DataFrame, cells: list[Cell], looks: dict[Key, style.Look]
) -> None:
    """The share of iterations whose mean lag is at most the value on the axis."""
    for cell in cells:
        look = looks[cell.line, cell.by]
        lags = np.sort(_of_cell(frame, cell, "lag_mean"))
        share = 100 * np.arange(1, lags.size + 1) / lags.size
        name = ", ".join(part for part in (MODES.get(cell.by, str(cell.by)), cell.line) if part)
        axes.step(
            [0, *lags],
            [0, *share],
            where="post",
            color=look.color,
            linestyle=look.dash,
            label=f"{name} ({cell.repeats})",
        )
    axes.set_xlabel("mean lag (policy versions)")
    axes.set_ylabel("iterations with at most this lag (%)")
    axes.set_ylim(0, 103)
    reach = max(1.0, float(frame["lag_mean"].max()))  # lock-step alone has no width of its own
    axes.set_xlim(-0.05 * reach, 1.05 * reach)


def _draw_cells(
    axes: Axes, cells: list[tuple[Cell, Interval]], looks: dict[Key, style.Look], by: str
) -> None:
    values = list(dict.fromkeys(value for _, value in looks))
    labels = list(dict.fromkeys(line for line, _ in looks))
    for cell, interval in cells:
        shift = 0.15 * (labels.index(cell.line) - (len(labels) - 1) / 2)
        look = looks[cell.line, cell.by]
        place = values.index(cell.by) + shift
        style.point(axes, place, interval, look, hollow=cell.oversubscribed)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xlabel(by)


def _table(
    frame: pd.DataFrame,
    lag: list[Cell],
    seconds: list[Cell],
    overlap: list[Cell],
    returns: list[Cell],
    by: str,
) -> pd.DataFrame:
    rates = {(cell.line, cell.by): cell.rate() for cell in seconds}
    longer = {(cell.line, cell.by): cell.interval(positive=True) for cell in overlap}
    finals = {(cell.line, cell.by): cell.interval() for cell in returns}
    rows = []
    for cell in lag:
        lags = _of_cell(frame, cell, "lag_mean")
        most = _of_cell(frame, cell, "lag_max") if "lag_max" in frame else lags
        rate = rates[cell.line, cell.by]
        ratio = longer.get((cell.line, cell.by), NOTHING)
        final = finals.get((cell.line, cell.by), NOTHING)
        rows.append(
            {
                "line": cell.line,
                by: cell.by,
                "repeats": cell.repeats,
                "lag_mean": lags.mean(),
                "lag_median": np.median(lags),
                "lag_p95": np.quantile(lags, 0.95),
                "lag_max": most.max(),
                "iterations_per_s": rate.value,
                "iterations_per_s_low": rate.low,
                "iterations_per_s_high": rate.high,
                "iteration_over_longer": ratio.value,
                "iteration_over_longer_low": ratio.low,
                "iteration_over_longer_high": ratio.high,
                "final_return": final.value,
                "final_return_low": final.low,
                "final_return_high": final.high,
            }
        )
    return cli.without_lone_line(pd.DataFrame(rows))


if __name__ == "__main__":
    sys.exit(main())
