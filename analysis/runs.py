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

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from walle.analysis.writing.format import counted, listed
from walle.errors import cause_text

Scalar = int | float | str
LISTS = ("cores", "info", "overrides", "replacements", "resumptions", "usable_cores")
TYPES = dict.fromkeys(LISTS, list) | dict.fromkeys(("attempts", "faults", "physical_cores"), int)
RUN_FILES = ("status.json", "run.json", "iterations.csv")
SWEEP_DEPTH = 4
FINGERPRINT_DIGITS = 12
TEXT_COLUMNS = ("process", "section", "end")
FILE = ",file"  # a row's file while tables are joined; no name in a file has a comma
LOCK_STEP, OVERLAPPED, FREE = "lock-step", "overlapped", "free-running"
CHUNK_BYTES = 32 * 2**20
NAMES = ("name",)  # keys that say what a run is called and not what it does
ALWAYS_JOINED = ("seed", "sampler.n")
UNFINISHED = {
    "running": "still running, or killed without a message: their rows so far are used, but no "
    "final score counts them, unless no run has ended",
    "interrupted": "interrupted: no learning curve or final score counts them, unless all were",
    "pruned": "pruned by a search: they end before the others",
    "unknown": "without status.json: all their rows are used",
}


class BadInputError(ValueError):
    """The user asked for something that cannot be done; the message holds reason and fix."""


class DamagedError(ValueError):
    """A file cannot be read; the message names it."""


class LeftOut(NamedTuple):
    """A run whose rows are in no frame, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Run:
    """A run's directory, and what its files say of it."""

    path: Path
    name: str  # the directory relative to its sweep; unique among the runs loaded together
    config: Mapping[str, Scalar]  # every leaf under its dotted key, such as `sampler.n`
    provenance: Mapping[str, Any] = field(repr=False)  # the content of run.json
    status: Mapping[str, Any] = field(repr=False)  # that of status.json; empty without this file
    block: Scalar = ""  # the repeat of the sweep in which it was measured; '' without blocks

    @property
    def state(self) -> str:
        """`running`, `completed`, `failed` or `interrupted`; `unknown` without status.json."""
        return str(self.status.get("state", "unknown"))

    @property
    def attempts(self) -> int:
        """The number of starts, including resumptions."""
        return int(self.status.get("attempts") or 1)

    @property
    def replacements(self) -> list[dict[str, Any]]:
        """The samplers and learners that were replaced, as status.json lists them.

        Each has its name under `sampler`, and `round`, `when`, `why` and `exact`.
        """
        return dicts_of(self.status, "replacements")

    @property
    def cores(self) -> int:
        """Physical cores that the run could use; 0 when its files do not say."""
        usable = self.status.get("cores") or self.provenance.get("usable_cores") or []
        physical = int(self.provenance.get("physical_cores") or len(usable))
        return min(len(usable), physical) if usable else physical

    @property
    def lanes(self) -> tuple[int, int] | None:
        """The fewest and the most lanes of a sampler; None when the configuration does not say."""
        lanes, samplers = self.config.get("sampler.lanes"), self.config.get("sampler.n")
        if not isinstance(lanes, int) or not isinstance(samplers, int) or samplers < 1:
            return None
        return lanes // samplers, -(-lanes // samplers)

    @property
    def mode(self) -> str:
        """How the samplers and the agent take turns: `LOCK_STEP`, `OVERLAPPED` or `FREE`."""
        lag = self.config.get("sampler.max_lag", 0)
        return FREE if lag == "null" else OVERLAPPED if lag else LOCK_STEP

    @property
    def oversubscribed(self) -> bool:
        """Whether the run's busy processes and threads outnumbered its cores.

        In lock-step samplers and learners take turns; else they work together.
        """
        samplers = int(self.config.get("sampler.n", 1))
        threads = int(self.config.get("learner.n", 1)) * int(self.config.get("learner.threads", 1))
        busy = max(samplers, threads) if self.mode == LOCK_STEP else samplers + threads
        return 0 < self.cores < busy


def newest(root: str | Path = "multirun") -> Path:
    """The sweep under `root` that was written to last.

    A sweep is a directory that holds a manifest.json, or whose folders are runs.

    Raises BadInputError if there is no sweep under `root`.
    """
    root = Path(root)
    sweeps = {d.parent for d in _walk(root)} if root.is_dir() else set()
    sweeps |= {f.parent for f in root.glob("*/manifest.json")}
    if not sweeps:
        raise BadInputError(
            f"no sweep under {root.resolve()}: start one with "
            "`python -m walle.run -m sampler.n=1,2`, or name its directory"
        )

    def last_write(sweep: Path) -> float:
        names = ("manifest.json", "*/run.json", "*/status.json")
        files = [file for name in names for file in sweep.glob(name)]
        return max((file.stat().st_mtime for file in files), default=0.0)

    return max(sweeps, key=last_write)


def find_runs(path: Path) -> list[Path]:
    """The run directories in `path`, or `path` itself when it is one, in natural order.

    Raises BadInputError if `path` does not exist or has no run in it.
    """
    if not os.path.isdir(path):  # unlike Path.is_dir, also for a name that is too long
        raise BadInputError(f"{path}: no such directory")
    found = sorted(
        _walk(path), key=lambda each: [(int(p), "") if p.isdigit() else (-1, p) for p in each.parts]
    )
    if not found:
        raise BadInputError(
            f"{path}: no run in this directory; a run's directory holds run.json and "
            "iterations.csv, a sweep's directory holds one such directory a job"
        )
    return found


def is_run(path: Path) -> bool:
    """Whether `path` is the directory of a run."""
    return any((path / name).is_file() for name in RUN_FILES)


def read_run(directory: Path, name: str, sweep: str | None, block: Scalar = "") -> Run | LeftOut:
    """Reads a run's directory; returns the reason if the run cannot be used.

    `sweep` becomes a configuration key, which distinguishes the runs of several sweeps.
    """
    try:
        status = read_json(directory / "status.json")
        if status.get("state") == "failed":
            cause = cause_text(str(status.get("error") or ""))
            if status.get("signal"):
                cause = f"signal {status['signal']}"
            return LeftOut(name, f"failed: {cause or 'exit code ' + str(status.get('exit_code'))}")
        provenance = read_json(directory / "run.json")
    except DamagedError as error:
        return LeftOut(name, str(error))
    if not isinstance(provenance.get("config"), dict):
        return LeftOut(name, "no configuration: run.json is missing or holds none")
    file = directory / "iterations.csv"
    lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
    if not any(r.endswith(b"\n") and r.count(b",") == lines[0].count(b",") for r in lines[1:]):
        return LeftOut(name, "no complete iteration yet (iterations.csv has no whole row)")
    config = dict(flatten(provenance["config"]))
    config |= _yaml_names(config, provenance.get("overrides") or [])
    if config.get("sampler.name") == "serial":  # it always has these, so they are no settings
        config = {"sampler.n": 1, "sampler.max_lag": 0} | config
    if sweep is not None:
        config["sweep"] = sweep
    return Run(directory, name, config, provenance, status, block)


def _yaml_names(config: Mapping[str, Scalar], overrides: Sequence[object]) -> dict[str, Scalar]:
    """The names of the YAML files that chose classes of the user's own, `module:Class`."""
    typed = dict(str(text).lstrip("+").partition("=")[::2] for text in overrides)
    keys = {"algo": "algo.name", "env": "env.id", "net": "net.name"}
    own = {group: key for group, key in keys.items() if ":" in str(config.get(key, ""))}
    chose = typed.keys() - {group for group in own if typed.get(group) in ("gym", "own")}
    return {key: typed[group] for group, key in own.items() if group in chose and key not in typed}


def fingerprint(runs: Iterable[Run]) -> str:
    """The first 12 digits of the SHA-256 of the run.json files of `runs`, one after the other.

    A page that quotes it says which runs its numbers come from. `cat DIR/*/run.json | sha256sum`
    prints the same for a sweep of up to ten jobs that are all used.
    """
    found = hashlib.sha256()
    for run in runs:
        found.update((run.path / "run.json").read_bytes())
    return found.hexdigest()[:FINGERPRINT_DIGITS]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, without fields of a wrong type; empty when the file is missing.

    Raises DamagedError if the file holds no JSON object.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path.name} is not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise DamagedError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise DamagedError(f"{path.name} holds no object but {type(content).__name__}")
    return {
        name: value
        for name, value in content.items()
        if value is None or isinstance(value, TYPES.get(name, object))
    }


def dicts_of(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The JSON objects in a field of a file, which may be missing or damaged."""
    found = content.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    """Yields each leaf of a configuration with its dotted key; booleans, lists, null as text."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            yield prefix + key, value
        else:
            yield prefix + key, json.dumps(value)


def _walk(path: Path, depth: int = SWEEP_DEPTH) -> Iterator[Path]:
    if is_run(path):
        yield path
    elif depth:
        for child in os.scandir(path):
            if child.is_dir() and not child.name.startswith("."):
                yield from _walk(Path(child.path), depth - 1)


class Tables(NamedTuple):
    """The rows that `read_tables` found."""

    frame: pd.DataFrame  # of all files; if a file lacks a column, its rows are empty there
    file: npt.NDArray[np.int64]  # [rows] the index of each row's file in the list of files
    dropped: dict[int, int]  # the number of broken rows, by the index of the file that has them


def read_tables(files: Sequence[Path]) -> Tables:
    """Parses the complete rows of `files`, in order; a file that does not exist has no rows.

    A row is complete when its line ends and has as many fields as the header: a run killed in the
    middle of a write leaves half a row, and half a number is a wrong number. A row that is not
    text, or has a word in a column of numbers, is broken too and left out.

    Files with the same header are joined as text, in chunks small enough to parse in little memory:
    several times faster than parsing each alone.
    """
    dropped: Counter[int] = Counter()
    bodies: dict[bytes, list[tuple[int, int, bytes]]] = {}  # file, number of rows, text; by header
    frames: list[pd.DataFrame] = []

    def parse(header: bytes) -> None:
        numbers, rows, texts = zip(*bodies.pop(header), strict=True)
        text = [name for name in TEXT_COLUMNS if name in header.decode().strip().split(",")]
        data = io.BytesIO(b"".join((header, *texts)))
        frame = pd.read_csv(data, dtype=dict.fromkeys(text, "category"), low_memory=False)
        frame[FILE] = np.repeat(numbers, rows)
        odd = _odd_rows(frame)
        dropped.update(frame.loc[odd, FILE])
        frames.append(frame[~odd] if odd.any() else frame)

    for number, path in enumerate(files):
        header, lines, broken = _complete_rows(path) if path.is_file() else (b"", [], 0)
        if broken:
            dropped[number] = broken
        if lines:
            waiting = bodies.setdefault(header, [])
            waiting.append((number, len(lines), b"".join(lines)))
            if sum(len(text) for *_, text in waiting) > CHUNK_BYTES:
                parse(header)
    for header in list(bodies):
        parse(header)
    if not frames:
        return Tables(pd.DataFrame(), np.empty(0, np.int64), dropped)
    for name in TEXT_COLUMNS:  # with the same categories they stay categorical
        mine = [frame for frame in frames if name in frame]
        every = sorted({str(c) for frame in mine for c in frame[name].cat.categories})
        for frame in mine:
            frame[name] = frame[name].cat.set_categories(every)
    joined = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    if not joined[FILE].is_monotonic_increasing:
        joined = joined.sort_values(FILE, kind="stable", ignore_index=True)
    file = joined.pop(FILE).to_numpy()
    return Tables(joined.reset_index(drop=True), file, dropped)


def _complete_rows(path: Path) -> tuple[bytes, list[bytes], int]:
    """The header, the complete lines, and the number of the others."""
    data = path.read_bytes().replace(b"\r\n", b"\n")
    end = data.rfind(b"\n") + 1
    header, *lines = data[:end].splitlines(keepends=True) or [b""]
    commas = header.count(b",")
    whole = [line for line in lines if line.count(b",") == commas] if _is_text(header) else []
    if not data.isascii() or b"\0" in data:
        whole = [line for line in whole if _is_text(line)]
    return header, whole, len(lines) - len(whole) + (end < len(data))


def _is_text(line: bytes) -> bool:
    return b"\0" not in line and line.decode(errors="ignore").encode() == line


def _odd_rows(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """[rows] whether a word stands in a column of numbers; makes such a column numeric."""
    odd = np.zeros(len(frame), bool)
    for name in frame.select_dtypes(exclude=["number", "bool", "category"]):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if numbers.notna().any():
            odd |= (numbers.isna() & frame[name].notna()).to_numpy()
            frame[name] = numbers
    return odd


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
        """One row per iteration (iterations.csv)."""
        return self.table("iterations")

    @property
    def episodes(self) -> pd.DataFrame:
        """One row per episode (episodes.csv)."""
        return self.table("episodes")

    @property
    def timing(self) -> pd.DataFrame:
        """One row per process and iteration (timing.csv)."""
        return self.table("timing")

    @property
    def evaluations(self) -> pd.DataFrame:
        """One row per evaluation (eval.csv) with a return."""
        frame = self.table("eval")
        if len(frame) and (lacking := frame["return_mean"].isna()).any():
            text = counted(int(lacking.sum()), "evaluation")
            self.note(f"{text} left out: a reward in it was no finite number")
            return frame[~lacking]
        return frame

    @property
    def trace(self) -> pd.DataFrame:
        """One row per span: a process in a section (trace.csv, of runs with `trace=true`)."""
        return self.table("trace")

    def table(self, name: str) -> pd.DataFrame:
        """The rows of NAME.csv of all runs, joined with what differs between the runs."""
        if name in self._frames:
            return self._frames[name]
        tables = read_tables([run.path / f"{name}.csv" for run in self.runs])
        if tables.dropped:
            runs = listed([self.runs[i].name for i in tables.dropped])
            self.notes.append(
                f"{counted(sum(tables.dropped.values()), 'broken row')} of {name}.csv left out "
                f"(runs {runs}): a run was stopped in the middle of a write"
            )
        keys = dict.fromkeys((*ALWAYS_JOINED, *self.varying))
        # An environment's info may have the name of a setting.
        frame = tables.frame.rename(columns={key: f"{key} in {name}.csv" for key in ("run", *keys)})
        for key in reversed(keys):
            frame.insert(0, key, pd.Series(self.values(key)).take(tables.file).to_numpy())
        names = pd.Index([run.name for run in self.runs])
        frame.insert(0, "run", pd.Series(pd.Categorical.from_codes(tables.file, names)))
        return self._frames.setdefault(name, frame)

    @cached_property
    def varying(self) -> list[str]:
        """Configuration keys that differ between the runs, without the seed."""
        keys = sorted({key for run in self.runs for key in run.config} - {"seed"})
        return [key for key in keys if len({run.config.get(key) for run in self.runs}) > 1]

    @property
    def learning(self) -> list[Run]:
        """The runs that learning curves count: not interrupted ones, unless all were."""
        return [run for run in self.runs if run.state != "interrupted"] or self.runs

    @property
    def scored(self) -> list[Run]:
        """The runs that final scores count: those of `learning` without running ones, or all."""
        return [run for run in self.learning if run.state != "running"] or self.learning

    @property
    def info(self) -> list[str]:
        """The info columns in episodes.csv of any run; in other files they end in `_mean`."""
        return list(dict.fromkeys(x for run in self.runs for x in run.status.get("info") or ()))

    def values(self, key: str) -> list[Scalar]:
        """The value of a configuration key in each run, `null` if a run lacks the key."""
        return [run.config.get(key, "null") for run in self.runs]

    def note(self, sentence: str) -> None:
        """Adds a sentence to `notes`, unless it is there already."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @property
    def cores(self) -> int:
        """Physical cores of the machine; 0 when no run records them.

        Runs may be pinned to no more cores than they need. A run's own cores are therefore those of
        the machine only if they were too few for the run.
        """
        strained = [run.cores for run in self.runs if run.oversubscribed]
        recorded = [int(run.provenance.get("physical_cores") or 0) for run in self.runs]
        return max(strained or recorded, default=0)

    def summary(self) -> pd.DataFrame:
        """A row per run, used or left out: overrides, state, starts, last iteration, evaluation."""
        last = self.iterations.groupby("run", observed=True).last()
        ends = self.evaluations.reindex(columns=["run", "return_mean"])
        last["eval_mean"] = ends.groupby("run", observed=True)["return_mean"].last()
        columns = ["iteration", "env_steps", "wall_s", "eval_mean"]
        columns += [f"{name}_mean" for name in self.info]
        shown = last.reindex(index=[run.name for run in self.runs], columns=columns)
        rows = [
            {
                "run": run.name,
                "overrides": " ".join(map(str, run.provenance.get("overrides") or [])),
                "state": run.state,
                "attempts": run.attempts,
                "replacements": len(run.replacements),
                "faults": int(run.status.get("faults") or 0),
                **shown.loc[run.name].to_dict(),
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


def load(*paths: str | Path) -> Sweep:
    """Loads sweeps, single runs, or directories above runs; without any, the newest sweep.

    Raises BadInputError if a directory does not exist, or no run in it can be used.
    """
    roots = [Path(path) for path in paths] or [newest()]
    names = {root: root.resolve().name for root in roots} if len(roots) > 1 else {}
    if len(set(names.values())) < len(names):
        names = {root: str(root) for root in roots}
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    notes: list[str] = []
    known: set[Path] = set()
    for root in roots:
        manifest: dict[str, Any] = {}  # of the launcher
        try:
            manifest = read_json(root / "manifest.json")
        except DamagedError as error:
            notes.append(f"Not used: {root / 'manifest.json'}, as {error}")
        jobs = [job for job in dicts_of(manifest, "jobs") if "directory" in job]
        # A later launch has other blocks: the machine may have had another speed.
        launches = enumerate(dicts_of(manifest, "launches"))
        last = {num: i for i, launch in launches for num in launch.get("order") or ()}
        blocks: dict[Path, str] = {}
        for job in jobs:
            if job.get("block") not in (None, ""):
                block = f"{root} {last.get(job.get('num'), 0)} {job['block']}"
                blocks[root / str(job["directory"])] = block
        if missing := [d for job in jobs if not is_run(root / (d := str(job["directory"])))]:
            notes.append(f"{len(missing)} of {len(jobs)} jobs not started yet: {listed(missing)}")
        for path in find_runs(root):
            if path.resolve() in known:  # a sweep, and a run of it too
                continue
            known.add(path.resolve())
            inside = path.relative_to(root).as_posix()
            label = root.resolve().name if inside == "." else inside
            if len(roots) > 1:
                label = str(root) if inside == "." else f"{root}/{inside}"
            run = read_run(path, label, names.get(root), blocks.get(path, ""))
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

    def rank(run: Run) -> tuple[bool, bool, bool, int]:
        rows = (run.path / "iterations.csv").read_bytes().count(b"\n")
        return run.state != "completed", run.state == "interrupted", run.block == "", -rows

    for group in (runs for runs in alike.values() if len(runs) > 1):
        # Keeps a completed run, preferably one whose block the manifest names, else the longest.
        best = min(group, key=rank)
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
