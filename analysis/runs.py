"""Loads runs and sweeps as tidy pandas frames.

Three lines in a notebook:

    from walle.analysis.runs import load
    sweep = load("multirun/speedup")
    sweep.iterations.groupby("sampler.n")["collect_s"].mean()

Every frame has the column `run`, then `seed`, `sampler.n` and every other configuration key that
differs between the runs, then the columns of the file. Nothing is dropped in silence: `left_out`
names the runs that are in no frame, with the reasons; `notes` says which rows are not used, which
runs are not finished, and in which runs processes were replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from walle.analysis.loading import directories
from walle.analysis.loading.directories import BadInputError, LeftOut, Run, Scalar
from walle.analysis.writing.format import counted, listed

__all__ = ["BadInputError", "LeftOut", "Run", "Sweep", "load"]

NAMES = ("name",)  # keys that say what a run is called and not what it does
ALWAYS_JOINED = ("seed", "sampler.n")
ROW_KEYS = {"iterations": ["run", "iteration"], "timing": ["run", "process", "iteration"]}
UNFINISHED = {
    "running": "still running, or killed without a message: the rows written so far are used",
    "interrupted": "interrupted: the rows written before are used",
    "pruned": "pruned by a search: they end before the others",
    "unknown": "without status.json: all their rows are used",
}


class Sweep:
    """The runs of one or several directories."""

    def __init__(self, paths: list[Path], runs: list[Run], left_out: list[LeftOut]) -> None:
        self.paths = paths  # the directories that were loaded
        self.runs = runs  # the runs whose rows are in the frames
        self.left_out = left_out  # the other runs, each with its reason
        # Sentences about rows left out, runs that are not finished, and replaced processes.
        self.notes: list[str] = list(_status_notes(runs))
        self._frames: dict[str, pd.DataFrame] = {}

    @property
    def name(self) -> str:
        """The names of the directories, for titles."""
        return " + ".join(path.resolve().name for path in self.paths)

    @property
    def iterations(self) -> pd.DataFrame:
        """A row an iteration (iterations.csv)."""
        return self.table("iterations")

    @property
    def episodes(self) -> pd.DataFrame:
        """A row an episode (episodes.csv)."""
        return self.table("episodes")

    @property
    def timing(self) -> pd.DataFrame:
        """A row a process and iteration (timing.csv)."""
        return self.table("timing")

    @property
    def evaluations(self) -> pd.DataFrame:
        """A row an evaluation (eval.csv)."""
        return self.table("eval")

    @property
    def trace(self) -> pd.DataFrame:
        """A row a span: a process in a section (trace.csv, of runs with `trace=true`)."""
        return self.table("trace")

    def table(self, name: str) -> pd.DataFrame:
        """The rows of NAME.csv of all runs, joined with what differs between the runs."""
        if name not in self._frames:
            self._frames[name] = self._load(name)
        return self._frames[name]

    @cached_property
    def varying(self) -> list[str]:
        """Configuration keys that differ between the runs, without the seed."""
        keys = sorted({key for run in self.runs for key in run.config} - {"seed"})
        return [key for key in keys if len({run.config.get(key) for run in self.runs}) > 1]

    def values(self, key: str) -> list[Scalar]:
        """The value of a configuration key in each run, `null` where a run lacks the key."""
        return [run.config.get(key, "null") for run in self.runs]

    def note(self, sentence: str) -> None:
        """Adds a sentence to `notes`, unless it is there already."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @property
    def cores(self) -> int:
        """Physical cores of the machine; 0 when no run records them.

        Runs may be pinned to no more cores than they need. A run's own cores are therefore those of
        the machine only where they were too few for it.
        """
        strained = [run.cores for run in self.runs if run.oversubscribed]
        recorded = [int(run.provenance.get("physical_cores") or 0) for run in self.runs]
        return max(strained or recorded, default=0)

    def summary(self) -> pd.DataFrame:
        """One row a run, used or left out: overrides, state, starts, last iteration and return."""
        last = self.iterations.groupby("run", observed=True).last()
        columns = ["iteration", "env_steps", "wall_s", "return_mean"]
        ends = last.reindex(index=[run.name for run in self.runs], columns=columns)
        rows = [
            {
                "run": run.name,
                "overrides": " ".join(map(str, run.provenance.get("overrides") or [])),
                "state": run.state,
                "attempts": run.attempts,
                "replacements": len(run.replacements),
                "faults": int(run.status.get("faults") or 0),
                **ends.loc[run.name].to_dict(),
            }
            for run in self.runs
        ]
        left_out = [{"run": name, "overrides": "", "state": why} for name, why in self.left_out]
        return pd.DataFrame([*rows, *left_out])

    def replacements(self) -> pd.DataFrame:
        """One row for each sampler or learner that was replaced: its name, when and why.

        `same_bits` is whether the run continued as if nothing had happened.
        """
        rows = [
            (run.name, *map(lost.get, ("sampler", "round", "when", "why")), lost.get("exact", True))
            for run in self.runs
            for lost in run.replacements
        ]
        return pd.DataFrame(rows, columns=["run", "process", "round", "when", "why", "same_bits"])

    def _load(self, name: str) -> pd.DataFrame:
        tables = directories.read_tables([run.path / f"{name}.csv" for run in self.runs])
        if tables.dropped:
            runs = listed([self.runs[i].name for i in tables.dropped])
            self.notes.append(
                f"{counted(sum(tables.dropped.values()), 'broken row')} of {name}.csv left out "
                f"(runs {runs}): a run was stopped in the middle of a write"
            )
        frame = tables.frame
        for key in reversed(dict.fromkeys((*ALWAYS_JOINED, *self.varying))):
            frame.insert(0, key, pd.Series(self.values(key)).take(tables.file).to_numpy())
        names = pd.Index([run.name for run in self.runs])
        frame.insert(0, "run", pd.Series(pd.Categorical.from_codes(tables.file, names)))
        # A resumed run writes the rows since its last checkpoint again.
        if name not in ROW_KEYS or not len(frame):
            return frame
        repeated = frame.duplicated(ROW_KEYS[name], keep="last")
        if not repeated.any():
            return frame
        runs = listed(list(dict.fromkeys(frame.loc[repeated, "run"].astype(str))))
        self.note(
            f"{counted(int(repeated.sum()), 'row')} of {name}.csv written again after a resume "
            f"(runs {runs}): the last writing counts"
        )
        return frame[~repeated].reset_index(drop=True)


def load(*paths: str | Path) -> Sweep:
    """Loads sweeps, single runs, or directories above runs; without any, the newest sweep.

    Raises:
        BadInputError: a directory does not exist, or no run in it can be used.
    """
    roots = [Path(path) for path in paths] or [directories.newest()]
    names = {root: root.resolve().name for root in roots} if len(roots) > 1 else {}
    if len(set(names.values())) < len(names):
        names = {root: str(root) for root in roots}
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    notes: list[str] = []
    for root in roots:
        jobs: Any = []  # those of the launcher's manifest that have a directory
        try:
            jobs = directories.read_json(root / "manifest.json").get("jobs")
        except directories.DamagedError as error:
            notes.append(f"Not used: {root / 'manifest.json'}, as {error}")
        jobs = jobs if isinstance(jobs, list) else []
        jobs = [job for job in jobs if isinstance(job, dict) and "directory" in job]
        blocks: dict[Path, str] = {}
        for job in jobs:
            if job.get("block") not in (None, ""):
                blocks[root / str(job["directory"])] = f"{root} {job['block']}"
        started = [str(job["directory"]) for job in jobs]
        missing = [name for name in started if not directories.is_run(root / name)]
        if missing:
            notes.append(f"{len(missing)} of {len(jobs)} jobs not started yet: {listed(missing)}")
        for path in directories.find_runs(root):
            inside = path.relative_to(root).as_posix()
            label = root.resolve().name if inside == "." else inside
            if len(roots) > 1:
                label = str(root) if inside == "." else f"{root}/{inside}"
            run = directories.read_run(path, label, names.get(root), blocks.get(path, ""))
            if isinstance(run, Run):
                runs.append(run)
            else:
                left_out.append(run)
    if not runs:
        reasons = listed([f"{run.name}: {run.reason}" for run in left_out], joint="; ")
        where = ", ".join(map(str, roots))
        raise BadInputError(f"{where}: none of {len(left_out)} runs can be used ({reasons})")
    alike: dict[object, list[Run]] = {}
    for run in runs:
        settings = sorted((k, v) for k, v in run.config.items() if k not in NAMES)
        alike.setdefault(tuple(settings), []).append(run)
    for group in alike.values():
        # A completed run is kept, rather one whose block the manifest names, or else the first.
        best = min(group, key=lambda run: (run.state != "completed", run.block == ""))
        reason = f"the settings and the seed of {best.name}: no repeat of it"
        for run in group:
            if run is not best:
                left_out.append(LeftOut(run.name, reason))
                runs.remove(run)
    sweep = Sweep(roots, runs, left_out)
    for note in notes:
        sweep.note(note)
    return sweep


def _status_notes(runs: list[Run]) -> Iterator[str]:
    for state, meaning in UNFINISHED.items():
        names = [run.name for run in runs if run.state == state]
        if names:
            yield f"{len(names)} of {len(runs)} runs {meaning} ({listed(names)})"
    replaced = [run for run in runs if run.replacements]
    if replaced:
        times = counted(sum(len(run.replacements) for run in replaced), "time")
        yield (
            f"{len(replaced)} of {len(runs)} runs replaced a dead sampler or learner "
            f"({listed([run.name for run in replaced])}), {times} in all: a repeated round takes "
            "longer"
        )
    inexact = [r.name for r in replaced if not all(x.get("exact", True) for x in r.replacements)]
    if inexact:
        yield (
            f"{len(inexact)} of these runs continued with other numbers than without a death "
            f"({listed(inexact)})"
        )
