"""Append-only CSV files that hold only complete rows, even after a crash."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from walle.errors import ConfigError, WalleError

Value = float | int | str | None
Row = Mapping[str, Value]


class CsvFile:
    """A CSV file that always holds only complete rows.

    Rows are appended in a single write, so a crash or a full disk leaves no partial row. If the
    columns are not given, the first row decides them.
    """

    def __init__(
        self, path: Path, columns: Sequence[str] | None = None, length: int | None = None
    ) -> None:
        """Creates the file with its header as soon as the columns are known.

        With a `length` above 0 it continues an earlier file, truncated to that length: ConfigError
        if that file is missing or shorter.
        """
        self._path = path
        self._columns: tuple[str, ...] | None = None
        self._descriptor = -1
        if not length:
            if columns is None:
                path.unlink(missing_ok=True)
            else:
                self._create(columns)
            return
        there = path.stat().st_size if path.exists() else 0
        if there < length:
            raise ConfigError(
                f"{path} has {there} bytes, and the checkpoint needs the first {length}: "
                "put the whole file back"
            )
        with path.open("rb") as file:
            header = file.readline().rstrip(b"\n")
            file.seek(length - 1)
            if file.read(1) != b"\n":
                raise ConfigError(
                    f"{path}: byte {length}, where the checkpoint ends, is within a row, so the "
                    "file or the checkpoint is another run's; put the run's own file back"
                )
        try:
            self._columns = tuple(header.decode().split(","))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is no text ({error}): put the file back") from None
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._descriptor, length)

    @property
    def length(self) -> int:
        """The file's length in bytes; 0 before the first row of a file without known columns."""
        return os.fstat(self._descriptor).st_size if self._descriptor >= 0 else 0

    def _create(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._descriptor = os.open(self._path, flags, 0o644)
        self._write(",".join(self._columns) + "\n")

    def append(self, rows: Sequence[Row]) -> None:
        """Appends the rows; None and NaN become empty cells.

        Raises:
            ValueError: the columns of a row differ from the file's.
            WalleError: the file was deleted.
        """
        if not rows:
            return
        if self._columns is None:
            self._create(tuple(rows[0]))
        text = ""
        for row in rows:
            if tuple(row) != self._columns:
                raise ValueError(f"{self._path.name} has columns {self._columns}, got {tuple(row)}")
            cells = ["" if x is None or x != x else x for x in row.values()]
            text += ",".join(repr(float(x)) if isinstance(x, float) else str(x) for x in cells)
            text += "\n"
        self._write(text)

    def _write(self, text: str) -> None:
        """Writes `text` completely, or raises an error and writes nothing."""
        data = text.encode()
        info = os.fstat(self._descriptor)
        is_there = bool(info.st_nlink)
        with suppress(FileNotFoundError):  # some file systems count no links at all
            is_there = is_there or os.path.samestat(os.stat(self._path), info)
        if not is_there:
            raise WalleError(
                f"{self._path} was deleted while the run wrote to it: leave the files of a run "
                "alone until it has ended"
            )
        try:
            while data:  # a full disk takes part of the data, and raises at the next write
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            os.ftruncate(self._descriptor, info.st_size)
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def sync(self) -> None:
        """Waits until the rows are on the disk."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
