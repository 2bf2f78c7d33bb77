"""How many workers a sweep gets from Slurm, and with how many cores."""

from pathlib import Path

import pytest

from walle.launcher.allocation import Need
from walle.launcher.planning import Job, Plan
from walle.launcher.records import Identity, Manifest
from walle.launcher.settings import SlurmConf, WalleLauncherConf
from walle.launcher.workers.backend import SlurmBackend


def plan(cores, swept=("seed",), *, exclusive=False, jobs=4, lags=(0,)):
    names = [Identity(n, (), "", {}) for n in range(jobs)]
    values = [{"sampler": {"max_lag": lags[n % len(lags)]}} for n in range(jobs)]
    found = [
        Job(f"seed={n}", {}, Path(str(n)), names[n], Need(cores), values=values[n])
        for n in range(jobs)
    ]
    return Plan(found, {}, list(range(jobs)), [], Manifest(swept, {}, (), ()), exclusive)


def workers(of, exclusive=None, **settings):
    backend = object.__new__(SlurmBackend)
    backend._slurm = SlurmConf(**settings)
    backend._settings = WalleLauncherConf(backend="slurm", exclusive=exclusive)
    return backend._size(of)


@pytest.mark.parametrize(
    ("of", "settings", "expected"),
    [
        (plan(1), {}, (4, 1)),
        (plan(1), {"cores": 3}, (2, 3)),
        (plan(1), {"workers": 1}, (1, 1)),
        (plan(None, exclusive=True), {}, (4, None)),  # each takes a whole node
        (plan(None, exclusive=True), {"exclusive": True}, (1, None)),
        (plan(2, ("sampler.n", "seed"), exclusive=True), {}, (1, None)),  # times are compared
        (plan(2, ("algo",), exclusive=True, lags=(0, 1)), {}, (1, None)),  # set by a group
        (plan(2, ("sampler.n", "seed"), exclusive=True), {"workers": 3}, (3, None)),
    ],
)
def test_workers_and_their_cores(of, settings, expected):
    assert workers(of, **settings) == expected
