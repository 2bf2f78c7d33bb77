"""Reads the complete rows of many CSV files of the same kind at once."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

TEXT_COLUMNS = ("process", "section", "end")
CHUNK_BYTES = 32 * 2**20
# Columns of files from before version 0.3, by the names that they have now.
OLD_COLUMNS = dict.fromkeys(("minibatches", "updates", "epochs"), "gradient_steps")


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
