"""Checkpoints: files with the state of a run, written atomically, that hold data and no code."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from walle.errors import DISK_FIXES, CheckpointError, ConfigError, DiskError

if TYPE_CHECKING:
    from walle.learning.replay import Replay
    from walle.timing import Every

# Loading a policy imports this file: modules for learning alone are imported where they are used.

FORMAT = 1
LAST, PREVIOUS, BEST = "last.pt", "previous.pt", "best.pt"
DAMAGED = "damaged.pt"  # a last.pt that could not be read
_ROWS_A_FILE = 65_536
_NOT_NEGATIVE = ("steps", "square", "m2", "length", "wall_s")  # besides integers


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Writes `state` to `path`; a crash or a full disk leaves the previous file unchanged."""
    from walle.system.files import write_atomically

    path.parent.mkdir(exist_ok=True)
    buffer = io.BytesIO()  # on a full disk torch.save(path) reports only "unexpected pos"
    data = {"format": FORMAT, **made_here(), **as_data(state)}
    torch.save({**data, "checksums": checksums(data)}, buffer)
    write_atomically(path, buffer.getbuffer())


def save_last(directory: Path, state: Mapping[str, Any]) -> None:
    """Writes last.pt into `directory`; the previous file stays as previous.pt."""
    last, kept = directory / LAST, directory / f".{PREVIOUS}"
    kept.unlink(missing_ok=True)
    try:
        if last.exists():
            try:
                os.link(last, kept)  # so that there is a last.pt at every moment
            except OSError:  # not every file system has links
                shutil.copyfile(last, kept)
        save(last, state)
    except BaseException:
        kept.unlink(missing_ok=True)
        raise
    if kept.exists():
        os.replace(kept, directory / PREVIOUS)


def load(path: Path) -> dict[str, Any]:
    """The state that `save` wrote, arrays as tensors.

    Raises:
        CheckpointError: a field is not what was saved.
        ConfigError: the file does not exist, is damaged, holds anything but data, or has a
        different format.
    """
    if not path.exists():
        raise ConfigError(f"no checkpoint at {path}: give the path of a {LAST} or {BEST}")
    try:
        with zipfile.ZipFile(path) as file:  # torch.load does not compare the checksums
            damaged = file.testzip()
        if damaged:
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")  # noqa: TRY301
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ConfigError(f"{path} holds more than data, so it is not loaded") from error
    except Exception as error:  # damaged bytes may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if path.name == BEST:  # for a damaged last.pt, `load_last` takes another file
            reason += _other(path)
        raise ConfigError(f"{path} is damaged or no checkpoint of walle's: {reason}") from error
    version = state.get("format") if isinstance(state, dict) else None
    if version != FORMAT:
        raise ConfigError(
            f"{path} has format {version}, and this version of walle reads format {FORMAT}; "
            "use the version that wrote it"
        )
    state = dict(state)
    if (saved := state.pop("checksums", None)) is not None:  # older versions wrote none
        found, saved = checksums(state), saved if isinstance(saved, dict) else {"checksums": saved}
        for field in {**saved, **found}:
            if found.get(field) != saved.get(field):
                raise CheckpointError(f"{path} is damaged: {field} is not as saved{_other(path)}")
    return state


def checksums(state: Any) -> dict[str, str]:
    """The CRC-32 of the type, the shape and the value of each field of `state`, by its path."""

    def fields(value: Any, path: str) -> Iterator[tuple[str, str]]:
        parts = _parts(value)
        for key, part in parts.items():
            yield from fields(part, f"{path}.{key}" if path else f"{key}")
        if isinstance(value, torch.Tensor):
            found = zlib.crc32(_kind(value).encode())
            with suppress(RuntimeError):  # sparse tensors have no contiguous bytes
                data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                found = zlib.crc32(data.numpy().data, found)
            yield path, f"{found:08x}"
        elif not parts:
            yield path, f"{zlib.crc32(f'{type(value)} {value!r}'.encode()):08x}"

    return dict(fields(state, ""))


def check(path: Path, state: Any, like: Any) -> None:
    """Compares the state in the file `path` with `like`, the state of new objects of the same run.

    A mapping needs the keys of its counterpart in `like`, a list as many entries, an array the same
    type and shape, any other value the same type; all numbers must be finite, and counts not
    negative. None in `like` allows any value.

    Raises CheckpointError if something differs.
    """
    like = as_data(like)
    if fault := next(_faults(state, like, ""), None):
        end = _other(path, lambda other: not any(_faults(other, like, "")))
        raise CheckpointError(f"{path} has other shapes than this run, or is damaged: {fault}{end}")


def _faults(found: Any, like: Any, field: str) -> Iterator[str]:
    """Yields the differences of `found`, the field `field`, from `like`, one sentence each."""
    kind, should = _kind(found), _kind(like)
    if isinstance(like, float) and kind == "float64 []":
        kind = should  # reward moments before the first update, up to version 0.3
    if like is None:
        return
    if kind != should:
        yield f"{field} is {kind}, and this run has {should}"
    elif isinstance(like, int | float | torch.Tensor):
        numbers, is_count = torch.as_tensor(found), field.rpartition(".")[2] in _NOT_NEGATIVE
        if torch.as_tensor(like).isfinite().all() and not numbers.isfinite().all():
            yield f"{field} has numbers that are not finite"
        elif (is_count or type(like) is int) and (numbers < 0).any():
            yield f"{field} is negative"
    elif isinstance(like, list) and len(found) > len(like) > 0:
        yield f"{field} has {len(found)} entries, and this run has {len(like)}"
    parts = _parts(found)
    for key, part in _parts(like).items():
        name = f"{field}.{key}" if field else f"{key}"
        yield from _faults(parts[key], part, name) if key in parts else [f"it lacks {name}"]


def _kind(value: Any) -> str:
    """The type of a value; for an array, the type of its numbers and its shape."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]}"
    return f"a {type(value).__name__}"


def _parts(value: Any) -> Mapping[Any, Any]:
    """The entries of a mapping or a list; none of anything else."""
    if isinstance(value, list):
        return dict(enumerate(value))
    return value if isinstance(value, Mapping) else {}


def _other(path: Path, fits: Callable[[Any], bool] = bool) -> str:
    """The end of a message about the damaged file `path`: which other file can take its place."""
    others = {
        LAST: (PREVIOUS, f"move {LAST} away"),
        BEST: (LAST, "use which=last (start_from=DIR/last)"),
    }
    name, fix = others.get(path.name, ("", ""))
    with suppress(ConfigError):
        if name and fits(load(path.with_name(name))):
            return f"; {name} beside it can be read: {fix} to continue from it"
    return ""


def offset_of(path: Path, state: Mapping[str, Any], entries: int) -> tuple[float, ...] | None:
    """The `EnvSpec.offset` in a state; None without one, as in earlier versions."""
    if "offset" in state:
        check(path, state, {"offset": np.zeros(entries)})
    return tuple(state["offset"].tolist()) if "offset" in state else None


def resumed_file(directory: Path, resumed: Mapping[str, Any]) -> Path:
    """The path of the checkpoint in `directory` from which `load_last` read `resumed`."""
    return directory / (PREVIOUS if resumed.get("fell_back") else LAST)


def clear_remains(directory: Path, resumed: Mapping[str, Any]) -> None:
    """Removes the remains of a killed save from `directory`, and renames a damaged last.pt.

    Else the next `save_last` would keep the damaged file as previous.pt, in place of a good one.
    This process must have locked the run's directory; `resumed` is what `load_last` returned.
    """
    for name in (LAST, BEST):
        for path in directory.glob(f".{name}.*"):
            path.unlink()
    (directory / f".{PREVIOUS}").unlink(missing_ok=True)
    if resumed.get("fell_back") and (directory / LAST).exists():
        os.replace(directory / LAST, directory / DAMAGED)


def disk_error(error: OSError, directory: Path, shown: str) -> DiskError:
    """The error of a run in `directory` that could not write; names the fix and what remains.

    The number of `error` must be in `DISK_FIXES`; `shown` is the path as a user would type it.
    """
    fix, kept = DISK_FIXES[error.errno or 0], ""
    for name in (LAST, PREVIOUS):  # the newest one that can be read
        with suppress(ConfigError):
            load(directory / "checkpoints" / name)
            kept = name
            break
    if not kept:
        what = f"no checkpoint was written: {fix} and start again"
    else:
        what = f"{shown}/checkpoints/{kept} remains: {fix} and continue with resume={shown}"
    failure = DiskError(f"cannot write: {error}; {what}")
    for note in getattr(error, "__notes__", []):
        failure.add_note(note)
    return failure


def load_last(directory: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The newest state in `directory`; if last.pt cannot be read, that of previous.pt.

    Raises:
        CheckpointError: a field of last.pt is not what was saved, which a crash cannot cause.
        ConfigError: neither can be read; the message is about last.pt.
    """
    try:
        return load(directory / LAST)
    except CheckpointError:
        raise
    except ConfigError as error:
        try:
            state = load(directory / PREVIOUS)
        except ConfigError:
            raise error from None
        say(f"{error}; using {PREVIOUS}")
        return state | {"fell_back": True}


@dataclass
class CheckpointFiles:
    """The checkpoints of a run, with the rows of a replay buffer beside them."""

    directory: Path  # is made with the first checkpoint
    replay: Replay | None
    stored: Mapping[str, Any]  # what every checkpoint also holds, as plain values
    are_due: Every

    def __post_init__(self) -> None:
        self._rows = ReplayFiles(self.directory / "replay")

    def save_last(self, state: Mapping[str, Any]) -> Path:
        """Writes last.pt, and the new rows of the replay buffer; returns the path.

        If `state` dates from before an interrupted update, the buffer is rolled back to match it.
        """
        if self.replay is not None:
            self.replay.take_back(state["replay"]["inserted"])
            self._rows.append(self.replay)
            state = {**state, "replay_blocks": self._rows.blocks}
        save_last(self.directory, {**self.stored, **state})
        if self.replay is not None:
            self._rows.forget()  # rows that only older checkpoints needed
        return self.directory / LAST

    def save_best(self, state: Mapping[str, Any]) -> None:
        """Writes best.pt."""
        save(self.directory / BEST, {**self.stored, **state})

    def replay_size(self) -> dict[str, int] | None:
        """The numbers that identify the replay buffer's rows; None without a buffer."""
        if self.replay is None:
            return None
        return {"inserted": self.replay.inserted, "size": len(self.replay)}

    def load_replay(self, state: Mapping[str, Any]) -> None:
        """Fills the replay buffer with the rows of a checkpoint; see `ReplayFiles.load`."""
        if self.replay is None:
            return
        load, read = (partial(f, self.replay) for f in (self._rows.load, self._rows.read))

        def needed(state: Mapping[str, Any]) -> dict[str, Any]:
            return {**state["replay"], "blocks": state.get("replay_blocks", ())}

        try:
            load(**needed(state))
        except CheckpointError as error:
            end = _other(self.directory / LAST, lambda x: read(**needed(x)) is not None)
            raise CheckpointError(f"{error}{end}") from None


class ReplayFiles:
    """Files of rows, each named after the number of its first row, counted from the run's start.

    Files are removed once neither kept checkpoint needs any of their rows. `blocks` has
    the first row, the end and the CRC-32 of each block in which the buffer's rows were appended.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written = self._oldest = self._needed = 0
        self.blocks: list[list[int]] = []

    def append(self, replay: Replay) -> None:
        """Writes the rows added since the last call."""
        for path in (self._directory.parent, self._directory):  # not the run's if it was deleted
            path.mkdir(exist_ok=True)
        self._oldest = replay.inserted - len(replay)
        self._written = max(self._written, self._oldest)
        while self._written < replay.inserted:
            start = self._written // _ROWS_A_FILE * _ROWS_A_FILE
            end = min(start + _ROWS_A_FILE, replay.inserted)
            rows = replay.rows(self._written, end).numpy()
            with self._path(start).open("r+b" if self._path(start).exists() else "wb") as file:
                file.seek((self._written - start) * rows.shape[1] * rows.itemsize)
                file.write(rows.data)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            self.blocks.append([self._written, end, zlib.crc32(rows.data)])
            self._written = end
        self.blocks = [block for block in self.blocks if block[1] > self._oldest]

    def forget(self) -> None:
        """Removes files that neither of the last two checkpoints needs."""
        for path in self._directory.glob("*.rows"):
            if _is_rows(path) and int(path.stem) + _ROWS_A_FILE <= self._needed:
                path.unlink()
        self._needed = self._oldest

    def load(self, replay: Replay, inserted: int, size: int, blocks: Any = ()) -> None:
        """Fills `replay` with the last `size` of the first `inserted` rows.

        Raises CheckpointError if rows are missing, or do not match `blocks`.
        """
        rows = self.read(replay, inserted, size, blocks)
        replay.restore(torch.from_numpy(rows), inserted)
        self._written, self.blocks = inserted, list(blocks)  # older versions wrote no blocks
        self._oldest = self._needed = inserted - len(rows)

    def read(self, replay: Replay, inserted: int, size: int, blocks: Any = ()) -> Any:
        """The rows that `load` fills into `replay`."""
        for path in sorted(self._directory.glob("[!.]*")):
            if not _is_rows(path):
                raise CheckpointError(f"{path} is no file of a replay buffer's: move it elsewhere")
        start = max(0, inserted - size, inserted - replay.capacity)
        first = start // _ROWS_A_FILE * _ROWS_A_FILE
        row_bytes = replay.width * np.dtype(replay.dtype).itemsize
        parts = [np.empty((0, replay.width), replay.dtype)]
        for number in range(first, inserted, _ROWS_A_FILE):
            path = self._path(number)
            data = path.read_bytes() if path.exists() else b""
            filled = data[: len(data) // row_bytes * row_bytes]
            parts.append(np.frombuffer(filled, replay.dtype).reshape(-1, replay.width))
        whole = np.concatenate(parts)
        rows = whole[start - first : inserted - first]
        if len(rows) < inserted - start:
            raise CheckpointError(
                f"{self._directory} lacks rows of the replay buffer: the checkpoint needs rows "
                f"{start} to {inserted - 1}"
            )
        for begin, end, crc in blocks:
            if end > start and zlib.crc32(whole[begin - first : end - first].data) != crc:
                path = self._path(begin // _ROWS_A_FILE * _ROWS_A_FILE)
                raise CheckpointError(f"{path} is damaged: rows {begin} to {end - 1} have changed")
        return rows

    def _path(self, start: int) -> Path:
        return self._directory / f"{start:012}.rows"


def _is_rows(path: Path) -> bool:
    return path.match("[0-9]" * 12 + ".rows") and path.is_file()


def as_data(value: Any) -> Any:
    """`value` with arrays as tensors, tuples as lists and named tuples as mappings."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value, order="C"))  # a number stays 0-dimensional
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: as_data(part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return as_data(value._asdict())
    if isinstance(value, list | tuple):
        return [as_data(part) for part in value]
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()  # a view would be saved with all its storage
    return value


def made_here() -> dict[str, Any]:
    """The versions and the processor, on which a run's exact results depend."""
    from walle.agent.run_directory import versions
    from walle.system.machine import cpu_model

    return {"versions": versions(), "cpu_model": cpu_model()}


def earlier_state(
    directory: Path,
    say: Callable[[str], None],
    *,
    total_steps: int | None = None,
    callbacks: Sequence[str] = (),
) -> dict[str, Any] | None:
    """The newest state of the run in `directory`; None if it never wrote a checkpoint.

    Raises:
        ConfigError: the checkpoint cannot be read, the run has ended at `total_steps`, or one of
            `callbacks` has stopped it.
    """
    from walle.system.run_files import read_status

    checkpoints = directory / "checkpoints"
    if not any((checkpoints / name).exists() for name in (LAST, PREVIOUS)):
        say(f"{directory} has no checkpoint; the run starts again")
        return None
    state = load_last(checkpoints, say)
    needed: dict[str, Any] = {"env_steps": 0, "iteration": 0, "versions": {}, "cpu_model": None}
    needed |= {"config": {"total_steps": None}, "callbacks": {}}
    check(resumed_file(checkpoints, state), state, needed)
    # A run that was killed after its last round has yet to write its last records.
    ended = read_status(directory).get("state") == "completed"
    target = state["config"]["total_steps"]
    done = total_steps is not None and state["env_steps"] >= total_steps
    if done and (ended or total_steps != target) and not state.get("evaluation_is_due"):
        raise ConfigError(
            f"total_steps={total_steps}: the run in {directory} has learned from "
            f"{state['env_steps']} steps already; give more total_steps to continue"
        )
    stopped_by = state.get("callbacks", {}).get("stopped_by")
    if stopped_by in callbacks and ended:
        raise ConfigError(
            f"callbacks={stopped_by}: it stopped the run in {directory} after "
            f"{state['env_steps']:,} steps; to continue all the same leave it out, as in "
            "callbacks=[]"
        )
    say(f"resuming after iteration {state['iteration']}, {state['env_steps']:,} steps")
    then, now = (
        {**made["versions"], "processor": made["cpu_model"]} for made in (state, made_here())
    )
    for name, before in then.items():
        if before != now.get(name):
            change = f"{name} {before} then, {now.get(name)} now"
            say(f"numbers may differ in their last bits: {change}")
    return state
