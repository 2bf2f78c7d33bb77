import errno
import os

import pytest

from tests.conftest import largest_file, read
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
    def write(descriptor, data, write=os.write, left=[2]):  # noqa: B006 - the disk's memory
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: left.pop()])

    file = CsvFile(tmp_path / "a.csv", ["x"])
    monkeypatch.setattr("os.write", write)
    with pytest.raises(OSError, match=r"No space left.*a\.csv"):
        file.append([{"x": 123}])
    assert (tmp_path / "a.csv").read_text() == "x\n"
    file.close()


def test_csv_holds_whole_rows_where_files_may_not_grow(tmp_path):
    file = CsvFile(tmp_path / "a.csv", ["x"])
    with largest_file(4), pytest.raises(OSError, match=r"File too large.*a\.csv"):
        file.append([{"x": 123}])
    assert (tmp_path / "a.csv").read_text() == "x\n"
    file.close()


def test_csv_that_is_no_text_is_named(tmp_path):
    (tmp_path / "file.csv").write_bytes(b"a,caf\xe9\n1,2\n")
    with pytest.raises(ConfigError, match=r"file\.csv is no text .*: put the file back"):
        CsvFile(tmp_path / "file.csv", length=11)


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


@pytest.fixture
def written(tmp_path):
    """A file with three rows, and its length before the last one."""
    file = CsvFile(tmp_path / "a.csv", ["x", "name"])
    file.append([{"x": 1, "name": "ä"}, {"x": 2, "name": "b"}])  # a letter of two bytes
    length = file.length
    file.append([{"x": 3, "name": "c"}])
    file.close()
    return tmp_path / "a.csv", length


def test_an_earlier_file_is_cut_at_the_checkpoint_and_goes_on(written):
    path, length = written
    file = CsvFile(path, ["x", "name"], length)
    assert path.read_text() == "x,name\n1,ä\n2,b\n"
    file.append([{"x": 4, "name": "d"}])
    assert path.read_text() == "x,name\n1,ä\n2,b\n4,d\n"
    assert file.length == path.stat().st_size
    file.close()


def test_the_columns_of_an_earlier_file_stay(written):
    path, length = written
    file = CsvFile(path, None, length)
    with pytest.raises(ValueError, match=r"has columns \('x', 'name'\), got \('x',\)"):
        file.append([{"x": 4}])
    file.close()


def test_half_a_row_that_a_crash_left_is_cut(written):
    path, length = written
    with path.open("a") as file:
        file.write("4,")
    CsvFile(path, None, path.stat().st_size - 2).close()
    assert path.read_text().splitlines()[-1] == "3,c"
    CsvFile(path, None, length).close()
    assert path.read_text().splitlines()[-1] == "2,b"


@pytest.mark.parametrize("there", [b"x,name\n", None])
def test_an_earlier_file_that_lacks_rows_is_refused(written, there):
    path, length = written
    path.unlink()
    if there is not None:
        path.write_bytes(there)
    with pytest.raises(ConfigError, match=rf"a\.csv has \d bytes, .* the first {length}: put the"):
        CsvFile(path, ["x", "name"], length)
    assert (path.read_bytes() if there else None) == there


def test_a_file_without_rows_at_the_checkpoint_begins_again(tmp_path):
    """The columns come with the first row, so there was no file yet."""
    file = CsvFile(tmp_path / "a.csv")
    assert file.length == 0
    file.append([{"x": 1}])
    file.close()
    again = CsvFile(tmp_path / "a.csv", None, 0)
    assert not (tmp_path / "a.csv").exists()
    again.append([{"y": 2}])
    again.close()
    assert read(tmp_path / "a.csv") == [{"y": "2"}]


def test_a_header_alone_is_kept(tmp_path):
    file = CsvFile(tmp_path / "a.csv", ["x"])
    length = file.length
    file.append([{"x": 1}])
    file.close()
    CsvFile(tmp_path / "a.csv", ["x"], length).close()
    assert (tmp_path / "a.csv").read_text() == "x\n"


def test_a_file_is_not_cut_within_a_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,2\n3,4\n")
    with pytest.raises(ConfigError, match=r"byte 6, where the checkpoint ends, is within a row"):
        CsvFile(path, length=6)
    assert path.read_text() == "x,y\n1,2\n3,4\n"
    CsvFile(path, length=8).close()
    assert path.read_text() == "x,y\n1,2\n"
