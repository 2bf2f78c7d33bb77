"""Draws the speedup, the ideal and Amdahl's law against samplers or learners.

speedup(n) = seconds of collection at n = 1 / seconds of collection at n, for the same environment
steps and without the warm-up iterations; for learners, seconds of learning. If the launcher ran the
sweep in blocks, ratios are taken within each block. Each task has a panel. With --end-to-end
another panel shows which parts of a round are divided by samplers and learners in lock-step,
t(N, L) = serial + collect / N + learn / L; for numbers of processes that were not run, see
`walle plan`. Intervals are 95% intervals over seeds or blocks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, published, style
from walle.analysis.measuring import groups, laws, scores, stats, wall_clock
from walle.analysis.runs import BadInputError, Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import listed

COLLECTION, LEARNING, END_TO_END = "collection", "learning", "end to end"
BEYOND = (0, (4, 3))  # dashes of a law beyond the points that it was fitted to
PARTS = ("serial", "divided by samplers", "divided by learners")
PART_COLORS = (style.COLORS[3], style.COLORS[4], style.COLORS[5])  # seldom used by lines
UPRIGHT = 6  # tick labels that fit beside one another
FLAGS = {
    "--end-to-end": "add the speedup of whole iterations, and the serial part of a round",
    "--time-to-return R": {
        "type": float,
        "help": "add the speedup of the time until the return in training >= R",
    },
    "--paper": cli.PAPER,
    "--log": cli.LOG,
    "--fit-all": "fit the laws to oversubscribed points too",
    "--compiling": cli.COMPILING,
}


class Speedup(NamedTuple):
    """A cell and its speedup over the base: the cell of its line with the fewest workers."""

    cell: groups.Cell  # the seconds
    base: float  # the number of workers of the base
    speedup: stats.Interval  # the speedup over the base, with its interval
    # [runs] the speedup of each run over the base, within its block if blocks are known
    per_run: stats.FloatArray

    @property
    def n(self) -> float:
        """The number of workers."""
        return float(self.cell.by)


Lines = dict[str, list[Speedup]]
Points = dict[str, Lines]  # by what is measured: collection, end to end, or the time to a return
Looks = dict[str, style.Look]


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
    """Speedup of collection or learning and, when asked, of whole iterations or time to a return.

    With whole iterations, the parts of a round that samplers and learners divide are fitted too.
    """
    by = groups.numeric_axis(sweep, by)
    iterations = wall_clock.iterations_after_warmup(sweep, warmup)
    of, column = (LEARNING, "learn_s") if by == "learner.n" else (COLLECTION, "collect_s")
    work = wall_clock.measure_seconds(sweep, iterations, column, by)
    whole = wall_clock.measure_seconds(sweep, iterations, "iteration_s", by)
    cells = {of: work}
    rounds: list[laws.RoundFit] = []
    if end_to_end:
        cells[END_TO_END] = whole
        rounds = laws.fit_rounds(sweep, iterations, fit_all=fit_all)
    notes = sentences.sample(warmup, work)
    texts = sentences.few_repeats(work)
    texts += sentences.seconds(sweep, iterations, by) + sentences.also_differ(sweep, by)
    if of == COLLECTION:
        texts += sentences.throughput(sweep, work) + sentences.few_lanes(sweep, by)
    if time_to_return is not None:
        reached, missing = _all_reached(sweep, time_to_return, by, compiling=compiling)
        texts += missing
        if any(len(group) > 1 for group in groups.lines(reached).values()):
            cells[f"to return {time_to_return:g}"] = reached
        else:
            texts.append(f"Too few points reach {time_to_return:g} for a speedup.")
    points: Points = {
        name: {line: speedups(x) for line, x in groups.lines(mine).items() if len(x) > 1}
        for name, mine in cells.items()
    }
    if not points[of]:
        if not work:
            raise BadInputError(f"no run has a value in the column {column}")
        values = listed(sorted({f"{cell.by}" for cell in work}))
        others = listed(groups.line_keys(sweep, by))
        text = f"a speedup needs runs that differ in {by}, but these have {by}={values}"
        raise BadInputError(f"{text}: what varies is {others}" if others else text)
    for line, group in groups.lines(work).items():
        if len(group) == 1:
            texts.append(f"No speedup of {line}, as all its runs have {by}={group[0].by}.")
    for line, mine in points[of].items():
        if (base := mine[0].base) != 1:
            text = f"No usable run at {by}=1: the speedup is over {by}={base:g}, "
            texts.append(sentences.for_line(line, f"{text}and the ideal is n/{base:g}."))
    learning = groups.lines(wall_clock.measure_seconds(sweep, iterations, "learn_s", by))
    unit, answers = wall_clock.unit_of(sweep).words, []
    round_s = {cell.key: cell.mean for cell in whole}
    for line, mine in points[of].items():
        inside = [point for point in mine[1:] if not point.cell.oversubscribed]
        top = (inside or mine)[-1]
        does = f"{style.AXIS_NAMES.get(by, by)} {'learn' if of == LEARNING else 'collect'}"
        text = f"{top.n:g} {does} {top.speedup} times as fast as {top.base:g}"
        share = [c.mean / round_s[c.key] for c in learning.get(line, []) if c.by == top.n]
        text += "".join(f"; learning now takes {x:.0%} of a round" for x in share)
        answers.append(sentences.for_line(line, f"{text}."))
        chosen = laws.within_cores([point.cell for point in mine], fit_all=fit_all)
        fitted = {cell.by for cell in chosen}
        learn = [cell.mean for cell in learning.get(line, []) if cell.by in fitted]
        if of == LEARNING or sentences.throughput(sweep, chosen):  # which waits for learning
            learn = []
        learn_s = float(np.mean(learn)) if learn else None
        about = laws.describe(chosen, learn_s, unit, does)
        texts += [sentences.for_line(line, text) for text in about]
        if about and any(cell.oversubscribed for cell in chosen):
            text = "The fit uses points with more busy processes than cores."
            texts.append(sentences.for_line(line, text))
        if about and len(chosen) < len(mine):
            text = (
                "The fit leaves out the points with more busy processes than cores "
                f"({len(mine) - len(chosen)} of {len(mine)}; --fit-all includes them)."
            )
            notes.append(sentences.for_line(line, text))
    for fit in rounds:
        texts += [sentences.for_line(fit.line, t) for t in laws.describe_rounds(fit, unit)]
    figure = _figure(sweep, points, rounds, by, paper=paper, log=log, fit_all=fit_all)
    return cli.Study(figure, _table(sweep, points, by, rounds), answers + texts, notes=notes)


main = cli.command("speedup", study, __doc__, FLAGS)


def speedups(cells: list[groups.Cell]) -> list[Speedup]:
    """The speedup of every cell of one line over the cell with the fewest workers, the base.

    The base's own speedup is exactly 1; the uncertainty of its time is in all other speedups: their
    intervals are Student's t of the logarithm, with the sum of the variances of cell and base.
    """
    base = min(cells, key=lambda cell: float(cell.by))
    base_s: dict[str, list[float]] = {}
    for block, value in zip(base.blocks, base.per_run, strict=bool(base.blocks)):
        base_s.setdefault(block, []).append(float(value))
    points = []
    for cell in cells:
        value, variance = base.compared / cell.compared, 0.0
        if cell is not base:
            variance = float(np.log(base.draws).var() + np.log(cell.draws).var())
        reach = math.exp(stats.student(min(base.dof, cell.dof)) * math.sqrt(variance))
        ratios = base.mean / cell.per_run
        if cell.blocks:
            pairs = zip(cell.blocks, cell.per_run, strict=True)
            ratios = np.array([np.mean(base_s[b]) / seconds for b, seconds in pairs if b in base_s])
        interval = stats.Interval(value, value / reach, value * reach)
        points.append(Speedup(cell, float(base.by), interval, ratios))
    return points


def _all_reached(
    sweep: Sweep, target: float, by: str, *, compiling: bool
) -> tuple[list[groups.Cell], list[str]]:
    """The cells in which every run reached a return, and a sentence about the other cells."""
    clock = scores.with_training(sweep, wall_clock.clock(sweep, compiling=compiling))
    per_run = scores.first_reached(clock, target)
    reached = {cell.key: cell for cell in groups.measure(sweep, per_run, by)}
    cells, short = [], []
    for every in groups.measure(sweep, {run.name: np.ones(1) for run in sweep.runs}, by):
        cell = reached.get(every.key)
        if cell and cell.runs == every.runs:
            cells.append(cell)
        else:
            short.append(f"{cell.runs if cell else 0} of {every.runs} at {by}={every.by}")
    if not cells:
        raise BadInputError(
            f"--time-to-return {target:g}: at no {by} did every run reach it; the highest "
            f"return in training is {clock[scores.TRAINING].max():.4g}"
        )
    text = (
        f"Return {target:g} was not reached by every run ({'; '.join(short)}). Points with such a "
        "run are not drawn: a mean over the fast runs alone would look too good."
    )
    return cells, [text] if short else []


def _table(sweep: Sweep, points: Points, by: str, rounds: list[laws.RoundFit]) -> pd.DataFrame:
    parts = {
        cell.names: fit.fit.value.with_shares(shares)._asdict()
        for fit in rounds
        for shares, cell in zip(fit.shares, fit.fit.cells, strict=True)
    }
    lanes = {run.name: " to ".join(map(str, dict.fromkeys(run.lanes or ()))) for run in sweep.runs}
    rows = []
    for name, of_line in points.items():
        for line, point in ((line, p) for line, mine in of_line.items() for p in mine):
            cell = point.cell
            of_round = parts.get(cell.names, {}) if name == END_TO_END else {}
            rows.append(
                {
                    "line": line,
                    "of": name,
                    by: point.n,
                    "lanes_a_sampler": lanes[cell.names[0]],
                    "repeats": cell.repeats,
                    **cell.interval(positive=True).columns("seconds"),
                    **point.speedup.columns("speedup"),
                    "efficiency": point.speedup.value * point.base / point.n,
                    "oversubscribed": cell.oversubscribed,
                    **{f"{part}_s": seconds for part, seconds in of_round.items()},
                }
            )
    return sentences.without_lone_line(pd.DataFrame(rows), "line", "of")


def _figure(
    sweep: Sweep, points: Points, rounds: list[laws.RoundFit], by: str, *, paper: bool, **how: bool
) -> style.Figure:
    """A panel for each quantity and task; one for each task's rounds, if these are given."""
    task_of = {run.name: labels.task_of(run) for run in sweep.runs}
    panels: dict[tuple[str, str], Lines] = {}
    for name, of_line in points.items():
        for line, group in of_line.items():
            task = task_of[group[0].cell.names[0]]
            panels.setdefault((name, task), {})[labels.without_task(line, task)] = group
    tasks = list(dict.fromkeys(task for _, task in panels))
    looks = labels.looks(line for mine in panels.values() for line in mine)
    figure, rows = labels.axes_of(tasks, len(points) + bool(rounds))
    first, *others = [area for row in rows[: len(points)] for area in row]
    for area in others:  # one scale of the speedups, with its numbers at the left
        area.sharey(first)
        cell = area.get_subplotspec()
        area.tick_params(labelleft=cell is not None and cell.is_first_col())
    if rounds:
        for area, task in zip(rows.pop(), tasks, strict=True):
            mine = [fit for fit in rounds if task_of[fit.fit.cells[0].names[0]] == task]
            _draw_rounds(area, mine, task, wall_clock.unit_of(sweep).words)
    for row, name in zip(rows, points, strict=True):
        for area, task in zip(row, tasks, strict=True):
            if drawn := panels.get((name, task)):
                papers = paper and (name, by) == (COLLECTION, "sampler.n")
                _draw_panel(area, drawn, looks, by, paper=papers, **how)
                style.mark_cores(area, sweep.cores if by == "sampler.n" else 0)
        words = name.replace(" ", "-")
        label = f"speedup {name}" if name.startswith("to ") else f"{words} speedup"
        base = min(group[0].base for group in points[name].values())
        row[0].set_ylabel(label if base == 1 else f"{label} over {by}={base:g}")
    style.legend(figure)
    return figure


def _draw_panel(
    axes: style.Axes, lines: Lines, looks: Looks, by: str, *, paper: bool, log: bool, fit_all: bool
) -> None:
    places = style.axis_places(point.n for points in lines.values() for point in points)
    for line, points in lines.items():
        look = looks[line]
        over = "" if points[0].base == 1 else f", over {points[0].base:g}"
        label = f"{line or 'measured'} ({sentences.repeats_label(p.cell for p in points)}{over})"
        for point in points:
            compared = point.cell.runs > 1 and not (point.cell.blocks and point.n == point.base)
            hollow, dots = point.cell.oversubscribed, point.per_run if compared else ()
            style.point(axes, point.n, point.speedup, look, hollow=hollow, dots=dots)
        axes.plot([], [], look.marker, color=look.color, label=label)
        cells = [point.cell for point in points]
        fit = laws.fit_law_of(laws.within_cores(cells, fit_all=fit_all))
        known = fit is not None and len(fit.cells) >= laws.FEWEST
        if fit and known and fit.value.serial < 1:  # a serial part of 1 means that no law fits
            n = np.linspace(points[0].n, points[-1].n, 100)
            speedup = fit.value.speedup(n, points[0].base)
            inside = n <= max(float(cell.by) for cell in fit.cells)
            axes.plot(n, np.where(inside, speedup, np.nan), "-", color=look.color, lw=1)
            axes.plot(n, np.where(inside, np.nan, speedup), color=look.color, ls=BEYOND, lw=1)
            axes.plot([], [], color=style.PAPER_GREY, lw=1, label="Amdahl's law, fitted")
    most = max(point.n for points in lines.values() for point in points)
    if paper:
        published.draw(axes, published.collection(), "speedup")
        most = max(most, float(published.collection()["n"].max()))
    base = min(points[0].base for points in lines.values())
    reach = np.array([base, most])
    axes.plot(reach, reach / base, color=style.IDEAL_GREY, ls="--", zorder=1, label="ideal")
    axes.set_xlabel(style.AXIS_NAMES.get(by, by))
    axes.margins(x=0.1)
    hollow = any(point.cell.oversubscribed for group in lines.values() for point in group)
    style.scale_axes(axes, places, log=log, hollow=hollow, base=2)
    if paper:
        published.extend_ticks(axes, published.collection())


def _draw_rounds(axes: style.Axes, fits: list[laws.RoundFit], task: str, unit: str) -> None:
    """A bar of the fitted parts for each number of samplers and learners; dots are measured."""
    if not fits:
        axes.remove()
        return
    place, places, names = 0, [], []
    for fit in fits:
        if line := labels.without_task(fit.line, task):
            axes.text(place, 0, f" {line}", rotation=90, fontsize=6, ha="center", va="bottom")
            place += 1
        for workers, shares, cell in zip(fit.workers, fit.shares, fit.fit.cells, strict=True):
            heights = np.array(fit.fit.value.with_shares(shares))
            below = heights.cumsum() - heights
            axes.bar([place] * 3, heights, 0.7, below, color=PART_COLORS, linewidth=0)
            axes.plot([place], [cell.compared], "o", color="black", ms=3, zorder=3)
            style.draw_interval(axes, place, cell.interval(positive=True), "black")
            places.append(place)
            names.append("{}\u00d7{}".format(*workers))
            place += 1
    axes.set_xticks(places, names, rotation=90 if len(places) > UPRIGHT else 0)
    axes.set_xlim(-0.6, place - 0.4)
    axes.set_xlabel("samplers \u00d7 learners")
    axes.set_ylabel(f"seconds\nper {unit}")
    varied = (True, *(any(flags) for flags in zip(*(fit.varied for fit in fits), strict=True)))
    for name, color, there in zip(PARTS, PART_COLORS, varied, strict=True):
        if there:
            axes.bar(0, 0, color=color, linewidth=0, label=name)  # for the legend
    axes.plot([], [], "o", color="black", ms=3, label="measured rounds")


if __name__ == "__main__":
    raise SystemExit(main())
