from __future__ import annotations

from walle.launcher.composing import Composed, distinct
from walle.launcher.records import Identity
from walle.system.identity import config_hash, flatten


def composed(**values):
    flat = flatten(values)
    return Composed(None, values, Identity(-1, (), config_hash(flat), flat))


def test_jobs_that_differ_in_a_setting_of_hydra_are_not_the_same():
    job = composed(n=1)
    own = job.identity._replace(overrides=("n=1", "hydra.sweep.subdir=a"))
    assert distinct([job, job._replace(identity=own)])[1] == [0, 1]
