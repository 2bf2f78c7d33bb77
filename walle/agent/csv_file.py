"""Append-only CSV files whose rows are whole after a crash at any moment."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

Value = float | int | str | None
Row = Mapping[str, Value]


class CsvFile:
    """A CSV file that holds complete rows at every moment.

    Rows are appended in one write each time, so neither a crash nor a full disk cuts one in half.
    Unless the columns are given, the first row decides them.
    """

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        """The file is created as soon as its columns are known; it begins with them."""
        self._path = path
        self._columns: tuple[str, ...] | None = None
        self._descriptor = -1
        if columns is not None:
            self._create(columns)

    def _create(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._descriptor = os.open(self._path, flags, 0o644)
        self._write(",".join(self._columns) + "\n")

    def append(self, rows: Sequence[Row]) -> None:
        """Adds the rows; an absent value and NaN are empty cells.

        Raises:
            ValueError: a row has other columns than the first one had.
        """
        if not rows:
            return
        if self._columns is None:
            self._create(tuple(rows[0]))
        text = ""
        for row in rows:
            if tuple(row) != self._columns:
                raise ValueError(f"{self._path.name} has columns {self._columns}, got {tuple(row)}")
            text += ",".join(map(_cell, row.values())) + "\n"
        self._write(text)

    def _write(self, text: str) -> None:
        """Writes all of `text`, or nothing where the disk is full."""
        data = text.encode()
        size = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, data) < len(data):
            os.ftruncate(self._descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _cell(value: Value) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)
