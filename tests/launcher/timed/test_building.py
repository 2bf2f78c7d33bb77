"""What a sweep's jobs have in common is built once, before the first of them."""

from __future__ import annotations

import pickle
import re
import signal
from multiprocessing import Pipe
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from walle.launcher.allocation import Need
from walle.launcher.composing import Job
from walle.launcher.identity import Identity
from walle.launcher.jobs.fork_server import Ended
from walle.launcher.jobs.job import JobResult
from walle.launcher.planning import Plan
from walle.launcher.records import Manifest
from walle.launcher.resources import Resources
from walle.launcher.timed.building import build_first

ROOT = Path(__file__).resolve().parents[3]
CPU = Need()
BUILD = """
from pathlib import Path
def build(configs):
    assert not Path("ran.txt").exists(), "a job ran before"
    Path("built.txt").write_text(" ".join(f"{each.sampler.n}-{each.seed}" for each in configs))
    return "built it"
"""
WAIT = """
import time
from pathlib import Path
def build(configs):
    Path("began").touch()
    time.sleep(600)
"""


class Process:
    """A process that ends at once, or when it gets a signal."""

    def __init__(self, result, *, waits=False):
        self.link, self._other = Pipe()
        self._result, self.signals = result, []
        if not waits:
            self._other.send(None)

    def signal(self, signum):
        self.signals.append(signum)
        self._other.send(None)

    def result(self):
        result = None if self._result is None else pickle.dumps(self._result)
        return Ended(0, None, result, 0, [])


def job(num, need=CPU, **values):
    config = OmegaConf.create({"hydra": {}, **values})
    return Job("", config, Path(str(num)), Identity(num, (), "", values), need)


def built(*jobs, process=None, ending=()):
    """The requests of `build_first`."""
    asked = []

    def start(request):
        asked.append(request)
        return process or Process(JobResult("built it"))

    plan = Plan(list(jobs), {}, list(range(len(jobs))), [], Manifest((), {}, (), ()), True)
    build_first(plan, Resources([0, 1], ["a", "b"]), "some.function", "seed", start, ending)
    return asked


def test_one_configuration_for_each_setting_without_its_repeats(caplog):
    caplog.set_level("INFO")
    jobs = [job(2 * n + seed, n=n, seed=seed) for n in (0, 1) for seed in (0, 1)]
    (asked,) = built(*jobs)
    assert asked.configs == [{"n": 0, "seed": 0}, {"n": 1, "seed": 0}]
    assert (asked.function, asked.cores, asked.environ) == ("some.function", (0, 1), {})
    assert caplog.messages == ["built it"]


def test_jobs_on_gpus_have_a_process_that_sees_the_gpus():
    first, second = built(
        job(0, device="cpu"), job(1, Need(1, 2), device="cuda"), job(2, Need(1, 1), device="cuda")
    )
    assert [each.device for each in first.configs] == ["cpu"]
    assert first.environ == {"CUDA_VISIBLE_DEVICES": ""}
    assert second.environ == {"CUDA_VISIBLE_DEVICES": "a,b"}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, []),
        (JobResult(None), []),
        (JobResult(error="ValueError: why"), ["nothing was built before .* \\(ValueError: why\\)"]),
    ],
)
def test_a_failure_ends_nothing(result, said, caplog):
    caplog.set_level("INFO")
    built(job(0, n=1), process=Process(result))
    assert len(caplog.messages) == len(said)
    assert all(map(re.match, said, caplog.messages))


def test_ctrl_c_ends_the_process():
    process = Process(None, waits=True)
    built(job(0, n=1), process=process, ending=[signal.SIGTERM])
    assert process.signals == [signal.SIGINT]


def test_timed_jobs_start_when_all_is_built(app):
    (app.directory / "common.py").write_text(BUILD)
    settings = ["hydra.launcher.prepare=common.build", "hydra.launcher.check_cores=false"]
    code, output = app.run("sampler.n=1,2", *settings)
    assert code == 0, output
    assert output.count("built it") == 1
    assert sorted((app.directory / "built.txt").read_text().split()) == ["1-0", "2-0"]
    assert len(app.ran()) == 2


@pytest.mark.slow
def test_ctrl_c_while_building_starts_no_job_and_leaves_nothing(app):
    (app.directory / "common.py").write_text(WAIT)
    settings = ["hydra.launcher.prepare=common.build", "hydra.launcher.check_cores=false"]
    process = app.start("sampler.n=1,2", *settings)
    app.wait_until((app.directory / "began").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 128 + signal.SIGINT
    assert app.ran() == []
    assert "0 of 2 jobs are complete" in app.said()
    app.wait_until(lambda: not app.processes())
