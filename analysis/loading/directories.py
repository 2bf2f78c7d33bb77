"""Finds the directories of runs, and reads the files in them."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from walle.errors import cause_text

Scalar = int | float | str | bool
TYPES: dict[str, type] = dict.fromkeys(("attempts", "faults", "physical_cores"), int)
TYPES |= dict.fromkeys(("cores", "usable_cores", "overrides", "replacements"), list)
RUN_FILES = ("status.json", "run.json", "iterations.csv")
SWEEP_DEPTH = 4
FINGERPRINT_DIGITS = 12
TEXT_COLUMNS = ("process", "section", "end")
CHUNK_BYTES = 32 * 2**20
# Columns of files from before version 0.3, by the names that they have now.
OLD_COLUMNS = dict.fromkeys(("minibatches", "updates", "epochs"), "gradient_steps")


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
    def replacements(self) -> list[Mapping[str, Any]]:
        """The samplers and learners that were replaced, as status.json lists them.

        Each has its name under `sampler`, and `round`, `when`, `why` and `exact`.
        """
        found = self.status.get("replacements")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

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
    def overlapped(self) -> bool:
        """Whether the agent learns while the samplers collect."""
        return self.config.get("sampler.max_lag", 0) != 0

    @property
    def oversubscribed(self) -> bool:
        """Whether the run's busy processes outnumbered its cores."""
        samplers = int(self.config.get("sampler.n", 1))
        return 0 < self.cores < samplers + self.overlapped


def newest(root: str | Path = "multirun") -> Path:
    """The sweep under `root` that was written to last.

    A sweep is a directory that holds a manifest.json, or whose folders are runs.

    Raises:
        BadInputError: there is no sweep under `root`.
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

    Raises:
        BadInputError: `path` does not exist or has no run in it.
    """
    if not os.path.isdir(path):  # unlike Path.is_dir, also for a name that is too long
        raise BadInputError(f"{path}: no such directory")
    found = sorted(
        _walk(path),
        key=lambda each: [(int(p), "") if p.isdigit() else (-1, p) for p in each.parts],
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
    """Reads a run's directory; returns the reason where the run cannot be used.

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
    if config.get("sampler.name") == "serial":  # it always has these, so they are no settings
        config = {"sampler.n": 1, "sampler.max_lag": 0} | config
    if sweep is not None:
        config["sweep"] = sweep
    return Run(directory, name, config, provenance, status, block)


def fingerprint(runs: Iterable[Run]) -> str:
    """The SHA-256 of the run.json files of `runs`, one after the other: its first 12 digits.

    A page that quotes it says which runs its numbers come from. `cat DIR/*/run.json | sha256sum`
    prints the same for a sweep of up to ten jobs that are all used.
    """
    found = hashlib.sha256()
    for run in runs:
        found.update((run.path / "run.json").read_bytes())
    return found.hexdigest()[:FINGERPRINT_DIGITS]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, without fields of a wrong type; empty when the file is missing.

    Raises:
        DamagedError: the file holds no JSON object.
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


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    """Yields every leaf of a nested configuration with its dotted key; lists and null as text."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        elif isinstance(value, int | float | str | bool):
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

    frame: pd.DataFrame  # of all files; where a file lacks a column, its rows are empty there
    file: npt.NDArray[np.int64]  # [rows] the index of each row's file in the list of files
    dropped: dict[int, int]  # the number of broken rows, by the index of the file that has them


def read_tables(files: Sequence[Path]) -> Tables:
    """Parses the complete rows of `files`, in order; a file that does not exist has no rows.

    A row is complete when its line ends and has as many fields as the header: a run killed in the
    middle of a write leaves half a row, and half a number is a wrong number. A row that is no text,
    or has a word in a column of numbers, is broken too and left out.

    Files with one header are joined as text, in chunks small enough to parse in little memory:
    several times faster than parsing each alone.
    """
    dropped: dict[int, int] = {}
    bodies: dict[bytes, list[tuple[int, int, bytes]]] = {}  # file, number of rows, text; by header
    frames: list[pd.DataFrame] = []

    def parse(header: bytes) -> None:
        numbers, rows, texts = zip(*bodies.pop(header), strict=True)
        text = [name for name in TEXT_COLUMNS if name in header.decode().strip().split(",")]
        data = io.BytesIO(b"".join((header, *texts)))
        frame = pd.read_csv(data, dtype=dict.fromkeys(text, "category"), low_memory=False)
        frame["file"] = np.repeat(numbers, rows)
        odd = _odd_rows(frame)
        for number in frame.loc[odd, "file"]:
            dropped[number] = dropped.get(number, 0) + 1
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
    if not joined["file"].is_monotonic_increasing:
        joined = joined.sort_values("file", kind="stable", ignore_index=True)
    file = joined.pop("file").to_numpy()
    return Tables(joined.reset_index(drop=True), file, dropped)


def _complete_rows(path: Path) -> tuple[bytes, list[bytes], int]:
    """The header with the names of today, the complete lines, and the number of the others."""
    data = path.read_bytes().replace(b"\r\n", b"\n")
    end = data.rfind(b"\n") + 1
    header, *lines = data[:end].splitlines(keepends=True) or [b""]
    commas = header.count(b",")
    whole = [line for line in lines if line.count(b",") == commas] if _is_text(header) else []
    if not data.isascii() or b"\0" in data:
        whole = [line for line in whole if _is_text(line)]
    names = header.decode(errors="replace").rstrip("\n").split(",")
    for old, new in OLD_COLUMNS.items():  # of two old names for one column the first counts
        if old in names and new not in names:
            names[names.index(old)] = new
            header = ",".join(names).encode() + b"\n"
    return header, whole, len(lines) - len(whole) + (end < len(data))


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in line


def _odd_rows(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """[rows] whether a word stands in a column of numbers; makes such a column numeric."""
    odd = np.zeros(len(frame), bool)
    for name in frame.select_dtypes(exclude=["number", "bool", "category"]):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if numbers.notna().any():
            odd |= (numbers.isna() & frame[name].notna()).to_numpy()
            frame[name] = numbers
    return odd
