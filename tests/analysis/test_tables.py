from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from walle.analysis import runs
from walle.analysis.runs import read_tables


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_rows_of_all_files_in_order(tmp_path: Path) -> None:
    files = [write(tmp_path / "a", "x,y\n1,2\n3,4\n"), write(tmp_path / "b", "x,y\n5,6\n")]
    frame, file, dropped = read_tables(files)
    assert frame["x"].tolist() == [1, 3, 5]
    assert frame["y"].tolist() == [2, 4, 6]
    assert file.tolist() == [0, 0, 1]
    assert dropped == {}


def test_a_row_without_its_end_is_dropped(tmp_path: Path) -> None:
    """4.1 may be the beginning of 4.12345: half a number is a wrong number."""
    frame, _, dropped = read_tables([write(tmp_path / "a", "x,y\n1,2\n3,4.1")])
    assert frame["y"].tolist() == [2]
    assert dropped == {0: 1}


def test_a_row_with_too_few_or_too_many_fields_is_dropped(tmp_path: Path) -> None:
    frame, _, dropped = read_tables([write(tmp_path / "a", "x,y\n1,2\n3\n4,5,6\n7,8\n")])
    assert frame["x"].tolist() == [1, 7]
    assert dropped == {0: 2}


def test_windows_line_ends(tmp_path: Path) -> None:
    frame, _, dropped = read_tables([write(tmp_path / "a", "x,y\r\n1,2\r\n3,4\r\n")])
    assert frame.columns.tolist() == ["x", "y"]
    assert frame["y"].tolist() == [2, 4]
    assert dropped == {}


def test_different_columns_stay_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a", "x,kl\n1,2\n"),
        write(tmp_path / "b", "x,beta\n3,4\n"),
        write(tmp_path / "c", "x,kl\n5,6\n"),
    ]
    frame, file, _ = read_tables(files)
    assert frame["x"].tolist() == [1, 3, 5]
    assert file.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(frame["kl"], [2, np.nan, 6])
    np.testing.assert_array_equal(frame["beta"], [np.nan, 4, np.nan])


def test_files_that_are_missing_or_empty(tmp_path: Path) -> None:
    files = [
        tmp_path / "none",
        write(tmp_path / "empty", ""),
        write(tmp_path / "header", "x,y\n"),
        write(tmp_path / "half header", "x,"),
        write(tmp_path / "a", "x,y\n1,2\n"),
    ]
    frame, file, _ = read_tables(files)
    assert frame["x"].tolist() == [1]
    assert file.tolist() == [4]
    assert len(read_tables(files[:3]).frame) == 0


def test_chunks_join_to_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        write(tmp_path / str(i), f"process,x\nsampler-{i},{i}\nagent,{i}\n") for i in range(20)
    ]
    whole = read_tables(files)
    monkeypatch.setattr(runs, "CHUNK_BYTES", 40)
    pieces = read_tables(files)
    assert pieces.frame["x"].tolist() == whole.frame["x"].tolist()
    assert (
        pieces.frame["process"].astype(str).tolist() == whole.frame["process"].astype(str).tolist()
    )
    assert pieces.frame["process"].dtype == "category"
    assert pieces.file.tolist() == whole.file.tolist()


def test_a_word_among_numbers_is_a_broken_row(tmp_path: Path) -> None:
    files = [write(tmp_path / "a", "x,y\n1,2\nabc,3\n4,\n"), write(tmp_path / "b", "x,y\n5,z\n")]
    frame, file, dropped = read_tables(files)
    assert frame["x"].tolist() == [1, 4]
    assert frame["x"].dtype == float
    assert file.tolist() == [0, 0]
    assert dropped == {0: 1, 1: 1}


def test_a_column_of_words_stays(tmp_path: Path) -> None:
    frame, _, dropped = read_tables([write(tmp_path / "a", "x,phase\n1,warm\n2,cold\n")])
    assert frame["phase"].tolist() == ["warm", "cold"]
    assert dropped == {}


def test_what_is_no_text_is_dropped(tmp_path: Path) -> None:
    """As a file's end after the machine went down: blocks of zeros, or of something else."""
    (tmp_path / "a").write_bytes(b"x,y\n1,2\n\0\0,\0\n\xff,3\n")
    (tmp_path / "b").write_bytes(b"\xff\xfe,y\n1,2\n")
    frame, file, dropped = read_tables([tmp_path / "a", tmp_path / "b"])
    assert (frame["x"].tolist(), file.tolist()) == ([1], [0])
    assert dropped == {0: 2, 1: 1}
