"""A search with a pruner on a real Slurm."""

from __future__ import annotations

import json

import pytest

from tests.tuning.test_end_to_end import app as app  # the fixture
from tests.tuning.test_end_to_end import rows, started

pytestmark = pytest.mark.slurm
ON_SLURM = ("hydra.launcher.backend=slurm", "hydra.launcher.slurm.heartbeat_s=0.3")


def test_two_workers_stop_the_seeds_of_a_pruned_trial(app, cluster):
    settings = ("x=0.1,0.9", "behind=true", "name=mine", "hydra.sweeper.sampler=grid")
    search = ("hydra.sweeper.pruner={name: threshold, lower: 5}", "hydra.sweeper.seeds=2")
    code, said = app.run(*settings, *search, *ON_SLURM, "hydra.launcher.slurm.workers=2")
    assert code == 0, said
    trials = rows(app.directory / "mine" / "trials.csv")
    assert {trial["x"]: trial["state"] for trial in trials} == {"0.1": "complete", "0.9": "pruned"}
    for job in next(trial["jobs"].split() for trial in trials if trial["x"] == "0.9"):
        directory = app.directory / "mine" / job
        assert json.loads((directory / "status.json").read_text())["state"] == "pruned"
        # A seed ends by itself, in good order, unless it was stopped before its start.
        assert (directory / "saved").exists() == (f"mine/{job}" in started(app))
