import json
import os
import shutil
import signal

import pytest

from walle.algos import engines
from walle.algos.engines import Part, check, choose
from walle.config import compose
from walle.errors import CompileError, ConfigError
from walle.learning import step
from walle.learning.native.library import CompilerError
from walle.learning.sharing.team import ALONE
from walle.training import make_algorithm, make_problem

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def nothing():
    pass


def failing(error):
    def engine():
        raise error

    return engine


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("mode", "load", "steps", "line"),
    [
        ("false", nothing, 10**9, "eager: algo.compile=false"),
        ("auto", nothing, 1, "in C++"),
        ("true", nothing, 1, "in C++"),
        ("auto", None, 9_999, "eager: this run takes fewer than 10,000 gradient steps"),
        ("auto", None, 10_000, "compiled by torch.compile"),
        ("true", None, 1, "compiled by torch.compile"),
    ],
)
def test_the_rule(mode, load, steps, line):
    parts = [Part("learning", steps, load, nothing)]
    assert choose(mode, "cpu", parts, ALONE) == f"learning {line}"


@pytest.mark.usefixtures("compiler")
def test_steps_on_rounds_that_vary_stay_eager():
    assert "rounds differ" in choose("auto", "cpu", [Part("policy", 10**9, None, None)], ALONE)


def test_without_a_compiler_auto_is_eager_and_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    line = choose("auto", "cpu", [Part("learning", 1, nothing, nothing)], ALONE)
    assert line.startswith("learning eager: no C++ compiler (no-such-compiler) found")
    with pytest.raises(ConfigError, match=r"or use algo\.compile=auto"):
        check("true", "cpu", [])


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_compiler_is_missing(monkeypatch, blank):
    monkeypatch.setenv("CXX", blank)
    assert "CXX is empty" in engines.missing_compiler("cpu")


@pytest.mark.usefixtures("compiler")
def test_a_compilers_output_is_one_line_with_the_fix(monkeypatch):
    monkeypatch.setenv("CXX", "g++-9")
    output = "In file included from x.cpp:1:\nx.h:2:10: fatal error: no <cmath>\nended\n"
    parts = [Part("learning", 1, failing(CompilerError(output)), nothing)]
    reason = "compiling failed (CXX=g++-9: x.h:2:10: fatal error: no <cmath>)"
    assert choose("auto", "cpu", parts, ALONE) == f"learning eager: {reason}"
    with pytest.raises(CompileError) as caught:
        choose("true", "cpu", parts, ALONE)
    fix = "name a compiler that works in CXX, or use algo.compile=auto"
    assert str(caught.value) == f"algo.compile=true: {reason}; {fix}"


@needs_compiler
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("env=halfcheetah", "total_steps=4096"), "learning in C++"),
        (("env=halfcheetah", "net.activation=elu", "total_steps=4096"), "learning eager: this run"),
        (("env=hopper", "algo=sac", "total_steps=5200"), "learning in C++"),
        (
            ("env=hopper", "algo=sac", "net.activation=gelu", "total_steps=5200"),
            "learning eager",
        ),
        (
            ("env=cartpole", "algo=a3c", "sampler.n=1", "algo.compile=auto", "net.activation=elu"),
            "learning eager: rounds differ",
        ),
    ],
)
def test_the_engines_of_runs(overrides, line):
    config = compose(list(overrides))
    algorithm = make_algorithm(config, make_problem(config)[0])
    assert algorithm.warm_up().startswith(line)


@pytest.mark.parametrize("who_notices", ["python", "compiler"])
def test_ctrl_c_while_compiling_is_no_failure_of_compiling(run, monkeypatch, capsys, who_notices):
    def compiled(*_):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Exception as error:  # what torch does
            raise RuntimeError("lowering failed") from error
        except BaseException:
            if who_notices == "python":
                raise
        raise RuntimeError("killed by signal 2")  # the compiler got Ctrl-C too

    monkeypatch.setattr(step, "compiled", compiled)
    long = ("sampler=serial", "total_steps=1_000_000_000", "logger.progress=lines")
    result, directory = run(*long, "net.activation=elu")  # which the library does not have
    status = json.loads((directory / "status.json").read_text())
    assert (result.signal, status["state"], status["exit_code"]) == (2, "interrupted", 130)
    assert (directory / "checkpoints" / "last.pt").exists()
    assert capsys.readouterr().out == ""
