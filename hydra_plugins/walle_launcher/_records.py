"""What a sweep writes beside its jobs: manifest.json, index.csv and its part of status.json."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from hydra_plugins.walle_launcher._identity import Flat, Known, common_part

MANIFEST, INDEX, STATUS, LOG = "manifest.json", "index.csv", "status.json", "output.log"
ATTEMPTS = "attempts"
TAIL_BYTES = 8192


class RecordError(ValueError):
    """A directory does not hold the records that it should."""


class JobRecord(NamedTuple):
    """One job in the manifest.

    Attributes:
        known: number, overrides, hash and config.
        directory: relative to the sweep's.
        cores: how many it asks for; None for all.
    """

    known: Known
    directory: str
    cores: int | None


class Manifest(NamedTuple):
    """What was asked of a sweep, over all its launches.

    Attributes:
        swept: names of the overrides along which the jobs differ.
        settings: how the latest launch ran them: order, exclusive, cores, gpus, threads.
        jobs: by ascending number.
        launches: when, by which command and in which order, one entry a launch.
    """

    swept: tuple[str, ...]
    settings: dict[str, Any]
    jobs: tuple[JobRecord, ...]
    launches: tuple[dict[str, Any], ...]


def write_manifest(sweep: Path, manifest: Manifest) -> None:
    """Writes manifest.json; what all jobs have in common is written once."""
    common = common_part([job.known.config for job in manifest.jobs])
    jobs = [_job_entry(job, common) for job in manifest.jobs]
    content = manifest._asdict() | {"common": common, "jobs": jobs}
    _replace(sweep / MANIFEST, json.dumps(content, indent=1, default=str) + "\n")


def _job_entry(job: JobRecord, common: Flat) -> dict[str, Any]:
    own = {path: v for path, v in job.known.config.items() if path not in common}
    return {
        "num": job.known.num,
        "directory": job.directory,
        "cores": job.cores,
        "overrides": job.known.overrides,
        "config_hash": job.known.config_hash,
        "config": own,
    }


def read_manifest(sweep: Path) -> Manifest:
    """Reads manifest.json.

    Raises:
        RecordError: there is none, or it is not a manifest.
    """
    try:
        content = json.loads((sweep / MANIFEST).read_text())
        jobs = tuple(_job_record(entry, content["common"]) for entry in content["jobs"])
        return Manifest(
            tuple(content["swept"]), content["settings"], jobs, tuple(content["launches"])
        )
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(
            f"{sweep} holds no {MANIFEST}: give the directory of a sweep that the walle launcher "
            "ran, such as multirun/NAME"
        ) from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RecordError(
            f"{sweep / MANIFEST} is damaged ({error!r}): restore or remove it"
        ) from error


def _job_record(entry: Mapping[str, Any], common: Flat) -> JobRecord:
    known = Known(
        entry["num"], tuple(entry["overrides"]), entry["config_hash"], common | entry["config"]
    )
    return JobRecord(known, entry["directory"], entry["cores"])


def read_status(job: Path) -> dict[str, Any]:
    """status.json of a job; empty when it has none, or none that can be read."""
    try:
        content = json.loads((job / STATUS).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def update_status(job: Path, **fields: Any) -> None:
    """Changes fields of status.json, and keeps those that the job itself wrote."""
    job.mkdir(parents=True, exist_ok=True)
    _replace(job / STATUS, json.dumps(read_status(job) | fields, indent=2) + "\n")


def is_done(status: Mapping[str, Any], config_hash: str) -> bool:
    """True when a job of that config completed and its return value is on record."""
    return (
        status.get("state") == "completed"
        and status.get("config_hash") == config_hash
        and "return_value" in status
    )


def plain(value: Any) -> Any:
    """A scalar of NumPy or torch as Python's own; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def recordable(value: Any) -> bool:
    """True when JSON gives the value back as it is."""
    try:
        back = json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return False
    return repr(back) == repr(value)  # equality would take True for 1, and refuse NaN


def set_aside(job: Path) -> None:
    """Moves what an earlier attempt left into `attempts/K`, so that the next one starts afresh.

    Rows appended to a dead attempt's files would be rows of two runs in one file.
    """
    if not job.exists():
        return
    left = [entry for entry in job.iterdir() if entry.name != ATTEMPTS]
    if not left:
        return
    shelf = job / ATTEMPTS
    shelf.mkdir(exist_ok=True)
    target = shelf / str(1 + sum(1 for _ in shelf.iterdir()))
    target.mkdir()
    for entry in left:
        entry.rename(target / entry.name)


def write_index(sweep: Path) -> None:
    """Rebuilds index.csv, a row a job, from the manifest and what the jobs wrote."""
    manifest = read_manifest(sweep)
    rows = [_index_row(sweep, manifest, job) for job in manifest.jobs]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(k for row in rows for k in row)))
    writer.writeheader()
    writer.writerows(rows)
    _replace(sweep / INDEX, text.getvalue())


def _index_row(sweep: Path, manifest: Manifest, job: JobRecord) -> dict[str, Any]:
    status = read_status(sweep / job.directory)
    overrides = dict(override.lstrip("+").partition("=")[::2] for override in job.known.overrides)
    head = {
        "job": job.known.num,
        "state": status.get("state", "pending"),
        "directory": job.directory,
        "overrides": " ".join(job.known.overrides),
    }
    tail = {
        "config_hash": job.known.config_hash,
        **_status_cells(status),
        **progress(sweep / job.directory)._asdict(),
    }
    swept = {  # an application's key may be called as a column of ours is
        f"config.{key}" if key in head | tail else key: overrides.get(
            key, job.known.config.get(key)
        )
        for key in manifest.swept
    }
    return head | swept | tail


def _status_cells(status: Mapping[str, Any]) -> dict[str, Any]:
    plain = ("attempts", "exit_code", "signal", "error", "started", "ended")
    machine = ("oversubscribed", "load_start", "load_end", "mhz_start", "mhz_end")
    return {
        **{key: status.get(key) for key in plain},
        "duration_s": duration_s(status),
        "cores": " ".join(map(str, status.get("cores") or [])),
        **{key: status.get(key) for key in machine},
        "peak_memory_bytes": status.get("peak_memory_bytes"),
        "return_value": status.get("return_value"),
    }


def duration_s(status: Mapping[str, Any]) -> float | None:
    """Seconds from a job's start to its end, or to now; None before it started."""
    if not status.get("started"):
        return None
    ended = datetime.fromisoformat(status["ended"]) if status.get("ended") else datetime.now(UTC)
    return round((ended - datetime.fromisoformat(status["started"])).total_seconds(), 3)


class Progress(NamedTuple):
    """The last whole row of a run's iterations.csv; None where the run has not written it."""

    iteration: int | None = None
    env_steps: int | None = None
    wall_s: float | None = None
    return_mean: float | None = None
    env_steps_per_s: float | None = None


def progress(job: Path) -> Progress:
    """How far a run has come; all None for a job that writes no iterations.csv."""
    file = job / "iterations.csv"
    if not file.exists():
        return Progress()
    with file.open("rb") as stream:
        names = stream.readline().decode(errors="replace").strip().split(",")
        stream.seek(max(stream.tell(), file.stat().st_size - TAIL_BYTES))
        text = stream.read().decode(errors="replace")
    whole = text[: text.rfind("\n") + 1].splitlines()  # a row still being written has no end
    rows = [cells for line in whole if len(cells := line.split(",")) == len(names)]
    row = dict(zip(names, rows[-1], strict=True)) if rows else {}
    return Progress(
        **{name: _number(row.get(name), name) for name in Progress._fields}  # type: ignore[arg-type]
    )


def _number(cell: str | None, name: str) -> float | int | None:
    """The cell's number; None for an empty one, or where another application has words."""
    try:
        value = float(cell or "nan")
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return int(value) if name in ("iteration", "env_steps") else value


def last_lines(log: Path, start: int = 0, lines: int = 5) -> list[str]:
    """The last lines a job printed that are not blank.

    Args:
        log: what it printed.
        start: byte where the part of interest begins.
        lines: at most so many.
    """
    if not log.exists():
        return []
    with log.open("rb") as stream:
        stream.seek(max(start, log.stat().st_size - TAIL_BYTES))
        text = stream.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()][-lines:]


def now() -> str:
    """The time as files tell it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _replace(path: Path, text: str) -> None:
    """Replaces a file as a whole: a reader, or a crash, finds the old text or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)
