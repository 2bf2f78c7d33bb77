"""Draws what each process of a run with `trace=true` does over time; also for Perfetto.

The figure has a row for each process, and shows two steady iterations by default. Its colours show
the share of every section in each moment: waiting samplers, the learning agent, and their overlap.
The trace (.json, beside the figure) holds every span; ui.perfetto.dev and chrome://tracing open it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import BadInputError, Run, Sweep
from walle.analysis.writing import cli
from walle.analysis.writing.format import listed

BINS = 600
SHOWN_ITERATIONS = 2
STEADY_DIGITS = 1  # lengths within 5% of each other are alike
FLAGS = {
    "--run NAME": "the run to draw (default: the first with a trace)",
    "--from S": {"dest": "start_s", "type": float, "help": "first second"},
    "--to S": {"dest": "end_s", "type": float, "help": "last second"},
    "--json FILE": {
        "type": Path,
        "help": "the file for the Perfetto trace (default: beside the figure)",
    },
}


def study(
    sweep: Sweep,
    *,
    run: str | None = None,
    start_s: float | None = None,
    end_s: float | None = None,
) -> cli.Study:
    """The timeline of one run."""
    runs = traced(sweep)
    if not runs:
        raise BadInputError("no run has a trace.csv: make one with trace=true")
    named = [each for each in runs if run in (None, each.name, str(each.path))]
    if not named:
        known = listed([each.name for each in runs])
        raise BadInputError(f"--run {run}: the runs with a trace are {known}")
    chosen = named[0]
    spans = sweep.trace[sweep.trace["run"] == chosen.name]
    spans = spans.astype({"process": str, "section": str}).sort_values("start_s")
    first_s, last_s = _steady(sweep, chosen, spans)
    if start_s is None:
        start_s = first_s if end_s is None else end_s - (last_s - first_s)
    end_s = start_s + (last_s - first_s) if end_s is None else end_s
    if not start_s < end_s:
        raise BadInputError(f"--from {start_s:g} --to {end_s:g}: the end must lie after the start")
    window = spans[(spans["end_s"] > start_s) & (spans["start_s"] < end_s)]
    if not len(window):
        raise BadInputError(
            f"nothing happened between {start_s:g} and {end_s:g} s: the trace of {chosen.name} "
            f"goes from {spans['start_s'].min():.3g} to {spans['end_s'].max():.3g} s"
        )
    processes = sorted(window["process"].unique(), key=_process_order)
    figure, (axes,) = style.panels(1, height=1.3 + 0.22 * len(processes), page=True)
    edges = np.linspace(start_s, end_s, BINS + 1)
    for row, process in enumerate(processes):
        parts = shares(window[window["process"] == process], edges)
        bottom = np.full(BINS, row - 0.4)  # waiting is pale, `other` white
        for section in sorted(parts, key=lambda section: (section.startswith("wait"), section)):
            top = bottom + 0.8 * parts[section]
            color, _ = style.section(section)
            axes.fill_between(edges[:-1], bottom, top, step="post", color=color, linewidth=0)
            bottom = top
    axes.set_yticks(range(len(processes)), processes)
    axes.set(xlim=(start_s, end_s), ylim=(len(processes) - 0.5, -0.5))
    axes.set_xlabel("time since the run began (s)")
    axes.tick_params(axis="y", length=0)
    busy = [name for name in style.SECTIONS if name != "other" and not name.startswith("wait")]
    for name in (*(name for name in busy if name in set(window["section"])), "waiting"):
        color, _ = style.section(name)
        axes.fill_between([], [], [], color=color, label=name.replace("_", " "))
    style.legend(figure)
    clipped = window["end_s"].clip(upper=end_s) - window["start_s"].clip(lower=start_s)
    seconds = clipped.groupby([window["process"], window["section"]]).sum()
    table = seconds.rename("seconds").reset_index()
    table["percent"] = 100 * table["seconds"] / (end_s - start_s)
    table = table.sort_values(["process", "section"], ignore_index=True)
    table = table.round({"seconds": 3, "percent": 1})
    texts = [f"Run {chosen.name}, {start_s:.4g} to {end_s:.4g} s."]
    points = window[["process", "section", "start_s", "end_s"]]
    return cli.Study(figure, table, texts, points, lambda: json.dumps(perfetto(chosen.name, spans)))


main = cli.command("timeline", study, __doc__, FLAGS)


def traced(sweep: Sweep) -> list[Run]:
    """The runs that have a trace.csv."""
    return [run for run in sweep.runs if (run.path / "trace.csv").is_file()]


def perfetto(name: str, spans: pd.DataFrame) -> dict[str, Any]:
    """The spans in Chrome's trace format: a track per process, complete events in microseconds."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": name}}
    ]
    track = {}
    for i, process in enumerate(sorted(spans["process"].unique(), key=_process_order)):
        track[process] = about = {"pid": 0, "tid": i}
        events.append({"ph": "M", **about, "name": "thread_name", "args": {"name": process}})
        index = {"name": "thread_sort_index", "args": {"sort_index": i}}
        events.append({"ph": "M", **about, **index})
    columns = spans[["process", "section", "start_s", "end_s"]]
    for process, section, start_s, end_s in columns.itertuples(index=False, name=None):
        kind = "wait" if section.startswith("wait") else "work"
        times = {"ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6}
        events.append({"ph": "X", **track[process], "name": section, "cat": kind, **times})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def shares(spans: pd.DataFrame, edges: FloatArray) -> dict[str, FloatArray]:
    """The share of each interval between `edges` [bins + 1] that a process spent in each section.

    The time spent in a section up to t is piecewise linear in t. Its differences between the edges
    are therefore exact, however short the spans are.
    """
    of_section = {}
    for section, rows in spans.groupby("section"):
        ends = rows[["start_s", "end_s"]].to_numpy(float)
        spent = np.stack([np.zeros(len(ends)), ends[:, 1] - ends[:, 0]], axis=1).ravel().cumsum()
        of_section[str(section)] = np.diff(np.interp(edges, ends.ravel(), spent)) / np.diff(edges)
    return of_section


def _steady(sweep: Sweep, run: Run, spans: pd.DataFrame) -> tuple[float, float]:
    """Start and end of two iterations of typical length or, in a short run, of all its spans.

    They start where an iteration ended. Among all neighbouring pairs without compiling they are the
    pair nearest to the median length, and among equals the one nearest to the middle of the run.
    The first iteration is not among them unless there is no other.
    """
    rows = sweep.iterations[sweep.iterations["run"] == run.name]
    ends = rows["wall_s"].to_numpy(float)
    lengths = rows["iteration_s"].to_numpy(float)
    if len(ends) < SHOWN_ITERATIONS:
        begun = spans[spans["section"] != "other"]  # imports and set-up come before
        return float(begun["start_s"].min()), float(spans["end_s"].max())
    last = np.arange(SHOWN_ITERATIONS - 1, len(ends))
    starts = ends[last] - lengths[last] - lengths[last - 1]
    compiling = spans[spans["section"] == "compile"]
    begins, stops = compiling["start_s"].to_numpy(float), compiling["end_s"].to_numpy(float)
    overlaps = (begins < ends[last][:, None]) & (stops > starts[:, None])
    allowed = ~overlaps.any(axis=1)
    allowed[0] = False
    if not allowed.any():
        allowed[:] = True
    typical = SHOWN_ITERATIONS * np.median(lengths)
    unlike = np.abs(np.log((ends[last] - starts) / typical)).round(STEADY_DIGITS)
    off_centre = np.abs(last - len(ends) / 2)
    best = min(np.flatnonzero(allowed), key=lambda i: (unlike[i], off_centre[i]))
    return float(starts[best]), float(ends[last[best]])


def _process_order(process: str) -> tuple[int, int, str]:
    kind, _, number = process.partition("-")
    return int(kind != "agent"), int(number) if number.isdigit() else 0, kind


if __name__ == "__main__":
    raise SystemExit(main())
