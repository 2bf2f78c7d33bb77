import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from torch._inductor.exc import CppCompileError, InductorError

from walle.algos.compiling import REPAID_AFTER, Choice, attempt, choose, describe
from walle.algos.ppo import PPO
from walle.config.loading import compose
from walle.errors import CompileError, ConfigError
from walle.learning import gradient_steps
from walle.parts import make_algorithm, make_problem


def test_auto_compiles_what_repays_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert not choose("auto", REPAID_AFTER - 1, "cpu").compile
    assert choose("auto", REPAID_AFTER, "cpu").compile
    assert choose("true", 1, "cpu").compile
    assert not choose("false", 10**9, "cpu").compile


def test_without_a_compiler_auto_is_eager_and_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    choice = choose("auto", 10**9, "cpu")
    assert not choice.compile
    assert "no C++ compiler (no-such-compiler) found" in str(choice)
    with pytest.raises(ConfigError, match=r"or use algo\.compile=auto"):
        choose("true", 10**9, "cpu")


@pytest.mark.parametrize("nothing", ["", " "])
def test_a_compiler_named_by_nothing_is_none(monkeypatch, nothing):
    monkeypatch.setenv("CXX", nothing)
    assert "CXX is empty" in str(choose("auto", 10**9, "cpu"))


BROKEN = """
import torch
from walle.algos.compiling import attempt, choose
from walle.learning.compiled import compile_function

def compile_all():
    compile_function(lambda x: (x + 123,), (torch.zeros(7),))

print(attempt(choose("auto", 10**9, "cpu"), "auto", compile_all))
attempt(choose("true", 1, "cpu"), "true", compile_all)
"""


@pytest.mark.slow
def test_a_broken_compiler_leaves_auto_eager_and_says_so(tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'internal compiler error' >&2\nexit 1\n")
    broken.chmod(0o755)
    paths = {name: str(tmp_path) for name in ("TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")}
    run = subprocess.run(
        [sys.executable, "-c", BROKEN],
        env={**os.environ, **paths, "CXX": str(broken)},
        capture_output=True,
        text=True,
    )
    assert run.stdout.startswith("eager: compiling failed (")
    assert run.stdout.count("\n") == 1
    message = f"compiling failed (CXX={broken} is no working C++ compiler); name a compiler that"
    assert run.stderr.splitlines()[-1].startswith(
        f"walle.errors.CompileError: algo.compile=true: {message}"
    )
    assert not list(tmp_path.glob("walle/*.pt2"))


def failing(error):
    def compile_all():
        raise error

    return compile_all


def test_what_a_compiler_says_is_one_line_with_the_cure(monkeypatch):
    monkeypatch.setenv("CXX", "g++-9")
    output = (
        "In file included from x.cpp:1:\nx.h:2:10: fatal error: no <cmath>\ncompilation ended\n"
    )
    fault = CppCompileError(["g++-9", "x.cpp"], output)
    compiled = Choice(True, "algo.compile=true")
    said = "compiling failed (CXX=g++-9 said: x.h:2:10: fatal error: no <cmath>)"
    assert str(attempt(compiled, "auto", failing(fault))) == f"eager: {said}"
    with pytest.raises(CompileError) as caught:
        attempt(compiled, "true", failing(InductorError(fault, None)))
    cure = "name a compiler that works in CXX, or use algo.compile=auto"
    assert str(caught.value) == f"algo.compile=true: {said}; {cure}"


def test_a_cache_that_cannot_be_used_is_one_line():
    fault = PermissionError("no private cache: /tmp/x is a link or a file; set XDG_CACHE_HOME")
    with pytest.raises(CompileError, match=r"\(PermissionError: no private cache: /tmp"):
        attempt(Choice(True, "algo.compile=true"), "true", failing(fault))


def test_an_error_in_the_function_itself_stays_whole():
    with pytest.raises(TypeError, match=r"^shape$"):
        attempt(Choice(True, "algo.compile=true"), "true", failing(TypeError("shape")))


@pytest.mark.parametrize("who_notices", ["python", "compiler"])
def test_ctrl_c_while_compiling_is_no_failure_of_compiling(run, monkeypatch, capsys, who_notices):
    def compile_function(*_):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Exception as error:  # what torch does
            raise RuntimeError("lowering failed") from error
        except BaseException:
            if who_notices == "python":
                raise
        raise CppCompileError(["g++"], "killed by signal 2")  # the compiler heard Ctrl-C too

    monkeypatch.setattr(gradient_steps, "compile_function", compile_function)
    long = ("sampler=serial", "total_steps=1_000_000_000", "logger.progress=lines")
    result, directory = run(*long)
    status = json.loads((directory / "status.json").read_text())
    assert (result.signal, status["state"], status["exit_code"]) == (2, "interrupted", 130)
    assert (directory / "checkpoints" / "last.pt").exists()
    assert capsys.readouterr().out == ""


def ppo(*overrides):
    config = compose(["env=pendulum", "batch_size=128", *overrides])
    problem, _ = make_problem(config)
    return make_algorithm(config, problem)


def described(*overrides):
    algorithm = ppo(*overrides)
    return describe(algorithm, algorithm.net, algorithm.problem)


def test_a_description_names_what_the_loss_depends_on():
    text = described()
    same = ("seed=5", "total_steps=3_000_000", "algo.compile=false", "schedule_steps=1000")
    assert all(described(each) == text for each in same)
    other = (
        "algo.clip=0.1",
        "net.activation=relu",
        "net.policy_hidden=[8]",
        "env=mountain_car_continuous",
    )
    assert len({text, *map(described, other)}) == 1 + len(other)


def test_nobody_can_tell_when_code_outside_walle_changes():
    class Mine(PPO):
        pass

    algorithm = ppo()
    assert describe(algorithm, algorithm.net._replace(own=Mine), algorithm.problem) is None
    algorithm.__class__ = Mine
    assert describe(algorithm, algorithm.net, algorithm.problem) is None
