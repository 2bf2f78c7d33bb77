import os

import pytest

from tests.conftest import read
from walle.agent.csv_file import CsvFile
from walle.errors import ConfigError, WalleError


def test_csv_holds_whole_rows_at_every_moment(tmp_path):
    file = CsvFile(tmp_path / "a.csv")
    file.append([{"x": 1, "y": 0.1}, {"x": 2, "y": float("nan")}])
    file.append([{"x": 3, "y": None}])
    assert (tmp_path / "a.csv").read_text() == "x,y\n1,0.1\n2,\n3,\n"
    file.close()


def test_csv_refuses_other_columns(tmp_path):
    file = CsvFile(tmp_path / "a.csv", ["x"])
    with pytest.raises(ValueError, match=r"a\.csv has columns \('x',\), got \('y',\)"):
        file.append([{"y": 1}])
    file.close()


def test_csv_holds_whole_rows_on_a_full_disk(tmp_path, monkeypatch):
    file = CsvFile(tmp_path / "a.csv", ["x"])
    write = os.write
    monkeypatch.setattr("os.write", lambda descriptor, data: write(descriptor, data[:2]))
    with pytest.raises(OSError, match=r"No space left.*a\.csv"):
        file.append([{"x": 123}])
    assert (tmp_path / "a.csv").read_text() == "x\n"
    file.close()


def test_csv_that_is_no_text_is_named(tmp_path):
    (tmp_path / "file.csv").write_bytes(b"a,caf\xe9\n1,2\n")
    with pytest.raises(ConfigError, match=r"file\.csv is no text .*: put the file back"):
        CsvFile(tmp_path / "file.csv", length=8)


def test_csv_with_known_columns_exists_from_the_start(tmp_path):
    CsvFile(tmp_path / "a.csv", ["x", "y"]).close()
    assert read(tmp_path / "a.csv") == []


def test_a_file_that_was_deleted_is_noticed(tmp_path):
    file = CsvFile(tmp_path / "a.csv", ["x"])
    (tmp_path / "a.csv").unlink()
    with pytest.raises(WalleError, match=r"a\.csv was deleted"):
        file.append([{"x": 1}])
    (tmp_path / "a.csv").touch()  # that of another run
    with pytest.raises(WalleError, match=r"a\.csv was deleted"):
        file.append([{"x": 1}])
    file.close()
    assert (tmp_path / "a.csv").read_text() == ""
