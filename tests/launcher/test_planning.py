from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from walle.launcher.allocation import Need
from walle.launcher.composing import Job
from walle.launcher.identity import Identity
from walle.launcher.planning import Plan, plan_lines, quoted
from walle.launcher.records import Manifest
from walle.launcher.resources import Resources


def test_a_plan_in_words():
    jobs = [
        Job(f"seed={n}", None, Path(f"out/{n}"), Identity(n, (), "", {}), Need(cores))
        for n, cores in enumerate([1, 2, 3, None])
    ]
    plan = Plan(jobs, {0: 1.5}, [2, 1, 3], [1], Manifest((), {}, (), ()), exclusive=False)
    assert plan_lines(plan, Resources([0, 1], []), Path("out"), "on cores 0-1") == [
        "4 jobs in out, side by side where cores allow, on cores 0-1",
        "skip  #0 (done, returned 1.5): seed=0",
        "run   #2 on 3 core(s) (oversubscribed) in out/2: seed=2",
        "run   #1 from its checkpoint on 2 core(s) in out/1: seed=1",
        "run   #3 on all cores in out/3: seed=3",
    ]


def test_a_plan_in_blocks():
    jobs = [
        Job(f"seed={n}", None, Path(f"out/{n}"), Identity(n, (), "", {}), Need(1), block=n)
        for n in range(2)
    ]
    manifest = Manifest((), {"repeat": "seed"}, (), ())
    plan = Plan(jobs, {}, [0, 1], [], manifest, exclusive=True)
    assert plan_lines(plan, Resources([0], []), Path("out"), "on cores 0")[0] == (
        "2 jobs in out, one at a time, on cores 0, in 2 blocks, each a value of seed in "
        "an order of its own"
    )


@pytest.mark.parametrize(
    "directory", ["multirun/2026-01-01/12-00-00", "/a b/c", "it's=1", "a,b", "été", "x#1", "[0]"]
)
def test_a_directory_is_quoted_for_hydra(directory):
    (override,) = OverridesParser.create().parse_overrides([f"key={quoted(directory)}"])
    assert not override.is_sweep_override()
    assert override.value() == directory
