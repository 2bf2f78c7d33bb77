import os
import pwd
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest

from walle.system.files import (
    TemporaryDirectory,
    cache_directory,
    private_directory,
    write_atomically,
)

ROOT = os.getuid() == 0


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    file = tmp_path / "file"
    write_atomically(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "new \ud800")
    assert file.read_text() == "old"
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "directory", b"bytes")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "directory", file]


def test_an_interrupt_after_the_replacement_is_not_hidden(tmp_path, monkeypatch):
    replace = os.replace

    def interrupted(*paths):
        replace(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_a_directory_is_made_for_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        path = private_directory(tmp_path / "new" / "cache")
    finally:
        os.umask(before)
    assert path == tmp_path / "new" / "cache"
    assert [each.stat().st_mode & 0o777 for each in (path, path.parent)] == [0o700, 0o700]


def test_a_directory_that_others_could_only_read_is_closed(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o755)
    assert private_directory(tmp_path / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("whose", ["cache", "parent"])
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_where_others_can_write_the_next_candidate_is_taken(tmp_path, whose, mode):
    path = tmp_path / "parent" / "cache"
    path.mkdir(parents=True)
    (path if whose == "cache" else path.parent).chmod(mode)
    assert private_directory(path, tmp_path / "own") == tmp_path / "own"
    with pytest.raises(PermissionError, match=rf"{whose} can be changed by other users \(mode 07"):
        private_directory(path)


def test_below_a_directory_like_tmp_a_directory_is_private(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    assert private_directory(tmp_path / "tmp" / "cache") == tmp_path / "tmp" / "cache"


def test_a_link_is_refused_and_links_above_are_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    with pytest.raises(PermissionError, match="link is a link or a file"):
        private_directory(tmp_path / "link")
    assert private_directory(tmp_path / "link" / "cache") == tmp_path / "disk" / "cache"


@pytest.mark.skipif(not ROOT, reason="only root can give a directory to another user")
@pytest.mark.parametrize("whose", ["cache", "parent"])
def test_another_users_directory_is_refused(tmp_path, whose):
    path = tmp_path / "parent" / "cache"
    path.mkdir(parents=True)
    os.chown(path if whose == "cache" else path.parent, 4321, -1)
    assert private_directory(path, tmp_path / "own") == tmp_path / "own"
    with pytest.raises(PermissionError, match=rf"{whose} belongs to another user \(number 4321\)"):
        private_directory(path)


def test_the_owner_is_asked_each_time(tmp_path, monkeypatch):
    path = private_directory(tmp_path / "cache")
    somebody_else = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody_else)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_directory(path)


HOLD = """
import sys, time
from pathlib import Path
from walle.system.files import TemporaryDirectory

held = TemporaryDirectory(Path(sys.argv[1]), ".unpacked")
(held.path / "file").touch()
print(held.path, flush=True)
if sys.argv[2] == "stay":
    time.sleep(600)
"""


def holder(tmp_path, how):
    """A process that has made a temporary directory, and the directory's name."""
    command = [sys.executable, "-c", HOLD, str(tmp_path), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def test_a_temporary_directory_lasts_as_long_as_its_process(tmp_path):
    process, path = holder(tmp_path, "stay")
    own = TemporaryDirectory(tmp_path, ".unpacked")
    assert os.path.exists(path)
    process.kill()
    process.communicate()
    assert os.path.exists(path)
    (tmp_path / "early.unpacked").mkdir()  # killed before it made the lock
    (tmp_path / "other").mkdir()
    TemporaryDirectory(tmp_path, ".unpacked").remove()
    assert sorted(os.listdir(tmp_path)) == sorted([own.path.name, "other", "unpacked.lock"])
    process, path = holder(tmp_path, "end")
    process.communicate(timeout=500)
    assert not os.path.exists(path)


MAKE_AND_REMOVE = """
import sys
from pathlib import Path
from walle.system.files import TemporaryDirectory

for _ in range(300):
    TemporaryDirectory(Path(sys.argv[1]), ".sockets").remove()
"""


def test_one_process_makes_its_directory_while_others_remove_theirs(tmp_path):
    command = [sys.executable, "-c", MAKE_AND_REMOVE, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=500)[1] for process in processes] == [""] * 4
    assert os.listdir(tmp_path) == ["sockets.lock"]


def test_temporary_files_lie_in_the_directory_while_it_is_used(tmp_path):
    before = os.environ.get("TMPDIR"), tempfile.gettempdir()
    with TemporaryDirectory(tmp_path, ".building").used() as path:
        assert tempfile.mkdtemp().startswith(str(path))
        made = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True)
        assert made.stdout.startswith(str(path))
    assert (os.environ.get("TMPDIR"), tempfile.gettempdir()) == before


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An own home and temporary directory."""
    for name, variable in (("home", "HOME"), ("tmp", "TMPDIR")):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "home"


def temporary(home):
    return home.parent / "tmp" / f"walle-{os.getuid()}"


def test_a_user_without_a_name_and_without_a_home_has_a_cache(home, monkeypatch):
    assert cache_directory() == home / ".cache" / "walle"
    monkeypatch.delenv("HOME")

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert cache_directory() == cache_directory(for_code=True) == temporary(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "own"))
    assert cache_directory() == home / "own" / "walle"


@pytest.mark.parametrize("how", ["missing", "file", "read-only"])
def test_a_home_that_cannot_be_used(home, monkeypatch, how):
    if how == "read-only":
        write = os.access
        below = str(home)
        monkeypatch.setattr(
            os, "access", lambda path, mode: not str(path).startswith(below) and write(path, mode)
        )
    else:
        (home.parent / "file").touch()
        nowhere = "/proc/none" if how == "missing" else str(home.parent / "file")
        monkeypatch.setenv("HOME", nowhere)
    assert cache_directory() == temporary(home)


def test_compiled_code_lies_where_it_can_be_executed(home, monkeypatch):
    noexec, seen = [home], os.statvfs

    def mounted(path):
        refused = any(path.is_relative_to(each) for each in noexec)
        return SimpleNamespace(f_flag=os.ST_NOEXEC) if refused else seen(path)

    monkeypatch.setattr(os, "statvfs", mounted)
    assert cache_directory(for_code=True) == temporary(home)
    assert cache_directory() == home / ".cache" / "walle"
    noexec.append(home.parent / "tmp")
    with pytest.raises(PermissionError, match=r"tmp/walle-\d+ is mounted noexec; set XDG_CACHE_H"):
        cache_directory(for_code=True)


def test_compiled_code_lies_where_torch_can_name_it(home, monkeypatch):
    """Torch does not quote the paths in its compiler's command."""
    spaced, other = home / "Größe und Maß", home / "Größe"
    monkeypatch.setenv("HOME", str(spaced))
    assert cache_directory() == spaced / ".cache" / "walle"
    assert cache_directory(for_code=True) == temporary(home)
    monkeypatch.setenv("HOME", str(other))
    assert cache_directory(for_code=True) == other / ".cache" / "walle"
    monkeypatch.setenv("HOME", str(spaced))
    monkeypatch.setattr(tempfile, "tempdir", "/proc")  # nothing can be written there
    assert cache_directory(for_code=True) == spaced / ".cache" / "walle"
