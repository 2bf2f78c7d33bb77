"""A sweep's directory: its locks, manifest.json and index.csv, and the progress of its jobs."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from walle.errors import ConfigError, cause_text
from walle.system.files import write_atomically
from walle.system.format import count_text
from walle.system.identity import Flat, as_json
from walle.system.locks import is_locked, locked_file
from walle.system.run_files import read_status

MANIFEST, INDEX, LOG = "manifest.json", "index.csv", "output.log"
LAUNCHER_LOCK, JOBS_LOCK = ".launcher.lock", ".jobs.lock"
TAIL_BYTES = 8192
TAIL_LINES = 5


def launcher_locked(sweep: Path) -> AbstractContextManager[int]:
    """Locks the sweep's directory for this launcher, or raises `ConfigError`."""
    refusal = ConfigError(
        f"another launcher is running the sweep in {sweep}: wait for it or end it, or use another "
        "name"
    )
    sweep.mkdir(parents=True, exist_ok=True)
    wait_s = 0.2  # `walle sweep status` holds the lock for a moment
    return locked_file(sweep / LAUNCHER_LOCK, wait_s, refusal=lambda _: refusal)


def jobs_locked(sweep: Path, wait_s: float, *, shared: bool = False) -> AbstractContextManager[int]:
    """Locks the sweep's directory for the jobs of this launcher; the lock ends with the last job.

    The jobs of a killed launcher end a moment later than the launcher: waits up to `wait_s` seconds
    for them, then raises `ConfigError`. Workers share the lock. A process that inherits the yielded
    file descriptor keeps the lock until it ends.
    """
    refusal = ConfigError(
        f"jobs of a launcher that was killed are still running in {sweep}: end them"
    )
    return locked_file(sweep / JOBS_LOCK, wait_s, shared=shared, refusal=lambda _: refusal)


def has_launcher(sweep: Path) -> bool:
    """True while a launcher runs the sweep in this directory."""
    return is_locked(sweep / LAUNCHER_LOCK)


class Identity(NamedTuple):
    """The names of a job in a sweep's directory and on a command line."""

    num: int  # the job's number in the sweep; -1 before it has one
    overrides: tuple[str, ...]  # the job's overrides
    config_hash: str  # the hash of `config`
    # the config's leaves without the keys of `hash_ignore`; resolved, except references to
    # environment variables
    config: Flat


class JobRecord(NamedTuple):
    """One job in the manifest."""

    identity: Identity  # number, overrides, hash and config
    directory: str  # relative to the sweep's directory
    cores: int | None  # the number of cores that the job needs; None for all
    # the number of the block in which it ran last; None if the sweep had no blocks
    block: int | None = None


class Manifest(NamedTuple):
    """The jobs of all launches of a sweep."""

    swept: tuple[str, ...]  # names of the overrides along which the jobs differ
    settings: dict[str, Any]  # of the latest launch: order, repeat, exclusive, cores, gpus, threads
    jobs: tuple[JobRecord, ...]  # by ascending number
    # an entry for each launch: its time, command, the overrides with which the same command
    # resumes, its order of jobs, and `machine`, the notes of `checked_machine`
    launches: tuple[dict[str, Any], ...]


def same(a: Any, b: Any) -> bool:
    """Compares values as JSON holds them: a tuple equals its list, an enum equals its name."""
    return as_json(a) == as_json(b)


def common_part(configs: Sequence[Flat]) -> Flat:
    """The leaves that all configs have, with equal values."""
    first, *others = configs or [{}]
    return {
        path: value
        for path, value in first.items()
        if all(path in other and same(other[path], value) for other in others)
    }


def job_label(overrides: Sequence[str], swept: Collection[str]) -> str:
    """The overrides that distinguish a job from the others, in one line."""
    shown = [text for text in overrides if text.lstrip("+").partition("=")[0] in swept]
    return " ".join(" ".join(shown).split()) or "(the only job)"


def write_manifest(sweep: Path, manifest: Manifest) -> None:
    """Writes manifest.json; settings that all jobs have in common appear once."""
    common = common_part([job.identity.config for job in manifest.jobs])
    jobs = [
        {
            "num": job.identity.num,
            "directory": job.directory,
            "cores": job.cores,
            **({} if job.block is None else {"block": job.block}),
            "overrides": job.identity.overrides,
            "config_hash": job.identity.config_hash,
            "config": {k: v for k, v in job.identity.config.items() if k not in common},
        }
        for job in manifest.jobs
    ]
    content = manifest._asdict() | {"common": common, "jobs": jobs}
    write_atomically(sweep / MANIFEST, json.dumps(content, indent=1, default=str) + "\n")


def read_manifest(sweep: Path) -> Manifest:
    """Reads manifest.json; raises `ConfigError` if it is missing or damaged."""
    try:
        content = json.loads((sweep / MANIFEST).read_text(encoding="utf-8"))
        jobs = []
        for job in content["jobs"]:
            config = content["common"] | job["config"]
            identity = Identity(job["num"], tuple(job["overrides"]), job["config_hash"], config)
            jobs.append(JobRecord(identity, job["directory"], job["cores"], job.get("block")))
        swept, launches = tuple(content["swept"]), tuple(content["launches"])
        return Manifest(swept, content["settings"], tuple(jobs), launches)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{sweep} holds no {MANIFEST}: give the directory of a sweep that the walle launcher "
            "ran, such as multirun/NAME"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # also wrong JSON or UTF-8
        raise ConfigError(
            f"{sweep / MANIFEST} is damaged ({error!r}): restore or remove it"
        ) from error


def resume_text(manifest: Manifest, resumable: int = 0) -> str:
    """How to run the incomplete jobs, `resumable` of which have a checkpoint.

    It is the last command line plus any missing overrides.
    """
    some = f" ({count_text(resumable, 'job')} from a checkpoint)" if resumable else ""
    last = manifest.launches[-1] if manifest.launches else {}
    command = "start the sweep again with hydra.launcher.resume=true"
    if "to_resume" in last:  # else an earlier version of walle wrote the manifest
        command = " ".join([last["command"], *map(shlex.quote, last["to_resume"])])
    return f"To resume{some}: {command}"


def is_done(status: Mapping[str, Any], config_hash: str) -> bool:
    """True when a job with this config is complete and status.json holds its return value.

    A run of walle records both the state and the value on its own, so it counts even if its
    launcher was killed.
    """
    own = status.get("state") == "completed" and status.get("config_hash") == config_hash
    return own and "return_value" in status


def python_scalar(value: Any) -> Any:
    """Turns a NumPy or torch scalar into a Python scalar; returns any other value unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def is_recordable(value: Any) -> bool:
    """True when a value written as JSON is read back unchanged."""
    try:  # True == 1, and NaN != NaN: equality would be wrong
        return repr(json.loads(json.dumps(value))) == repr(value)
    except (TypeError, ValueError):
        return False


def csv_text(rows: Sequence[Mapping[str, Any]], first: Sequence[str] = ()) -> str:
    """The rows as CSV: the columns of `first`, then those of the rows as they appear."""
    text = io.StringIO()
    names = dict.fromkeys([*first, *(name for row in rows for name in row)])
    writer = csv.DictWriter(text, fieldnames=list(names))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_index(sweep: Path) -> Manifest:
    """Rebuilds index.csv, a row per job, from job files and the manifest; returns the manifest."""
    manifest = read_manifest(sweep)
    text = csv_text([_index_row(sweep, manifest, job) for job in manifest.jobs])
    shown = text.encode(errors="backslashreplace").decode()  # names without an encoding
    write_atomically(sweep / INDEX, shown)
    return manifest


def _index_row(sweep: Path, manifest: Manifest, job: JobRecord) -> dict[str, Any]:
    status = read_status(sweep / job.directory)
    num, given, config_hash, config = job.identity
    overrides = dict(override.lstrip("+").partition("=")[::2] for override in given)
    head = {
        "job": num,
        "state": status.get("state", "pending"),
        "directory": job.directory,
        "overrides": " ".join(given),
        **({} if job.block is None else {"block": job.block}),
    }
    machine = ("oversubscribed", "load_start", "load_end", "mhz_start", "mhz_end", "others_busy")
    tail = {
        "config_hash": config_hash,
        "attempts": status.get("attempts"),
        "replacements": len(status.get("replacements") or []) if status else None,
        "exit_code": status.get("exit_code"),
        "signal": status.get("signal"),
        "error": cause_text(status.get("error") or ""),
        "started": status.get("started"),
        "ended": status.get("ended"),
        "duration_s": duration_s(status),
        "cores": " ".join(map(str, status.get("cores") or [])),
        **{key: status.get(key) for key in (*machine, "peak_memory_bytes", "return_value")},
        **read_progress(sweep / job.directory)._asdict(),
        **_info_means(sweep / job.directory, status.get("info") or ()),
    }
    swept = {  # an application's key may have the name of a column
        f"config.{key}" if key in head | tail else key: overrides.get(key, config.get(key))
        for key in manifest.swept
    }
    return head | swept | tail


def duration_s(status: Mapping[str, Any]) -> float | None:
    """Seconds of a job's last attempt (so far, if it is running); None if it has not started."""
    if not status.get("started"):
        return None
    try:
        ended = datetime.fromisoformat(status.get("ended") or datetime.now(UTC).isoformat())
        return round((ended - datetime.fromisoformat(status["started"])).total_seconds(), 3)
    except (ValueError, TypeError):  # a damaged status.json: no time, or a time without its zone
        return None


class Progress(NamedTuple):
    """The last complete rows of a run's iterations.csv and eval.csv; None for an absent cell."""

    iteration: int | None = None
    env_steps: int | None = None
    wall_s: float | None = None
    return_mean: float | None = None
    env_steps_per_s: float | None = None
    eval_mean: float | None = None

    def remaining_s(self, total_steps: Any) -> float | None:
        """Seconds that the run still needs at its mean speed so far; None if unknown.

        Another application may use the name `total_steps` for something else.
        """
        if not isinstance(total_steps, int | float) or not self.env_steps or not self.wall_s:
            return None
        return max(0.0, (total_steps - self.env_steps) * self.wall_s / self.env_steps)


def read_progress(job: Path) -> Progress:
    """Reads a run's progress; all None for a job without iterations.csv."""
    row = _last_row(job / "iterations.csv")
    row["eval_mean"] = _last_row(job / "eval.csv").get("return_mean", "")
    numbers: dict[str, Any] = {name: finite_number(row.get(name)) for name in Progress._fields}
    for name in ("iteration", "env_steps"):
        numbers[name] = None if numbers[name] is None else int(numbers[name])
    return Progress(**numbers)


def _info_means(job: Path, columns: Sequence[str]) -> dict[str, float | None]:
    """The last means of the info columns that a run records, in training and evaluations."""
    files = {"": "iterations.csv", "eval_": "eval.csv"} if columns else {}
    rows = {prefix: _last_row(job / file) for prefix, file in files.items()}
    return {f"{p}{c}_mean": finite_number(rows[p].get(f"{c}_mean")) for p in rows for c in columns}


def finite_number(cell: Any) -> float | None:
    """The cell's number; None for an empty cell, NaN, and text of another application."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _last_row(file: Path) -> dict[str, str]:
    """The cells of the last complete row of a CSV file; empty if there is none."""
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", errors="replace") as stream:
        names = stream.readline().strip().split(",")
    text = _end_of(file)
    lines = text[: text.rfind("\n") + 1].splitlines()  # the last row may still be written
    rows = [cells for line in lines if len(cells := line.split(",")) == len(names)]
    return dict(zip(names, rows[-1], strict=True)) if rows else {}


def last_lines(log: Path, start: int = 0, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log that are not blank, at most `lines` of them.

    The first `start` bytes are those of an earlier attempt. The file may be missing.
    """
    return [line for line in _end_of(log, start).splitlines() if line.strip()][-lines:]


def _end_of(file: Path, start: int = 0) -> str:
    if not file.exists():
        return ""
    with file.open("rb") as stream:
        stream.seek(max(start, file.stat().st_size - TAIL_BYTES))
        return stream.read().decode(errors="replace")
