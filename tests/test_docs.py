"""Names that the pages at the front door use exist: files, modules, words of the glossary."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from walle import __version__

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/architecture.md")
FOLDERS = r"(?:walle|analysis|benchmarks|conf|docs|examples|hydra_plugins|sweeps|tests)"
A_PATH = re.compile(rf"(?<![\w/.]){FOLDERS}/[\w./-]*")


@cache
def prose(page):
    return (ROOT / page).read_text()


def named_in_code(page):
    return re.findall(r"`([^`\n]+)`", prose(page))


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page):
    paths = [path for code in named_in_code(page) for path in A_PATH.findall(code)]
    linked = re.findall(r"\]\(([^)#:]+)\)", prose(page))
    assert len(paths) > 5
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []
    assert [link for link in linked if not ((ROOT / page).parent / link).exists()] == []


@cache
def source():
    files = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split()
    product = ("walle/", "analysis/", "hydra_plugins/")
    return "\n".join((ROOT / file).read_text() for file in files if file.startswith(product))


def names():
    """Names of Python things in the architecture page, such as `PolicyQueue.put`."""
    whole = [code for code in named_in_code("docs/architecture.md") if "/" not in code]
    return {
        part
        for code in whole
        if re.fullmatch(r"[A-Za-z_]\w*(\.[a-z_]\w*)*(\(round\))?", code)
        for part in re.findall(r"[A-Za-z_]\w+", code)
    }


def test_every_name_of_the_code_exists():
    assert len(names()) > 40
    text = source() + "\n".join(str(path) for path in (ROOT / "walle").rglob("*.py"))
    known = set(re.findall(r"\w+", text))
    assert names() - known - {"null", "NAME"} == set()


def glossary():
    section = prose("docs/architecture.md").partition("## Glossary")[2].partition("\n## ")[0]
    return re.findall(r"\*\*(.+?)\*\*", section)


def test_the_words_of_the_glossary_are_the_code_s():
    words = glossary()
    assert {"lane", "round", "slot", "snapshot", "lag"} <= set(words)
    text = re.sub(r"\s+", " ", source().lower())
    assert [word for word in words if not re.search(rf"\b{re.escape(word)}(e?s)?\b", text)] == []


def test_every_package_of_walle_is_in_the_table_of_rooms():
    packages = {file.parent for file in (ROOT / "walle").glob("*/__init__.py")}
    page = prose("docs/architecture.md")
    assert [room.name for room in packages if f"`walle/{room.name}`" not in page] == ["processes"]
    assert "`processes/`" in page


def test_the_citation_names_this_version():
    citation = yaml.safe_load(prose("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    assert f"## {__version__} ({citation['date-released']})" in prose("CHANGELOG.md")
    assert f'Source = "{citation["repository-code"]}"' in prose("pyproject.toml")


def test_contributing_names_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z]+):", prose("Makefile"), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", prose("CONTRIBUTING.md"), re.MULTILINE)) <= targets
