"""Decides which parts of an algorithm are compiled, and says why."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import gymnasium as gym
import torch

from walle.algos.problem import Problem
from walle.errors import CompileError, ConfigError, WalleError
from walle.learning.native.library import CompilerError
from walle.learning.sharing.team import Team, require_alike
from walle.nets.factory import NetSettings

MODES = ("auto", "true", "false")


class Cost(NamedTuple):
    """The seconds of one core that compiling a part takes, and those that it saves later.

    `benchmarks/compiling.py` measures the first; `benchmarks/learn.py` and
    `benchmarks/off_policy.py` compare eager and compiled learning.

    Attributes:
        compile_s: to compile, without a cache.
        call_s: saved in a call, however few rows it has.
        row_s: saved besides for each row of a call.
    """

    compile_s: float
    call_s: float
    row_s: float = 0.0

    def saved(self, calls: int, rows: int) -> float:
        """The seconds that `calls` calls of `rows` rows save."""
        return calls * (self.call_s + rows * self.row_s)


# A library serves later runs too, for example other seeds, so half of its cost must be saved.
RUNS_OF_A_LIBRARY = 2
# Seconds of compiling are those of one quiet core of an EPYC (9.3 s; SAC 11.8 s, TD3 12.7 s; 32 s
# and 50 s for a memory; 4.2 s for a library in C++), rounded: `benchmarks/compiling.py`,
# 24 November 2026.
# Seconds saved are from the tables of learning speed in docs/results.md: nets of 64x64, 64 to 4,096
# rows; those of PyTorch code from the tables before there were libraries in C++.
GRADIENT_STEP = Cost(compile_s=10.0, call_s=0.75e-3, row_s=0.4e-6)
NATIVE_STEP = Cost(compile_s=4.5, call_s=0.95e-3, row_s=1.3e-6)
# An update has several gradients; the saving is TD3's.
OFF_POLICY_UPDATE = Cost(compile_s=12.0, call_s=4.7e-3)
NATIVE_UPDATE = Cost(compile_s=4.5, call_s=5.2e-3)


def sequence_cost(steps: int) -> Cost:
    """The cost for a memory: a gradient step through sequences of `steps` steps, unrolled.

    Sequences of 16 steps save 3.4 ms a gradient step and take 32 s to compile, and those of 32
    steps 50 s.
    """
    return Cost(GRADIENT_STEP.compile_s + 1.3 * steps, GRADIENT_STEP.call_s + 0.165e-3 * steps)


class Choice(NamedTuple):
    """A decision whether to compile, with its reason."""

    compile: bool
    reason: str

    def __str__(self) -> str:
        return f"{'compiled' if self.compile else 'eager'}: {self.reason}"


def choose(
    mode: str,
    calls: int,
    rows: int,
    device: str,
    cost: Cost = GRADIENT_STEP,
    *,
    rows_vary: bool = False,
) -> Choice:
    """Decides whether to compile for `calls` calls of `rows` rows.

    The decision depends on the configuration and on the installed programs, never on timing or on
    the cache, because compiled and eager numbers differ in their last bits: the same seed would
    give other numbers after a run that left its library in the cache. A compiled function has one
    shape, so calls with a varying number of rows stay eager.

    Raises:
        ConfigError: `mode` is "true" and there is no compiler, or the rows vary.
    """
    if mode == "false":
        return Choice(False, "algo.compile=false")
    if rows_vary:
        reason = "rounds differ in their number of steps, and a gradient step uses a whole round"
        if mode == "true":
            raise ConfigError(f"algo.compile=true: {reason}; use algo.compile=auto")
        return Choice(False, reason)
    missing = _missing_compiler(device)
    if mode == "true":
        if missing:
            raise ConfigError(f"algo.compile=true: {missing}, or use algo.compile=auto")
        return Choice(True, "algo.compile=true")
    if missing:
        return Choice(False, missing)
    saved_s = cost.saved(calls, rows)
    reason = f"compiling takes about {cost.compile_s:.0f} s and saves {saved_s:.1f} s of this run"
    return Choice(RUNS_OF_A_LIBRARY * saved_s >= cost.compile_s, reason)


def describe(algorithm: Any, net: NetSettings, problem: Problem) -> str | None:
    """The settings and shapes that determine the losses of an algorithm, for given walle code.

    None if some of its code is not walle's: then nobody can tell when it changes.
    """
    modules = {each.__module__.partition(".")[0] for each in type(algorithm).__mro__}
    if not modules <= {"walle", "abc", "builtins"} or net.own is not None:
        return None
    settings = dataclasses.asdict(algorithm.settings) | {"compile": None}
    sizes = problem._replace(total_steps=0, schedule_steps=0, seed=0)
    bounds = [
        (space.low.tolist(), space.high.tolist())
        for space in (problem.observation_space, problem.action_space)
        if isinstance(space, gym.spaces.Box)  # its own text leaves out most of the bounds
    ]
    return repr((type(algorithm), settings, net, sizes, bounds))


def attempt(choice: Choice, mode: str, compile_all: Callable[[], None]) -> Choice:
    """Compiles if `choice` says so; returns the choice, or "eager" if that failed.

    Raises:
        CompileError: the compiler does not work, and `mode` is not "auto".
        Exception: compiling failed for another reason, and `mode` is not "auto".
    """
    if not choice.compile:
        return choice
    try:
        compile_all()
    except WalleError:  # it concerns the run, not the compiler
        raise
    except Exception as error:
        fault = _compiler_fault(error)
        reason = f"compiling failed ({fault or _first_line(error)})"
        if mode == "auto":
            return Choice(False, reason)
        if not fault:
            raise
        cure = "name a compiler that works in CXX, or use algo.compile=auto"
        raise CompileError(f"algo.compile=true: {reason}; {cure}") from error
    return choice


def _compiler_fault(error: Exception) -> str | None:
    """The cause in one line, if it is the compiler or its files; None if it may be the function."""
    if isinstance(error, CompilerError):
        return _said(str(error))
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    cause = getattr(error, "inner_exception", error)
    if isinstance(cause, OSError):
        return _first_line(cause)
    text = f"CXX={os.environ.get('CXX', 'g++')}"
    if isinstance(cause, InvalidCxxCompiler):
        return f"{text} is no working C++ compiler"
    if not isinstance(cause, CppCompileError):
        return None
    return _said(cause.output)


def _said(output: str) -> str:
    """What the compiler said, in one line."""
    lines = [line for line in output.splitlines() if line.strip()]
    said = [line for line in lines if "error" in line.lower()] or lines or ["nothing"]
    return f"CXX={os.environ.get('CXX', 'g++')} said: {said[0].strip()[:200]}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


class Compilable(NamedTuple):
    """A part of learning that can be compiled.

    Attributes:
        name: the name for messages: "learning", "policy" or "value function".
        calls: number of calls in the run.
        rows: number of rows of a call.
        compile: compiles the part; gets its description, see `compile_function`.
        rows_vary: whether calls differ in their number of rows.
        cost: what compiling costs and saves.
    """

    name: str
    calls: int
    rows: int
    compile: Callable[[str | None], None]
    rows_vary: bool = False
    cost: Cost = GRADIENT_STEP


class Compiling:
    """The decisions which parts of an algorithm to compile, and their execution in `run`."""

    def __init__(
        self,
        mode: str,
        device: str,
        parts: Sequence[Compilable],
        *,
        without_parts: str = "",
        description: str | None = None,
    ) -> None:
        """Calls `choose` for each part.

        Args:
            mode: `algo.compile`.
            device: where the agent computes.
            parts: the parts that can be compiled.
            without_parts: the message if `parts` is empty.
            description: see `describe`.

        Raises:
            ConfigError: `mode` is "true" and a part cannot be compiled.
        """
        self._mode, self._without_parts, self._description = mode, without_parts, description
        self._chosen = [
            (p, choose(mode, p.calls, p.rows, device, p.cost, rows_vary=p.rows_vary)) for p in parts
        ]

    def run(self) -> str:
        """Compiles the chosen parts; returns one line: the choices and their reasons."""
        self._chosen = [
            (part, attempt(choice, self._mode, partial(part.compile, self._described(part))))
            for part, choice in self._chosen
        ]
        return "; ".join(f"{p.name} {choice}" for p, choice in self._chosen) or self._without_parts

    def meet(self, team: Team) -> None:
        """Waits for the other learners.

        Raises:
            WorkerError: they compiled other parts, so their numbers would not fit together.
        """
        compiled = sum(choice.compile << place for place, (_, choice) in enumerate(self._chosen))
        require_alike(
            team,
            float(compiled),
            "some learners compiled and others could not, see above; use algo.compile=false",
        )

    def _described(self, part: Compilable) -> str | None:
        return None if self._description is None else f"{part.name} of {self._description}"


def _missing_compiler(device: str) -> str | None:
    compiler = os.environ.get("CXX", "g++").split()
    if not compiler:
        return "CXX is empty, so there is no C++ compiler; unset CXX or name a compiler in it"
    if shutil.which(compiler[0]) is None:
        return f"no C++ compiler ({' '.join(compiler)}) found; install g++ or set CXX"
    if torch.device(device).type == "cuda" and find_spec("triton") is None:
        return "compiling for a GPU needs triton, which is not installed; install triton"
    return None
