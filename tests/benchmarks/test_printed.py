"""Every benchmark that a page prints takes the options it is printed with.

tests/benchmarks/test_tiny.py and its neighbours run the benchmarks themselves.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import answers, collect, end_to_end, learn, off_policy, race
from benchmarks.options import chosen
from tests.printed import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / "docs/notes").glob("*.md"),
)
PRINTED = sorted(
    {
        command
        for page in PAGES
        for command in commands(page.read_text(), r"python (benchmarks/(?!NAME)\w+\.py.*)")
    }
)
RACES = re.compile(r"benchmarks/(collect|end_to_end|learn|off_policy)\.py")


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch):
    """Some commands are for a larger machine than this one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


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


def everyone(options, script):
    """The names of a benchmark's contestants, as if the peers were installed."""
    cores, nowhere = [0, 1], Path("nowhere")
    if script == "collect":
        return [each.name for each in collect.everyone("Hopper-v5", cores, options, nowhere)]
    if script == "end_to_end" and options.what == "rounds":
        return [each.name for each in end_to_end.everyone(options, cores, nowhere)]
    if script == "end_to_end":
        return [each.name for each in race.everyone(options, cores)]
    every = argparse.Namespace(**{**vars(options), "only": None})
    if script == "learn":
        found = answers.contestants(every, learn.OWN, learn.BASELINE, learn.OTHERS)
    else:
        found = answers.contestants(every, off_policy.OWN, off_policy.BASELINE)
    return [each.name for each in found]


@pytest.mark.parametrize("command", [each for each in PRINTED if RACES.match(each)])
def test_every_printed_contestant_takes_part(command, monkeypatch):
    monkeypatch.setattr(answers, "why_absent", lambda *_: None)
    script, *words = shlex.split(command, comments=True)
    script = Path(script).stem
    options = importlib.import_module(f"benchmarks.{script}").arguments(words)
    names = everyone(options, script)
    assert chosen(names, options.only)
    with pytest.raises(SystemExit, match="nobody of that name"):
        chosen(names, ["nobody"])


def test_pages_print_most_benchmarks():
    assert len({command.split()[0] for command in PRINTED}) >= 12
