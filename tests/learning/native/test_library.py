"""The library is built once, kept with a checksum, and a compiler that fails is one clear error."""

import shutil
import subprocess

import pytest

from walle.errors import CompileError
from walle.learning.native import library
from walle.system.files import cache_directory

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache and a memory of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "compiled", library.compiled.__wrapped__)


def libraries():
    return list(cache_directory().glob("*.so"))


def test_a_library_is_built_once_and_again_when_it_is_damaged(tmp_path, monkeypatch):
    (tmp_path / "small.cpp").write_text('extern "C" int small_one() { return 1; }')
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    library.compiled("small")
    (path,) = libraries()
    built = path.stat().st_mtime_ns
    library.compiled("small")
    assert path.stat().st_mtime_ns == built
    content = path.read_bytes()
    path.unlink()  # it is mapped: written in place, it would change under this process
    path.write_bytes(content[: len(content) // 2])
    library.compiled("small")
    assert path.read_bytes() == content
    assert libraries() == [path]
    assert not list(cache_directory().glob("*.building"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passes", "replay"])
def test_a_library_shows_only_what_python_calls(name):
    library.compiled(name)
    (path,) = libraries()
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", path], capture_output=True, text=True, check=True
    )
    symbols = [line.split()[-2:] for line in listed.stdout.splitlines()]
    assert {kind for kind, _ in symbols} <= {
        "T",
        "W",
    }  # "u" is united with those of other libraries
    functions = [each for kind, each in symbols if kind == "T"]
    assert functions
    assert all(each.startswith(f"{name}_") for each in functions)


def test_another_compiler_has_another_library(monkeypatch):
    before = library._fingerprint("passes")
    monkeypatch.setenv("CXX", "g++ -O2")
    assert library._fingerprint("passes") != before


@pytest.mark.parametrize(
    ("script", "said"),
    [("exit 3", "^$"), ("echo 'error: no such flag' >&2; exit 1", "no such flag")],
)
def test_a_compiler_that_fails_says_why(tmp_path, monkeypatch, script, said):
    compiler = tmp_path / "broken"
    compiler.write_text(f"#!/bin/sh\n[ $1 = --version ] || {{ {script}; }}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(library.CompilerError, match=said):
        library.compiled("passes")
    assert libraries() == []
    assert not list(cache_directory().glob("*.building"))


def test_a_compiler_that_is_missing_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(library.CompilerError, match="no-such-compiler"):
        library.compiled("passes")


def test_the_run_says_it_in_one_line(tmp_path, monkeypatch):
    from tests.algos.on_policy.test_ppo import trained

    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'x.cpp:1: error: no such flag' >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    small = ("env=hopper", "batch_size=256", "sampler.lanes=8")
    algorithm, _ = trained(0, *small, "algo.compile=true")
    with pytest.raises(CompileError, match=r"algo\.compile=true: compiling failed .*no such flag"):
        algorithm.warm_up()
    algorithm, _ = trained(0, *small, "algo.compile=auto", "total_steps=1e6")
    assert "eager: compiling failed" in algorithm.warm_up()
