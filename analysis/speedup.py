"""Draws the speedup against the number of samplers, the ideal and Amdahl's law.

speedup(n) = seconds of collection at n = 1 / seconds of collection at n, for the same environment
steps and without the warm-up iterations; within blocks where the launcher measured in blocks. Each
task has a panel. With --end-to-end another panel shows what samplers and learners divide of a round
in lock-step, t(N, L) = serial + collect / N + learn / L, and what 16 of each would bring, computed
from it. Intervals are 95% intervals over seeds, with one relative variance for all points.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

from walle.analysis.drawing.speedups import COLLECTION, figure
from walle.analysis.loading.directories import BadInputError, listed
from walle.analysis.measuring import fits, times
from walle.analysis.measuring.cells import Cell, iterations_after_warmup, lines
from walle.analysis.measuring.design import line_keys, numeric_axis, workers_axis
from walle.analysis.measuring.dividing import Parts
from walle.analysis.measuring.speedups import Point, all_reached, fit_points, speedups
from walle.analysis.planning.rounds import RoundFit, fit_rounds
from walle.analysis.planning.rounds import sentences as of_rounds
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, words

END_TO_END = "end to end"
FLAGS = {
    "--end-to-end": "add the speedup of whole iterations, and the serial part of a round",
    "--time-to-return": {
        "type": float,
        "metavar": "R",
        "help": "add the speedup of the time until return_mean >= R",
    },
    "--paper": cli.PAPER,
    "--log": cli.LOG,
    "--fit-all": "fit the laws to oversubscribed points too",
    "--compiling": cli.COMPILING,
}


def study(
    sweep: Sweep,
    *,
    by: str | None = None,
    warmup: int = 1,
    end_to_end: bool = False,
    time_to_return: float | None = None,
    paper: bool = False,
    log: bool = False,
    fit_all: bool = False,
    compiling: bool = False,
) -> cli.Study:
    """Speedup of collection and, when asked, of whole iterations and of the time to a return.

    With whole iterations, what samplers and learners divide of rounds in lock-step is fitted too.

    Args:
        sweep: the runs.
        by: the configuration key that counts the workers; None for `workers_axis`.
        warmup: the number of iterations of each run that do not count.
        end_to_end: add the speedup of whole iterations.
        time_to_return: add the speedup of the time until return_mean reaches this value.
        paper: draw the papers' points too.
        log: logarithmic axes.
        fit_all: fit the laws to oversubscribed points too.
        compiling: count the compiler's time in the time to a return.
    """
    by = numeric_axis(sweep, by) if by else workers_axis(sweep)
    iterations = iterations_after_warmup(sweep, warmup)
    cells = {COLLECTION: times.measure_seconds(sweep, iterations, "collect_s", by)}
    rounds: list[RoundFit] = []
    if end_to_end:
        cells[END_TO_END] = times.measure_seconds(sweep, iterations, "iteration_s", by)
        rounds = fit_rounds(sweep, iterations, fit_all=fit_all)
    sentences = words.sample(warmup, cells[COLLECTION]) + words.seconds(
        sweep, iterations, cells[COLLECTION], by
    )
    sentences += words.machine(sweep) + words.also_differ(sweep, by)
    sentences += words.throughput(sweep, cells[COLLECTION])
    sentences += words.lanes(sweep, cells[COLLECTION], by)
    if time_to_return is not None:
        reached, missing = all_reached(sweep, time_to_return, by, compiling=compiling)
        sentences += missing
        if any(len(group) > 1 for group in lines(reached).values()):
            cells[f"to return {time_to_return:g}"] = reached
        else:
            sentences.append(f"Too few points reach {time_to_return:g} for a speedup.")
    points = {name: _speedups_of_lines(found) for name, found in cells.items()}
    if not points[COLLECTION]:
        raise BadInputError(_too_few(sweep, cells[COLLECTION], by))
    sentences += _base_sentences(cells[COLLECTION], points[COLLECTION], by)
    sentences += _fit_sentences(sweep, iterations, points[COLLECTION], by, fit_all=fit_all)
    unit = times.unit_of(sweep).words
    sentences += [words.for_line(r.line, text) for r in rounds for text in of_rounds(r, unit)]
    drawn = figure(sweep, points, by=by, paper=paper, log=log, fit_all=fit_all, rounds=rounds)
    return cli.Study(drawn, _table(sweep, points, by, rounds), sentences)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, FLAGS, by=None).parse_args(argv)
    options = ("end_to_end", "time_to_return", "paper", "log", "fit_all", "compiling")
    return cli.run(args, "speedup", study, ("by", "warmup", *options))


def _speedups_of_lines(cells: list[Cell]) -> dict[str, list[Point]]:
    """The speedups of every line that has two points or more."""
    return {line: speedups(group) for line, group in lines(cells).items() if len(group) > 1}


def _too_few(sweep: Sweep, cells: list[Cell], by: str) -> str:
    if not cells:
        return "no run has a value in the column collect_s"
    values = sorted({f"{cell.by}" for cell in cells})
    text = f"a speedup needs runs that differ in {by}, but these have {by}={listed(values)}"
    others = [key for key in line_keys(sweep, by) if key in sweep.varying]
    return f"{text}: what varies is {listed(others)}" if others else text


def _base_sentences(cells: list[Cell], found: dict[str, list[Point]], by: str) -> list[str]:
    """Sentences about the lines without a speedup, and about the bases other than one worker."""
    alone = [group[0] for group in lines(cells).values() if len(group) == 1]
    said = [f"No speedup of {cell.line}, as all its runs have {by}={cell.by}." for cell in alone]
    for line, points in found.items():
        base = points[0].base
        if base != 1:
            text = f"No usable run at {by}=1: the speedup is over {by}={base:g}, "
            said.append(words.for_line(line, f"{text}and the ideal is n/{base:g}."))
    return said


def _fit_sentences(
    sweep: Sweep, iterations: pd.DataFrame, found: dict[str, list[Point]], by: str, *, fit_all: bool
) -> list[str]:
    learning = lines(times.measure_seconds(sweep, iterations, "learn_s", by))
    unit = times.unit_of(sweep).words
    sentences = []
    for line, points in found.items():
        chosen = [point.cell for point in fit_points(points, fit_all=fit_all)]
        fitted = {cell.by for cell in chosen}
        learn = [cell.mean for cell in learning.get(line, []) if cell.by in fitted]
        if words.throughput(sweep, chosen):  # collection waits for learning already
            learn = []
        texts = fits.describe(chosen, float(np.mean(learn)) if learn else None, unit)
        if any(cell.oversubscribed for cell in chosen):
            texts.append("The fit uses points with more busy processes than cores.")
        if len(chosen) < len(points):
            texts.append(
                "The fit leaves out the points with more busy processes than cores "
                f"({len(points) - len(chosen)} of {len(points)}; --fit-all includes them)."
            )
        sentences += [words.for_line(line, text) for text in texts]
    return sentences


def _table(
    sweep: Sweep, points: dict[str, dict[str, list[Point]]], by: str, rounds: list[RoundFit]
) -> pd.DataFrame:
    parts = {
        cell.names: fit.made_of(setup, fit.shards)
        for fit in rounds
        for setup, cell in zip(fit.setups, fit.cells, strict=True)
    }
    lanes = {run.name: words.lanes_text(run.lanes) for run in sweep.runs}
    rows = [
        {
            "line": line,
            "of": name,
            by: point.n,
            "lanes_a_sampler": lanes[point.cell.names[0]],
            "repeats": point.cell.repeats,
            **point.cell.interval(positive=True).columns("seconds"),
            **point.speedup.columns("speedup"),
            "efficiency": point.speedup.value * point.base / point.n,
            "oversubscribed": point.cell.oversubscribed,
            **_parts(parts.get(point.cell.names) if name == END_TO_END else None),
        }
        for name, found in points.items()
        for line, group in found.items()
        for point in group
    ]
    return words.without_lone_line(pd.DataFrame(rows), "line", "of")


def _parts(found: Parts | None) -> dict[str, float]:
    """The columns serial_s, collect_s and learn_s of whole rounds; none for other rows."""
    return {f"{name}_s": each for name, each in found._asdict().items()} if found else {}


if __name__ == "__main__":
    sys.exit(main())
