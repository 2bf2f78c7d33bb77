import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from torch._inductor.exc import CppCompileError, InductorError

from walle.algos.compiling import (
    GRADIENT_STEP,
    NATIVE_STEP,
    NATIVE_UPDATE,
    OFF_POLICY_UPDATE,
    Choice,
    Cost,
    attempt,
    choose,
    describe,
    sequence_cost,
)
from walle.algos.on_policy.ppo import PPO
from walle.config.loading import compose
from walle.errors import CompileError, ConfigError
from walle.learning import gradient_steps
from walle.training import make_algorithm, make_problem


def test_auto_compiles_what_repays_half_of_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    cost = Cost(compile_s=8.0, call_s=0.25, row_s=0.0625)
    # 8 calls of 4 rows save 8 x (0.25 + 4 x 0.0625) = 4 s, half of 8 s
    assert choose("auto", 8, 4, "cpu", cost) == (
        True,
        "compiling takes about 8 s and saves 4.0 s of this run",
    )
    assert not choose("auto", 7, 4, "cpu", cost).compile
    assert not choose("auto", 8, 3, "cpu", cost).compile
    assert choose("true", 1, 1, "cpu", cost).compile
    assert not choose("false", 10**9, 1, "cpu", cost).compile


@pytest.mark.parametrize(
    ("calls", "rows", "cost", "saved_s", "compiled"),
    [
        (156_250, 64, GRADIENT_STEP, 121.2, True),  # PPO, a million steps, 10 epochs
        (9_770, 1_024, GRADIENT_STEP, 11.3, True),  # the same with minibatches of 1,024
        (1_920, 64, GRADIENT_STEP, 1.5, False),  # the same for 12,288 steps
        (2_240, 64, NATIVE_STEP, 2.3, True),  # 14,336 steps in C++, against half of 4.5 s
        (1_920, 64, NATIVE_STEP, 2.0, False),
        (5_000, 4, sequence_cost(16), 17.0, True),  # against half of 30.8 s
        (4_000, 4, sequence_cost(16), 13.6, False),
        (15_000, 256, OFF_POLICY_UPDATE, 70.5, True),  # SAC, 20,000 steps
        (1_000, 256, OFF_POLICY_UPDATE, 4.7, False),
        (1_000, 256, NATIVE_UPDATE, 5.2, True),
    ],
)
def test_what_auto_decides_for_common_runs(monkeypatch, calls, rows, cost, saved_s, compiled):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert cost.saved(calls, rows) == pytest.approx(saved_s, abs=0.06)
    assert choose("auto", calls, rows, "cpu", cost).compile == compiled


def test_the_choice_knows_nothing_of_the_cache(tmp_path, monkeypatch):
    chosen = choose("auto", 5_000, 64, "cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert choose("auto", 5_000, 64, "cpu") == chosen


@pytest.mark.parametrize(
    ("settings", "compiled"),
    [
        (("env=halfcheetah", "+experiment=wide"), True),
        (("env=hopper", "total_steps=8_000"), False),
        (("env=hopper", "algo=sac", "total_steps=12_000"), True),
        (("env=hopper", "algo=sac", "total_steps=5_200"), False),
        (("env=cartpole", "algo=dqn", "total_steps=6_000"), False),
    ],
)
def test_an_algorithm_tells_its_steps_and_rows(monkeypatch, settings, compiled):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    config = compose(["sampler=serial", *settings])
    algorithm = make_algorithm(config, make_problem(config)[0])
    assert [choice.compile for _, choice in algorithm.compiling._chosen] == [compiled]


def test_without_a_compiler_auto_is_eager_and_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    choice = choose("auto", 10**9, 1, "cpu")
    assert not choice.compile
    assert "no C++ compiler (no-such-compiler) found" in str(choice)
    with pytest.raises(ConfigError, match=r"or use algo\.compile=auto"):
        choose("true", 10**9, 1, "cpu")


@pytest.mark.parametrize("nothing", ["", " "])
def test_a_compiler_named_by_nothing_is_none(monkeypatch, nothing):
    monkeypatch.setenv("CXX", nothing)
    assert "CXX is empty" in str(choose("auto", 10**9, 1, "cpu"))


BROKEN = """
import torch
from walle.algos.compiling import attempt, choose
from walle.learning.compiled import compile_function

def compile_all():
    compile_function(lambda x: (x + 123,), (torch.zeros(7),))

print(attempt(choose("auto", 10**9, 1, "cpu"), "auto", compile_all))
attempt(choose("true", 1, 1, "cpu"), "true", compile_all)
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
    result, directory = run(*long, "net.activation=elu")  # which has no library in C++
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
