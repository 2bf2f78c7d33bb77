"""Keeps the evaluations of runs in docs/data/, and draws the tables and figures of pages from them.

    python benchmarks/data.py off_policy multirun/off_policy --pages
    python benchmarks/data.py --pages
    python benchmarks/data.py study_lag multirun/study_lag --rounds

The first command writes docs/data/off_policy.csv, a row for each evaluation of the completed runs
in the given directories of runs and sweeps; --add keeps the file's rows of other runs. `return` is
the mean of an evaluation's episodes, `wall_s` the seconds since training began, and `core_s`
is `wall_s` times the cores that the run could use. Settings that distinguish runs of one algorithm
on one task have columns. --pages draws all tables and figures again. In a page a table stands
between these two lines:

    <!-- table: returns off_policy ppo HalfCheetah,Hopper=100000,200000 published=PPO:Tianshou -->
    <!-- end -->

It reads the named files; one that does not exist has no rows. `returns` are means with 95%
intervals after these environment steps, `spreads` are means with standard deviations, `core_hours`
are the median core-hours until these returns. A figure (`figure: env_steps off_policy
HalfCheetah=`, or core_h) is written to the file of the image that stands between its two lines.

With --rounds the file is benchmarks/measured/NAME.csv (or .csv.gz, from 100 kB on), with the
seconds of every round of the completed runs and the mean return of the episodes that ended in it;
the analysis of runs that are restored from it prints what it printed of the runs.
"""

from __future__ import annotations

import argparse
import gzip
import math
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from walle.analysis.drawing import labels, published, style
from walle.analysis.measuring import groups, scores, stats
from walle.analysis.runs import BadInputError, LeftOut, Run, Sweep, load
from walle.analysis.writing import cli
from walle.analysis.writing.format import counted, with_range
from walle.system.files import write_atomically

DOCS = Path(__file__).resolve().parents[1] / "docs"
MEASURED = Path(__file__).resolve().parent / "measured"
TIMES = ["collect_s", "learn_s", "other_s", "compile_s", "iteration_s", "wall_s"]
ROUND = ["iteration", "env_steps", *TIMES, "return_round_mean"]
MOST_BYTES = 100_000
NEAR = 0.05  # how far an evaluation may be from a number of steps, as a fraction of that number
FIRST = ["run", "algo", "env", "seed"]
LAST = ["commit", "cpu", "env_steps", "return", "wall_s", "core_s"]
MARKED = re.compile(r"(<!-- (table|figure): (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
X_AXES = {"env_steps": "environment steps", "core_h": "core-hours"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes a file of data, draws the pages, or both."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("name", nargs="?", help="the file to write is docs/data/NAME.csv")
    parser.add_argument("runs", nargs="*", type=Path, help="directories of runs and of sweeps")
    parser.add_argument("--add", action="store_true", help="keep the file's rows of other runs")
    parser.add_argument("--rounds", action="store_true", help="keep the seconds of rounds instead")
    parser.add_argument("--pages", action="store_true", help="draw tables and figures again")
    options = parser.parse_args(arguments)
    if bool(options.name) != bool(options.runs) or not (options.name or options.pages):
        parser.error("give a name and directories of runs, or --pages, or both")
    if options.rounds and options.add:
        parser.error("--add keeps rows of evaluations, not of rounds")

    def act() -> None:
        if options.name and options.rounds:
            write_rounds(MEASURED / f"{options.name}.csv", options.runs)
        elif options.name:
            write_data(DOCS / "data" / f"{options.name}.csv", options.runs, add=options.add)
        if options.pages:
            draw_pages()

    return cli.guard("data", act)


def write_data(file: Path, paths: Sequence[Path], *, add: bool = False) -> None:
    """Writes the evaluations; with `add` the file's rows of other runs stay.

    Raises BadInputError if the file would be too large, or has columns for other settings.
    """
    rows, left_out = evaluations(paths)
    if add:
        if [*(known := _read(file))] != [*rows]:
            raise BadInputError(f"{file} has columns for other settings: give all its runs again")
        rows = _in_order(pd.concat([known[~known["run"].isin(rows["run"])], rows]))
    text = rows.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if len(text) >= MOST_BYTES:
        raise BadInputError(f"{file} would have {len(text):,} of {MOST_BYTES:,} bytes: divide it")
    write_atomically(file, text)
    print(f"{file}: {counted(rows['run'].nunique(), 'run')}, {counted(len(rows), 'evaluation')}")
    for run, reason in left_out:
        print(f"left out: {run}: {reason}", file=sys.stderr)


def write_rounds(file: Path, paths: Sequence[Path]) -> None:
    """Writes a row for every round of the completed runs, with the settings that vary."""
    sweep = load(*paths)
    always = ("env.id", "sampler.n", "sampler.max_lag", "learner.n", "sampler.lanes")
    always += ("batch_size", "total_steps")
    settings = [*always, *groups.line_keys(sweep, *always, "seed"), "seed"]
    completed = [run for run in sweep.runs if run.state == "completed"]
    if not completed:
        raise BadInputError(f"no completed run in {', '.join(map(str, paths))}")
    blocks = [str(run.block).rpartition(" ")[2] for run in completed]
    facts = pd.DataFrame([_facts(run, settings) for run in completed]).assign(block=blocks)
    rows = sweep.iterations[["run", *ROUND]].astype({"run": str}).merge(facts, on="run")
    rows = rows[["run", "block", *settings, "cores", "commit", "cpu", *ROUND]]
    text = rows.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if len(text) >= MOST_BYTES:
        file.unlink(missing_ok=True)
        file = file.with_suffix(".csv.gz")
        write_atomically(file, gzip.compress(text.encode(), mtime=0))
    else:
        write_atomically(file, text)
    print(f"{file}: {counted(len(completed), 'run')}, {counted(len(rows), 'round')}")
    for run in sweep.runs:
        if run.state != "completed":
            print(f"left out: {run.name}: {run.state}", file=sys.stderr)
    for name, reason in sweep.left_out:
        print(f"left out: {name}: {reason}", file=sys.stderr)


def evaluations(paths: Sequence[Path]) -> tuple[pd.DataFrame, list[LeftOut]]:
    """The evaluations of the completed runs, in an order that does not change with further runs.

    Also returns the runs that were left out.

    Raises BadInputError if no run is left, or two runs have the same settings and seed.
    """
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for root in paths:
        found = load(root)
        left_out += found.left_out
        for run in found.runs:
            name = (root.resolve().name / run.path.relative_to(root)).as_posix()
            if run.state != "completed":
                left_out.append(LeftOut(name, run.state))
            elif not (run.path / "eval.csv").exists():
                left_out.append(LeftOut(name, "no evaluation"))
            else:
                runs.append(replace(run, name=name))
    if not runs:
        raise BadInputError(f"no completed run with an evaluation in {', '.join(map(str, paths))}")
    sweep = Sweep([*paths], runs, left_out)
    keys = groups.line_keys(sweep, "algo.name", "env.id")
    settings = [key for key in keys if not key.startswith(("checkpoint.", "logger."))]
    facts = pd.DataFrame([_facts(run, settings) for run in runs])
    rows = sweep.evaluations[["run", "env_steps", "return_mean", "wall_s"]].astype({"run": str})
    rows = rows.drop_duplicates(["run", "env_steps"], keep="last").merge(facts, on="run")
    rows["return"], rows["core_s"] = rows["return_mean"], rows["wall_s"] * rows["cores"]
    return _in_order(rows[[*FIRST, *settings, *LAST]]), left_out


def _in_order(rows: pd.DataFrame) -> pd.DataFrame:
    settings = [key for key in rows if key not in (*FIRST, *LAST)]
    order = ["env", "algo", *settings, "seed", "env_steps"]
    same = rows[rows.duplicated(order, keep=False)]["run"].unique()
    if len(same):
        raise BadInputError(f"the same settings and seed: {', '.join(same)}; leave out all but one")
    return rows.sort_values(order, key=lambda column: column.map(groups.sort_key))


def _facts(run: Run, settings: Sequence[str]) -> dict[str, object]:
    config, git = run.config, run.provenance.get("git") or {}
    return {
        **{"run": run.name, "algo": config["algo.name"], "env": config["env.id"]},
        **{key: config.get(key, "null") for key in ("seed", *settings)},
        "cores": run.cores,
        "commit": str(git.get("commit", ""))[:12] + "-dirty" * bool(git.get("dirty")),
        "cpu": run.provenance.get("cpu_model"),
    }


class Asked(NamedTuple):
    """The data that a marker in a page names, for its table or figure."""

    kind: str
    rows: pd.DataFrame  # evaluations, with the columns `task`, `label` and `core_h`
    numbers: list[tuple[str, float]]  # tasks with steps or returns
    published: list[list[str]]  # algorithm and source

    @property
    def runs(self) -> pd.Series[int]:
        """The number of runs, by label and task."""
        return self.rows.groupby(["label", "task"])["run"].nunique()

    @property
    def seeds(self) -> dict[str, int]:
        """The most runs of a task, by label."""
        return {str(label): int(most) for label, most in self.runs.groupby("label").max().items()}

    def of(self, task: str, label: str) -> pd.DataFrame:
        """The rows of one task and label."""
        return self.rows[(self.rows["task"] == task) & (self.rows["label"] == label)]


def read_marker(words: str) -> Asked:
    """Reads the words of a marker, and the data that they name."""
    kind, *rest = shlex.split(words)
    options = dict(word.split("=") for word in rest if "=" in word)
    theirs = [each.split(":") for each in options.pop("published", "").split(",") if each]
    files = [DOCS / "data" / f"{word}.csv" for word in rest if "=" not in word]
    empty = pd.DataFrame(columns=[*FIRST, *LAST])
    frames = [_read(file) for file in files if file.exists()] or [empty]
    numbers = [
        (task, float(number or 0))
        for tasks, values in options.items()
        for task in tasks.split(",")
        for number in values.split(",")
    ]
    return Asked(kind, pd.concat(map(_labelled, frames)), numbers, theirs)


def _read(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, keep_default_na=False, na_values=[""])  # `null` is a setting's value


def _algorithm(name: str) -> str:
    """`PPO-KL` for `ppo_kl`, and the class alone for `module:Class`."""
    return name.rpartition(":")[2] if ":" in name else name.upper().replace("_", "-")


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """With `task`, `core_h` and `label`: the algorithm, and its settings if several occur."""
    label = rows["algo"].astype(str).map(_algorithm)
    for key in [name for name in map(str, rows) if name not in (*FIRST, *LAST)]:
        varies = rows.groupby("algo")[key].transform("nunique") > 1
        label += (f", {key.split('.')[-1]} " + rows[key].astype(str)).where(varies, "")
    task = rows["env"].astype(str).str.replace(r"-v\d+$", "", regex=True)
    return rows.assign(task=task, label=label, core_h=rows["core_s"] / 3600)


def with_tables(page: str) -> str:
    """The text of a page with its tables drawn from the data."""

    def drawn(found: re.Match[str]) -> str:
        before, what, words, _, after = found.groups()
        if what == "figure":
            return found[0]
        asked = read_marker(words)
        head, *rows = (core_hours if asked.kind == "core_hours" else returns)(asked)
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{before}\n{table if rows else 'Not measured yet.'}\n\n{after}"

    return MARKED.sub(drawn, page)


def returns(asked: Asked) -> Iterator[list[str]]:
    """A table of returns: a row for each task and number of steps that some run has reached."""
    files = (published.REFERENCE / "returns_published.csv", DOCS / "data/published.csv")
    known = pd.concat(_read(file) for file in files if file.exists())
    theirs = [known[(known[["algorithm", "source"]] == x).all(axis=1)] for x in asked.published]
    heads = [f"{name}, {counted(count, 'seed')}" for name, count in asked.seeds.items()]
    heads += [f"{algorithm} of {source}" for algorithm, source in asked.published]
    yield ["task", "steps", *heads]
    for task, steps in asked.numbers:
        cells = []
        for label, most in asked.seeds.items():
            rows = asked.of(task, label)
            values = at_steps(rows, steps)
            text = mean_text(values, possible(rows), spread=asked.kind == "spreads")
            cells.append(text + f" ({len(values)})" * (0 < len(values) < most))
        if any(cells):
            for rows in theirs:
                near = rows[(rows["task"] == task) & (rows["env_steps"] == steps)]
                cells.append("; ".join(map(plus_minus, near["mean"], near["spread"])))
            yield [task, f"{steps:,.0f}", *cells]


def at_steps(rows: pd.DataFrame, steps: float) -> stats.FloatArray:
    """[runs] The return of each run's evaluation nearest to a number of steps, if it is near."""
    off = (rows["env_steps"] / steps - 1).abs()
    near = rows.assign(off=off)[off <= NEAR].sort_values("off", kind="stable")
    return near.groupby("run")["return"].first().to_numpy(float)


def possible(rows: pd.DataFrame) -> scores.Ends:
    """The least and the greatest return of the rows' task."""
    return scores.returns_by_task().get(str(rows["env"].max()), scores.ANY)


def mean_text(values: stats.FloatArray, ends: scores.Ends, *, spread: bool) -> str:
    """The mean with its standard deviation, or its interval within `ends`; empty without values."""
    if not len(values):
        return ""
    if spread:
        return plus_minus(values.mean(), values.std(ddof=1) if len(values) > 1 else math.nan)
    interval = stats.mean_interval(values).within(*ends)
    return with_range(interval, lambda value: _digits(value, values.mean()))


def plus_minus(mean: float, deviation: float) -> str:
    """`5,598 ± 809`, or the mean alone where the deviation is not known."""
    return _digits(mean, mean) + ("" if math.isnan(deviation) else f" ± {_digits(deviation, mean)}")


def _digits(value: float, mean: float) -> str:
    return f"{value:,.{0 if abs(mean) >= 10 else 1}f}"


def core_hours(asked: Asked) -> Iterator[list[str]]:
    """A table of costs: a row for each task that has runs, and return."""
    yield ["task", "return", *(f"{name}, {counted(n, 'seed')}" for name, n in asked.seeds.items())]
    for task, target in asked.numbers:
        cells = []
        for label, most in asked.seeds.items():
            rows = asked.of(task, label)
            few = 0 < (count := rows["run"].nunique()) < most
            cells.append(cost_text(rows, target) + f" ({count})" * few)
        if any(cells):
            yield [task, f"{target:,.0f}", *cells]


def cost_text(rows: pd.DataFrame, target: float) -> str:
    """The median over runs of the core-hours to the first evaluation that reaches the target.

    A run that does not reach it counts as infinite; if none does, the text has the steps of the
    longest run. `≤`: a run's first evaluation reaches it.
    """
    hours, at_first = [], False
    for _, run in rows.sort_values("env_steps").groupby("run"):
        reached = np.flatnonzero(run["return"] >= target)
        hours.append(float(run["core_h"].iloc[reached[0]]) if len(reached) else math.inf)
        at_first |= 0 in reached
    known = sum(map(math.isfinite, hours))
    if not known:
        return f"not in {rows['env_steps'].max():,} steps" if hours else ""
    middle = float(np.median(hours))
    few = f"{known} of {len(hours)} seeds"
    if math.isinf(middle):
        return few
    return f"{'≤ ' if at_first else ''}{middle:.2g}{f' ({few})' if known < len(hours) else ''}"


def figure(asked: Asked) -> style.Figure:
    """Means over runs with 95% bands and a point for each evaluation, a panel for each task.

    A task has a panel if a run has two evaluations. Along core-hours an evaluation stands at the
    mean of its runs' core-hours.
    """
    many = asked.rows.groupby(["task", "run"]).size().groupby("task").max()
    tasks = [task for task in dict(asked.numbers) if many.get(task, 0) > 1]
    drawn, (axes,) = labels.axes_of(tasks)
    runs = asked.runs
    for area, task in zip(axes, tasks, strict=True):
        for label, look in labels.looks(asked.seeds).items():
            mine = asked.of(task, label)
            if not len(mine):
                continue
            rows = mine.pivot(
                index="env_steps", columns="run", values=["return", "core_h"]
            ).dropna()
            x = rows.index if asked.kind == "env_steps" else rows["core_h"].mean(axis=1)
            y = rows["return"].to_numpy(float).T
            least, most = runs[label].min(), runs[label].max()
            repeats = counted(most, "seed") if least == most else f"{least} to {most} seeds"
            name = f"{label} ({repeats})"
            area.plot(x, y.mean(0), marker=".", color=look.color, ls=look.dash, label=name)
            band = area.fill_between if len(x) > 1 else area.vlines
            sides = (np.clip(side, *possible(mine)) for side in stats.mean_bounds(y))
            band(x, *sides, color=look.color, alpha=0.2 if len(x) > 1 else 1)
        if asked.kind == "env_steps":
            style.compact_axis(area)
        else:  # algorithms differ by a factor of a hundred
            area.set_xscale("log")
            area.xaxis.set_major_formatter("{x:g}")
        area.set(title=task, xlabel=X_AXES[asked.kind], ylabel="return")
    style.legend(drawn)
    return drawn


def draw_pages() -> None:
    """Draws the tables and figures of all pages again."""
    for page in pages():
        text = page.read_text()
        for _, what, words, inside, _ in MARKED.findall(text):
            if what == "figure":
                with style.paper():
                    drawn = figure(read_marker(words))
                    style.finish(drawn, None)
                    drawn.savefig(page.parent / re.findall(r"\]\((.+?)\)", inside)[0])
        write_atomically(page, with_tables(text))


def pages() -> list[Path]:
    """The pages with tables or figures of data."""
    found = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("notes/*.md"))]
    return [page for page in found if MARKED.search(page.read_text())]


if __name__ == "__main__":
    sys.exit(main())
