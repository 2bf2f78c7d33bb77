"""Every benchmark that a page prints takes the options it is printed with.

tests/benchmarks/test_tiny.py and its neighbours run the benchmarks themselves.
"""

from __future__ import annotations

import argparse
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from tests.printed import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PRINTED = sorted(
    {
        command
        for page in PAGES
        for command in commands(page.read_text(), r"python (benchmarks/(?!NAME)\w+\.py.*)")
    }
)


class Understood(Exception):
    """Raised in place of measuring, with the options."""


@pytest.mark.parametrize("command", PRINTED)
def test_every_printed_benchmark_takes_its_options(command, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def parse_alone(*arguments, **named):
        raise Understood(parse(*arguments, **named))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_alone)
    script, *options = shlex.split(command, comments=True)
    monkeypatch.setattr(sys, "argv", [script, *options])
    monkeypatch.syspath_prepend(str(ROOT))
    with pytest.raises(Understood):
        runpy.run_path(str(ROOT / script), run_name="__main__")


def test_pages_print_most_benchmarks():
    assert len({command.split()[0] for command in PRINTED}) >= 12
