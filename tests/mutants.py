"""Breaks the pure modules one operator or constant at a time, and counts what their tests notice.

`make mutants` runs all; `python -m tests.mutants stats fits` only modules whose path has one of
these words. mutmut proposes the mutants. Each is compiled in memory in a process of its own, which
runs the module's tests up to the first failure; no file changes. A test that does not end in time
has noticed the mutant too.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple

import libcst as cst
import pytest
from mutmut.mutation.mutators import mutation_operators

ROOT = Path(__file__).parent.parent
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.txt")
LEAST = 95  # per cent that must be noticed
LIMIT_S = 60  # for the tests of one module

# Each pure module, and what pytest runs for it: quick tests that start no process.
MODULES = {
    "walle/learning/returns.py": "tests/learning/test_returns.py",
    "walle/learning/losses.py": "tests/learning/test_losses.py",
    "walle/learning/trust_region.py": "tests/learning/test_trust_region.py",
    "walle/learning/replay.py": "tests/learning/test_replay.py",
    "walle/nets/normalize.py": "tests/nets/test_normalize.py",
    "walle/collecting/episodes.py": "tests/collecting/test_packing.py",
    "walle/transport/rounds.py": "tests/transport/test_rounds.py",
    "analysis/stats.py": "tests/analysis/test_stats.py",
    "analysis/fits.py": "tests/analysis/test_scaling.py",
    "hydra_plugins/walle_launcher/_cores.py": (
        "tests/hydra_plugins/walle_launcher/test_launcher_cores.py"
    ),
}
# What the tests import beside the project: loaded once, here, instead of once for each mutant.
WARM = ("gymnasium", "hydra", "mujoco", "pandas", "psutil", "scipy.optimize", "scipy.special")
WARM += ("torch", "torch.func", "torch._dynamo", "matplotlib.pyplot")


class Mutant(NamedTuple):
    """A module with one change.

    Attributes:
        name: where and what: `module.function: old line => new line`.
        source: of the whole module.
    """

    name: str
    source: str


class _Proposals(cst.CSTVisitor):
    """Every change that mutmut knows for a node, with the function that the node is in."""

    def __init__(self) -> None:
        self.found: list[tuple[str, cst.CSTNode, cst.CSTNode]] = []
        self._scope: list[str] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._scope.append(node.name.value)
        for kind, propose in mutation_operators:
            if isinstance(node, kind):
                self.found += [(".".join(self._scope), node, new) for new in propose(node)]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._scope.pop()


def mutants(path: str) -> Iterator[Mutant]:
    """All mutants of a module. Equal changes to equal lines of a function get numbers."""
    source = (ROOT / path).read_text()
    module, proposals, seen = cst.parse_module(source), _Proposals(), Counter()
    module.visit(proposals)
    for scope, old, new in proposals.found:
        mutated = cst.ensure_type(module.deep_replace(old, new), cst.Module).code
        name = f"{Path(path).stem.strip('_')}.{scope}: {_change(source, mutated)}"
        seen[name] += 1
        yield Mutant(name if seen[name] == 1 else f"{name} ({seen[name]})", mutated)


def _change(before: str, after: str) -> str:
    """The lines that differ, `old => new`, each side on one line."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0))[2:]
    sides = [" ".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+"]
    return " => ".join(sides)


def noticed(path: str, source: str) -> bool:
    """Whether the module's tests fail with this source in its place."""
    process = multiprocessing.get_context("fork").Process(target=_test, args=(path, source))
    process.start()
    process.join(LIMIT_S)
    process.kill()
    process.join()
    return process.exitcode != pytest.ExitCode.OK


def _test(path: str, source: str) -> None:
    """Ends the process with pytest's exit code."""
    file, load = str(ROOT / path), SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> object:
        return compile(source, file, "exec") if self.path == file else load(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # each costs a start more than our tests do
    os._exit(pytest.main(["-x", "-p", "pytest_timeout", "-p", "no:cacheprovider", *MODULES[path].split()]))


class Row(NamedTuple):
    """What became of a module's mutants."""

    module: str
    mutants: int
    equivalent: int
    noticed: int

    @property
    def percent(self) -> float:
        """Noticed mutants among those that are not equivalent."""
        return 100 * self.noticed / (self.mutants - self.equivalent)

    def __str__(self) -> str:
        return f"| {' | '.join(map(str, self))} | {self.percent:.1f} |"


def measure(path: str, equivalent: set[str]) -> Row:
    """Tries every mutant of a module, and prints those that its tests do not notice."""
    if noticed(path, (ROOT / path).read_text()):
        sys.exit(f"{MODULES[path]} fails without any mutant")
    every = list(mutants(path))
    tried = [mutant for mutant in every if mutant.name not in equivalent]
    unseen = [mutant.name for mutant in tried if not noticed(path, mutant.source)]
    for name in unseen:
        print(f"not noticed: {name}", flush=True)
    return Row(path, len(every), len(every) - len(tried), len(tried) - len(unseen))


def main(words: list[str]) -> int:
    """Prints a row for every module; 1 if too few mutants are noticed."""
    sys.path.insert(0, str(ROOT))
    for name in WARM:
        importlib.import_module(name)
    gc.freeze()  # pytest collects garbage at its end, which would copy all memory of the parent
    equivalent = {line.split("  # ")[0] for line in EQUIVALENT.read_text().splitlines()}
    paths = [path for path in MODULES if not words or any(word in path for word in words)]
    rows = [measure(path, equivalent) for path in paths]
    total = Row("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    print("| module | mutants | equivalent | noticed | percent |\n|---|---|---|---|---|")
    print(*rows, total, sep="\n")
    return int(total.percent < LEAST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
