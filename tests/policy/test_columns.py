"""docs/files.md explains every column that a run of any algorithm writes, and no other."""

import re
from pathlib import Path

import pytest

from tests.conftest import read
from tests.test_site import columns
from walle.algos import REGISTRY

PAGE = Path(__file__).resolve().parents[2] / "docs" / "files.md"
OFF_POLICY = ("ddpg", "dqn", "sac", "td3", "xqc")
ON_POLICY = tuple(name for name in REGISTRY if name not in OFF_POLICY)
GROUPS = {"on-policy": ON_POLICY, "off-policy": OFF_POLICY}


def of_algorithms():
    """The algorithms that have each column, by column, as the page says."""
    text = PAGE.read_text().partition("| column | algorithms |")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w, -]+) \|", text, re.MULTILINE)
    return {
        column: {name for word in who.split(", ") for name in GROUPS.get(word, (word,))}
        for column, who in rows
    }


@pytest.mark.parametrize("algorithm", REGISTRY)
def test_every_column_of_every_algorithm_is_explained(algorithm, trained):
    directory, explained = trained(algorithm), of_algorithms()
    found = set(read(directory / "iterations.csv")[0])
    assert found <= columns("iterations.csv")
    own = {column for column, names in explained.items() if algorithm in names}
    assert found & explained.keys() == own


def test_the_other_files_too(trained):
    directory = trained("ppo")
    for name in ("timing", "eval"):
        assert set(read(directory / f"{name}.csv")[0]) == columns(f"{name}.csv")
    headings = re.findall(r"^\| (`.+?) \|", PAGE.read_text().partition("## iter")[0], re.MULTILINE)
    files = {name.rstrip("/") for cell in headings for name in re.findall(r"`(.+?)`", cell)}
    assert {path.name for path in directory.iterdir()} <= files
