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

from walle.analysis.loading.directories import (
    BadInputError,
    DamagedError,
    LeftOut,
    Run,
    Scalar,
    find_runs,
    is_run,
    newest,
    read_json,
    read_run,
    read_tables,
)
from walle.analysis.writing.format import counted, listed

__all__ = ["BadInputError", "LeftOut", "Run", "Sweep", "load"]

NAMES = ("name",)  # keys that say what a run is called and not what it does
ALWAYS_JOINED = ("seed", "sampler.n")


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
        """Physical cores of the machine; 0 when no run says.

        Runs may be pinned to no more cores than they need. So a run's own cores tell the machine's
        only where they were too few for it.
        """
        strained = [run.cores for run in self.runs if run.oversubscribed]
        if strained:
            return max(strained)
        return max((int(run.provenance.get("physical_cores") or 0) for run in self.runs), default=0)

    def summary(self) -> pd.DataFrame:
        """One row a run, used or left out: overrides, state, starts, last iteration and return."""
        last = self.iterations.groupby("run", observed=True).last()
        ends = last.reindex(
            index=[run.name for run in self.runs],
            columns=["iteration", "env_steps", "wall_s", "return_mean"],
        )
        rows = [
            {
                "run": run.name,
                "overrides": " ".join(map(str, run.provenance.get("overrides") or [])),
                "state": run.state,
                "attempts": run.attempts,
                "replacements": len(run.replacements),
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
            (run.name, *map(one.get, ("sampler", "round", "when", "why")), one.get("exact", True))
            for run in self.runs
            for one in run.replacements
        ]
        return pd.DataFrame(rows, columns=["run", "process", "round", "when", "why", "same_bits"])

    def _load(self, name: str) -> pd.DataFrame:
        tables = read_tables([run.path / f"{name}.csv" for run in self.runs])
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
        return self._without_repeats(name, frame)

    def _without_repeats(self, name: str, frame: pd.DataFrame) -> pd.DataFrame:
        """Drops the first of two rows that a run wrote twice, before and after a resume."""
        keys = {"iterations": ["run", "iteration"], "timing": ["run", "process", "iteration"]}
        if name not in keys or not len(frame):
            return frame
        number = pd.Series(0, index=frame.index, dtype="int64")  # one for all keys: that is fast
        for key in keys[name]:
            codes, found = pd.factorize(frame[key])
            number = number * (len(found) + 1) + codes
        repeated = number.duplicated(keep="last")
        if not repeated.any():
            return frame
        runs = listed(list(dict.fromkeys(frame.loc[repeated, "run"].astype(str))))
        self.note(
            f"{counted(int(repeated.sum()), 'row')} of {name}.csv written again after a resume "
            f"(runs {runs}): the last writing counts"
        )
        return frame[~repeated].reset_index(drop=True)


def load(*directories: str | Path) -> Sweep:
    """Loads sweeps, single runs, or directories above runs; without any, the newest sweep.

    Raises:
        BadInputError: a directory does not exist, or no run in it can be used.
    """
    paths = [Path(d) for d in directories] or [newest()]
    names = {path: path.resolve().name for path in paths} if len(paths) > 1 else {}
    if len(set(names.values())) < len(names):
        names = {path: str(path) for path in paths}
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    notes: list[str] = []
    for path in paths:
        jobs: Any = []  # those of the launcher's manifest that have a directory
        try:
            jobs = read_json(path / "manifest.json").get("jobs")
        except DamagedError as error:
            notes.append(f"Not used: {path / 'manifest.json'}, as {error}")
        jobs = jobs if isinstance(jobs, list) else []
        jobs = [job for job in jobs if isinstance(job, dict) and "directory" in job]
        blocks: dict[Path, str] = {}
        for job in jobs:
            if job.get("block") not in (None, ""):
                blocks[path / str(job["directory"])] = f"{path} {job['block']}"
        names_of_jobs = [str(job["directory"]) for job in jobs]
        missing = [name for name in names_of_jobs if not is_run(path / name)]
        if missing:
            notes.append(f"{len(missing)} of {len(jobs)} jobs not started yet: {listed(missing)}")
        for directory in find_runs(path):
            inside = directory.relative_to(path).as_posix()
            if len(paths) > 1:
                label = str(path) if inside == "." else f"{path}/{inside}"
            else:
                label = path.resolve().name if inside == "." else inside
            found = read_run(directory, label, names.get(path), blocks.get(directory, ""))
            if isinstance(found, Run):
                runs.append(found)
            else:
                left_out.append(found)
    if not runs:
        where = ", ".join(map(str, paths))
        reasons = listed([f"{run.name}: {run.reason}" for run in left_out], joint="; ")
        raise BadInputError(f"{where}: none of {len(left_out)} runs can be used ({reasons})")
    runs, copies = _without_copies(runs)
    sweep = Sweep(paths, runs, [*left_out, *copies])
    for note in notes:
        sweep.note(note)
    return sweep


def _without_copies(runs: list[Run]) -> tuple[list[Run], list[LeftOut]]:
    """The runs without those that have the settings and the seed of another one.

    Of such runs one that is completed stays, rather one that its sweep's manifest knows the block
    of, or else the first.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        settings = sorted((k, v) for k, v in run.config.items() if k not in NAMES)
        groups.setdefault(tuple(settings), []).append(run)
    kept, left_out = set(), []
    for group in groups.values():
        best = min(group, key=lambda run: (run.state != "completed", run.block == ""))
        kept.add(id(best))
        reason = f"the settings and the seed of {best.name}: no repeat of it"
        left_out += [LeftOut(run.name, reason) for run in group if run is not best]
    return [run for run in runs if id(run) in kept], left_out


def _status_notes(runs: list[Run]) -> Iterator[str]:
    meanings = {
        "running": "still running, or killed without a message: the rows written so far are used",
        "interrupted": "interrupted: the rows written before are used",
        "pruned": "pruned by a search: they end before the others",
        "unknown": "without status.json: all their rows are used",
    }
    for state, meaning in meanings.items():
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
    inexact = [
        r.name for r in replaced if any(not one.get("exact", True) for one in r.replacements)
    ]
    if inexact:
        yield (
            f"{len(inexact)} of these runs continued with other numbers than without a death "
            f"({listed(inexact)})"
        )
