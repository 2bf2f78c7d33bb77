"""Names that the pages at the front door use exist: files, modules, words of the glossary."""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from walle import __version__
from walle.algos import REGISTRY
from walle.config import compose

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
    assert len(paths + linked) > 5
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []
    assert [link for link in linked if not ((ROOT / page).parent / link).exists()] == []


ALL_PAGES = tuple(
    str(file.relative_to(ROOT))
    for file in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("[!_]*.md")),
        *sorted((ROOT / "docs/notes").glob("*.md")),
    )
)


@pytest.mark.parametrize("page", ALL_PAGES)
def test_every_link_of_a_page_leads_to_a_file(page):
    linked = re.findall(r"\]\(([^)#:]+)[^):]*\)", prose(page))
    assert [link for link in linked if not ((ROOT / page).parent / link).exists()] == []


def printed_runs():
    """The overrides of each run that a page prints, with the first of several values."""
    for page in set(ALL_PAGES) - {
        "docs/own_settings.md",
        "docs/own_classes.md",
    }:  # tests/config/test_own_settings.py
        blocks = re.findall(r"^```(\S*)\n(.*?)^```", prose(page), re.MULTILINE | re.DOTALL)
        for block in (text for language, text in blocks if language in ("", "sh")):
            for line in block.replace("\\\n", " ").splitlines():
                start = re.match(r"(?:TOKEN=\S+ )?(?:walle run|python -m walle\.run) ", line)
                words = shlex.split(line[start.end() :], comments=True) if start else []
                if words and not {"-cn", "..."} & set(words) and "resume=" not in line:
                    yield tuple(re.sub(r"=(?!\[)([^,]+),.*", r"=\1", word) for word in words)


OWN = ("experiment=mine", "--config-dir", "algo=reinforce", ".name=")  # files of the reader's


@pytest.mark.parametrize("words", sorted(set(printed_runs())), ids=" ".join)
def test_every_run_that_a_page_prints_has_settings_that_exist(words, monkeypatch):
    monkeypatch.setenv("TOKEN", "abc")
    monkeypatch.setattr("walle.config.checks._has_wandb_login", lambda: True)
    if any(own in word for own in OWN for word in words):
        pytest.skip("needs a file that the page tells the reader to write")
    ours = [word for word in words if "=" in word and not word.startswith("hydra")]
    named = [
        re.sub(rf"^({'|'.join(REGISTRY)})\.", "algo.", word)  # one algorithm's own setting
        for word in ours
        if "(" not in word  # a range of a search has no first value
    ]
    config = compose(named)
    assert config.total_steps > 0


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
    assert [room.name for room in packages if f"`walle/{room.name}`" not in page] == []


def test_the_page_of_the_architecture_can_be_read_at_once():
    assert len(prose("docs/architecture.md").splitlines()) <= 200
    assert len(glossary()) <= 20


def test_pages_for_users_are_short():
    ours = {"docs/architecture.md", "docs/adding_an_algorithm.md"}
    pages = [page for page in ALL_PAGES if "/notes/" not in page and page not in ours]
    assert [page for page in pages if len(prose(page).splitlines()) >= 150] == []


def test_the_citation_names_this_version():
    citation = yaml.safe_load(prose("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    assert f"## {__version__} ({citation['date-released']})" in prose("CHANGELOG.md")
    assert f'Source = "{citation["repository-code"]}"' in prose("pyproject.toml")


def test_contributing_names_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z]+):", prose("Makefile"), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", prose("CONTRIBUTING.md"), re.MULTILINE)) <= targets
