"""Changes the pure modules one operator, argument or constant at a time: do their tests notice?

`make mutants` tries all modules, `python -m tests.mutants stats laws` those whose path contains one
of the words. A mutant is a module with one change that mutmut proposes. A process of its own
compiles it in memory and runs the module's tests up to the first failure, so no file changes. Tests
that do not end in time have noticed the mutant too.

`mutants_equivalent.txt` lists mutants that no test can notice, each with the reason: they are left
out. A line begins with the mutant's name as this command prints it, so it survives a shift of lines
but not a change of its own line.
"""

from __future__ import annotations

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

# Every pure module with the arguments of pytest: files of quick tests.
MODULES = {
    "walle/learning/returns.py": "tests/learning/test_returns.py",
    "walle/learning/losses.py": "tests/learning/test_losses.py",
    "walle/learning/trust_region.py": "tests/learning/test_trust_region.py",
    "walle/learning/replay.py": "tests/learning/test_replay.py",
    "walle/nets/normalize.py": "tests/nets/test_normalize.py",
    "walle/sampling/episodes.py": "tests/sampling/test_episodes.py",
    "walle/sampling/rounds.py": "tests/sampling/test_rounds.py",
    "analysis/measuring/stats.py": "tests/analysis/measuring/test_stats.py",
    "analysis/measuring/laws.py": "tests/analysis/measuring/test_laws.py",
    "walle/launcher/allocation.py": "tests/launcher/test_allocation.py",
}
# Libraries that the tests import: loaded once, not once for each mutant.
WARM = ("gymnasium", "hydra", "mujoco", "pandas", "psutil", "scipy.optimize", "scipy.special")
WARM += ("torch", "torch.func", "torch._dynamo", "matplotlib.pyplot")


class Mutant(NamedTuple):
    """A module with one change.

    Attributes:
        name: `module.function: old line => new line`.
        source: the whole module.
    """

    name: str
    source: str


class _Proposals(cst.CSTVisitor):
    """Collects the changes that mutmut proposes, with the name of the function they are in."""

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
    """All mutants of a module; mutants that would have the same name are numbered."""
    source = (ROOT / path).read_text()
    module, proposals, seen = cst.parse_module(source), _Proposals(), Counter()
    module.visit(proposals)
    for scope, old, new in proposals.found:
        mutated = cst.ensure_type(module.deep_replace(old, new), cst.Module).code
        name = f"{Path(path).stem}.{scope}: {_change(source, mutated)}"
        seen[name] += 1
        yield Mutant(name if seen[name] == 1 else f"{name} ({seen[name]})", mutated)


def _change(before: str, after: str) -> str:
    """The lines that differ, `old => new`, each side on one line."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0))[2:]
    sides = [" ".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+"]
    return " => ".join(sides)


def noticed(path: str, source: str) -> bool:
    """Whether the module's tests fail when the module has this source."""
    process = multiprocessing.get_context("fork").Process(target=_test, args=(path, source))
    process.start()
    process.join(LIMIT_S)
    process.kill()
    process.join()
    return process.exitcode != pytest.ExitCode.OK


def _test(path: str, source: str) -> None:
    """Runs the module's tests on this source, and ends the process with pytest's exit code."""
    file, load = (ROOT / path).resolve(), SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> object:
        mutated = Path(self.path).resolve() == file
        return compile(source, file, "exec") if mutated else load(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading all plugins takes half a second
    options = ["-x", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    os._exit(pytest.main([*options, *MODULES[path].split()]))


class Row(NamedTuple):
    """The mutants of a module, counted."""

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
    """Tries the mutants of a module; prints its row, and those that its tests do not notice."""
    if noticed(path, (ROOT / path).read_text()):
        sys.exit(f"{MODULES[path]} fails without any mutant")
    every = list(mutants(path))
    tried = [mutant for mutant in every if mutant.name not in equivalent]
    unnoticed = [mutant.name for mutant in tried if not noticed(path, mutant.source)]
    gone = {name for name in equivalent if name.startswith(f"{Path(path).stem}.")}
    gone -= {mutant.name for mutant in every}
    for said, names in (("not noticed", unnoticed), ("in the list, but no mutant", sorted(gone))):
        for name in names:
            print(f"{said}: {name}", file=sys.stderr)
    row = Row(path, len(every), len(every) - len(tried), len(tried) - len(unnoticed))
    print(row, flush=True)
    return row


def main(words: list[str]) -> int:
    """Prints a table with a row for each module; returns 1 if too few mutants were noticed."""
    for name in WARM:
        importlib.import_module(name)
    gc.freeze()  # pytest's last collection of garbage would copy the memory of this process
    equivalent = {line.rsplit("  # ", 1)[0] for line in EQUIVALENT.read_text().splitlines()}
    paths = [path for path in MODULES if not words or any(word in path for word in words)]
    print("| module | mutants | equivalent | noticed | percent |\n|---|---|---|---|---|")
    rows = [measure(path, equivalent) for path in paths]
    total = Row("all", *(sum(counts) for counts in list(zip(*rows, strict=True))[1:]))
    print(total)
    return int(total.percent < LEAST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
