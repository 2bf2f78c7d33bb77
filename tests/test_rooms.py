"""Arrows between the rooms of walle point one way: docs/architecture.md draws them."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIRECTORIES = {".ci", "analysis", "benchmarks", "conf", "docs", "examples", "hydra_plugins"}
DIRECTORIES |= {"sweeps", "tests", "walle"}
KNOWN_TO_ALL = ("errors", "streams", "timing", "types", "system")
ROOMS = {  # what each room may import besides itself and what every room knows
    "envs": (),
    "nets": (),
    "sampling": ("envs", "nets"),
    "learning": ("nets",),
    "algos": ("learning", "nets"),
    "config": ("algos",),
    "agent": ("algos", "envs", "learning", "nets", "sampling"),
    "policy": ("agent", "algos", "config", "envs", "nets", "sampling"),
    "launcher": (),
    "tuning": ("launcher",),
    "analysis": (),
}
ORDER_WITHIN = dict.fromkeys(("errors", "streams"), ()) | {
    "timing": (),
    "types": (),
    "system": ("errors",),
}


LIMITS = {"analysis": 30}


def modules():
    """Path of every module of walle, by its dotted name."""
    paths = [*ROOT.glob("walle/**/*.py"), *ROOT.glob("walle/analysis/**/*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


def imports(path, names):
    """The modules of walle that a file imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    packages = {f"{name}.__init__" for name in found}
    return {name for name in found | packages if name in names}


def room(name):
    parts = name.split(".")
    return parts[1] if len(parts) > 2 or parts[1] in KNOWN_TO_ALL else ""


def misplaced(name, imported):
    """Why `name` must not import `imported`; None if it may."""
    ours, theirs = room(name), room(imported)
    if ours == theirs or not ours:
        return None
    if not theirs and imported != "walle.__init__":
        return f"{name} imports {imported}, which puts the parts together"
    allowed = (*KNOWN_TO_ALL, *ROOMS[ours]) if ours in ROOMS else ORDER_WITHIN[ours]
    return None if theirs in allowed or not theirs else f"{name} imports {imported}"


def test_every_arrow_between_rooms_points_the_allowed_way():
    found = modules()
    arrows = [(name, other) for name, path in found.items() for other in imports(path, found)]
    assert len(arrows) > 300
    assert [why for arrow in arrows if (why := misplaced(*arrow))] == []


def test_no_files_import_each_other_in_a_circle():
    found = modules()
    # A package's __init__ only names what lies in it, so it may point both ways.
    graph = {
        name: {other for other in imports(path, found) if not other.endswith("__init__")}
        for name, path in found.items()
        if not name.endswith("__init__")
    }
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for other in sorted(graph[name]):
            visit(other)
        done.add(path.pop())

    for name in sorted(graph):
        visit(name)


def test_only_commands_know_the_figures():
    """So neither training nor acting imports pandas, matplotlib or scipy."""
    found = modules()
    knowing = {
        name
        for name, path in found.items()
        for other in imports(path, found)
        if room(other) == "analysis" != room(name)
    }
    assert knowing <= {"walle.eval", "walle.__main__"}


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("walle.nets.mlp", "walle.learning.adam"),
        ("walle.learning.losses", "walle.algos.on_policy.ppo"),
        ("walle.algos.on_policy.ppo", "walle.agent.agent"),
        ("walle.algos.on_policy.ppo", "walle.envs.lanes"),
        ("walle.envs.lanes", "walle.config.schemas"),
        ("walle.sampling.slots", "walle.training"),
        ("walle.policy.evaluating", "walle.analysis.runs"),
        ("walle.launcher.runner", "walle.agent.run_directory"),
        ("walle.tuning.sweep", "walle.config.schemas"),
    ],
)
def test_an_import_turned_round_is_found(name, imported):
    assert {name, imported} <= modules().keys()
    assert misplaced(name, imported)


def test_rooms_are_small_enough_to_be_seen_at_once():
    top = {path.stem for path in ROOT.glob("walle/*.py")} - {"__init__", "__main__"}
    assert len(top) <= 10
    for directory in {path.parent for path in modules().values()} - {ROOT / "walle"}:
        assert len(list(directory.glob("*.py"))) <= LIMITS.get(directory.name, 16), directory
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert {name: n for name, n in lengths.items() if n > 600} == {}


def test_the_repository_holds_no_run_and_no_strange_directory():
    asked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode:
        pytest.skip("not a checkout of git")
    kept = asked.stdout.split("\0")
    assert {name.split("/")[0] for name in kept if "/" in name} == DIRECTORIES
    assert not [name for name in kept if name.endswith(("run.json", ".pt", ".onnx"))]


def test_only_config_and_what_hydra_plugs_in_know_omegaconf():
    knowing = {
        name
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("omegaconf")
    }
    assert {room(name) for name in knowing} <= {"config", "launcher", "tuning", ""}
