"""What takes part in one PPO minibatch with the defaults fits into one head."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "walle/learning/native"
MOST_FILES, MOST_LINES = 15, 2600


def imported(path):
    """The modules of `walle.learning` that a file imports at run time, wherever it does so."""
    nodes = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
            continue
        nodes += ast.iter_child_nodes(node)
        names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
        if isinstance(node, ast.ImportFrom):
            names = [node.module, *(f"{node.module}.{name}" for name in names)]
        for name in names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            file = ROOT / f"{name.replace('.', '/')}.py"
            if name.startswith("walle.learning.") and file.exists():
                yield file


def included(path):
    """The headers beside a C++ file that it includes."""
    return [path.parent / name for name in re.findall(r'#include "(.+)"', path.read_text())]


def closure(path, following):
    """The file, and all files that `following` leads to."""
    reached, left = set(), [path]
    while left:
        file = left.pop()
        if file not in reached:
            reached.add(file)
            left += following(file)
    return reached


def test_one_minibatch_of_ppo_takes_few_files_and_lines():
    python = closure(NATIVE / "passes.py", imported)
    cpp = closure(NATIVE / "passes.cpp", included)
    files = {ROOT / "walle/algos/on_policy/ppo.py", *python, *cpp}
    lines = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}
    assert {"walle/learning/native/library.py", "walle/learning/native/mlp.hpp"} <= set(lines)
    assert len(lines) <= MOST_FILES, lines
    assert sum(lines.values()) <= MOST_LINES, lines
