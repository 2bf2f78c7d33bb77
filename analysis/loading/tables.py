"""Reads the complete rows of many CSV files of the same kind at once."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

TEXT_COLUMNS = ("process", "section", "end")
CHUNK_BYTES = 32 * 2**20
# Columns of files from before version 0.3, by the names that they have now.
OLD_COLUMNS = dict.fromkeys(("minibatches", "updates", "epochs"), "gradient_steps")


class Body(NamedTuple):
    """The complete rows of one file, not parsed yet.

    Attributes:
        file: the file's index in the list of files.
        header: the first line, with the column names.
        text: the complete lines below the header.
        rows: the number of these lines.
        dropped: the number of incomplete lines, which are left out.
    """

    file: int
    header: bytes
    text: bytes
    rows: int
    dropped: int


class Piece(NamedTuple):
    """The parsed rows of some files; every column is an array of its own, so that it can be freed.

    Attributes:
        columns: the columns by name.
        file: [rows] the index of each row's file.
        odd: the file's index of each row that was left out for a word in a column of numbers.
    """

    columns: dict[str, pd.Series]
    file: npt.NDArray[np.int64]
    odd: npt.NDArray[np.int64]


class Tables(NamedTuple):
    """The rows that `read_tables` found.

    Attributes:
        frame: all rows of all files; where a file lacks a column, its rows are empty there.
        file: [rows] the index of each row's file in the list of files.
        dropped: the number of broken rows, by the index of the file that has them.
    """

    frame: pd.DataFrame
    file: npt.NDArray[np.int64]
    dropped: dict[int, int]


def read_tables(files: Sequence[Path]) -> Tables:
    """Parses the complete rows of `files`, in order; a file that does not exist has no rows.

    A row is complete when its line ends and has as many fields as the header: a run killed in the
    middle of a write leaves half a row, and half a number is a wrong number. A row that is no text,
    or has a word in a column of numbers, is broken too and left out.

    Files are joined as text and parsed together: several times faster than parsing each alone.
    """
    dropped: dict[int, int] = {}
    pieces = [_parse(chunk) for chunk in _chunks(_read_all(files, dropped))]
    if not pieces:
        return Tables(pd.DataFrame(), np.empty(0, np.int64), dropped)
    for place in np.concatenate([piece.odd for piece in pieces]).tolist():
        dropped[place] = dropped.get(place, 0) + 1
    file = np.concatenate([piece.file for piece in pieces])
    frame = _join(pieces)
    order = np.argsort(file, kind="stable")
    if np.any(order[1:] < order[:-1]):
        frame, file = frame.take(order).reset_index(drop=True), file[order]
    return Tables(frame, file, dropped)


def _read_all(files: Sequence[Path], dropped: dict[int, int]) -> Iterator[Body]:
    """Yields the files that have rows; counts broken rows into `dropped`."""
    for i, path in enumerate(files):
        if path.is_file():
            body = _read(i, path)
            if body.dropped:
                dropped[i] = body.dropped
            if body.rows:
                yield body


def _read(index: int, path: Path) -> Body:
    data = path.read_bytes().replace(b"\r\n", b"\n")
    end = data.rfind(b"\n") + 1
    header, *lines = data[:end].splitlines(keepends=True) or [b""]
    header = _renamed(header)
    commas = header.count(b",")
    whole = [line for line in lines if line.count(b",") == commas] if _is_text(header) else []
    if not data.isascii():
        whole = [line for line in whole if _is_text(line)]
    dropped = len(lines) - len(whole) + (end < len(data))
    return Body(index, header, b"".join(whole), len(whole), dropped)


def _renamed(header: bytes) -> bytes:
    """The header with the names of today; of two old names for one column the first counts."""
    names = header.decode(errors="replace").rstrip("\n").split(",")
    for old, new in OLD_COLUMNS.items():
        if old in names and new not in names:
            names[names.index(old)] = new
            header = ",".join(names).encode() + b"\n" * header.endswith(b"\n")
    return header


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in line


def _chunks(bodies: Iterable[Body]) -> Iterator[list[Body]]:
    """Groups bodies with the same header, in chunks small enough to parse in little memory."""
    groups: dict[bytes, list[Body]] = defaultdict(list)
    sizes: dict[bytes, int] = defaultdict(int)
    for body in bodies:
        groups[body.header].append(body)
        sizes[body.header] += len(body.text)
        if sizes[body.header] > CHUNK_BYTES:
            yield groups.pop(body.header)
            del sizes[body.header]
    yield from groups.values()


def _parse(chunk: list[Body]) -> Piece:
    header = chunk[0].header
    text = [name for name in TEXT_COLUMNS if name in header.decode().strip().split(",")]
    data = io.BytesIO(b"".join([header, *(body.text for body in chunk)]))
    frame = pd.read_csv(data, dtype=dict.fromkeys(text, "category"), low_memory=False)
    file = np.repeat([body.file for body in chunk], [body.rows for body in chunk])
    odd = _odd_rows(frame)
    frame = frame[~odd] if odd.any() else frame
    return Piece({str(name): frame[name].copy() for name in frame}, file[~odd], file[odd])


def _odd_rows(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """[rows] whether a word stands in a column of numbers; makes such a column numeric."""
    odd = np.zeros(len(frame), bool)
    for name in frame.select_dtypes(exclude=["number", "bool", "category"]):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if numbers.notna().any():
            odd |= (numbers.isna() & frame[name].notna()).to_numpy()
            frame[name] = numbers
    return odd


def _join(pieces: list[Piece]) -> pd.DataFrame:
    """Concatenates the pieces column by column, so that the rows are never in memory twice."""
    names = dict.fromkeys(name for piece in pieces for name in piece.columns)
    joined = {}
    for name in names:
        parts = [
            piece.columns.pop(name)
            if name in piece.columns
            else pd.Series(np.nan, index=range(piece.file.size))
            for piece in pieces
        ]
        joined[name] = _concatenate(parts, text=name in TEXT_COLUMNS)
    return pd.DataFrame(joined, copy=False)


def _concatenate(parts: list[pd.Series], *, text: bool) -> pd.Series:
    if text:
        parts = [part.astype("category") for part in parts]
        categories = sorted({str(c) for part in parts for c in part.cat.categories})
        parts = [part.cat.set_categories(categories) for part in parts]
    return pd.concat(parts, ignore_index=True)
