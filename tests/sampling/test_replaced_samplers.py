"""A sampler that dies or is silent is replaced, and the run ends as if nothing had happened."""

import json
import os
import signal
import threading
import time

import psutil
import pytest

from tests.conftest import read
from walle.errors import WorkerError

FAILING = (
    "env=gym",
    "env.id=tests.toy:FailsOnce-v0",
    "sampler.n=2",
    "total_steps=2048",
    "algo.minibatch_size=64",
)
CHEETAH = ("env=halfcheetah", "sampler.n=2", "total_steps=4096")


def learned(directory):
    """The rows of all files without times."""
    found = {}
    for name in ("iterations", "episodes"):
        rows = read(directory / f"{name}.csv")
        found[name] = [
            {k: v for k, v in row.items() if not k.endswith(("_s", "_share"))} for row in rows
        ]
    return found


def replacements(directory):
    return json.loads((directory / "status.json").read_text()).get("replacements", [])


def workers():
    """The samplers: children of the fork server."""
    return [p for p in psutil.Process().children(recursive=True) if p.ppid() != os.getpid()]


class Disturber(threading.Thread):
    """Sends a signal to a sampler once the run has written so many iterations."""

    def __init__(self, directory, number, iterations=3):
        super().__init__()
        self._path, self._number, self._after = directory / "iterations.csv", number, iterations
        self.start()

    def run(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self._path.exists() and self._path.read_text().count("\n") > self._after:
                workers()[0].send_signal(self._number)
                return
            time.sleep(0.005)


@pytest.mark.parametrize(
    "mode", ["sampler.max_lag=0", pytest.param("sampler.max_lag=1", marks=pytest.mark.slow)]
)
def test_a_killed_sampler_leaves_no_trace_in_the_results(run, tmp_path, mode):
    _, unbroken = run(*CHEETAH, mode)
    disturber = Disturber(tmp_path / "run1", signal.SIGKILL)
    _, directory = run(*CHEETAH, mode)
    disturber.join()
    assert learned(directory) == learned(unbroken)
    (found,) = replacements(directory)
    assert found["sampler"] in ("sampler-0", "sampler-1")
    assert "SIGKILL" in found["why"]
    assert found["exact"]


@pytest.mark.slow
def test_a_stopped_sampler_is_named_and_replaced(run, tmp_path, capfd):
    _, unbroken = run(*CHEETAH)
    disturber = Disturber(tmp_path / "run1", signal.SIGSTOP)
    _, directory = run(*CHEETAH, "sampler.timeout_s=3", "logger.progress=lines")
    disturber.join()
    assert learned(directory) == learned(unbroken)
    (found,) = replacements(directory)
    assert found["sampler"] in capfd.readouterr().out
    assert "has sent no rollout for" in found["why"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("hang", marks=pytest.mark.slow), "exit"])
def test_a_sampler_that_hangs_or_leaves_in_a_step_is_replaced(run, tmp_path, how):
    marker = tmp_path / "failed"
    marker.touch()
    kwargs = f"+env.kwargs={{how: {how}, marker: {marker}}}"
    _, unbroken = run(*FAILING, kwargs)
    marker.unlink()
    _, directory = run(*FAILING, kwargs, "sampler.timeout_s=3")
    assert learned(directory) == learned(unbroken)
    (found,) = replacements(directory)
    assert ("env_step" if how == "hang" else "exited with 7") in found["why"]


@pytest.mark.slow
def test_a_fault_that_comes_back_ends_the_run_after_a_checkpoint(run, tmp_path):
    with pytest.raises(WorkerError, match=r"exited with 7.*round \d+ failed 3 times"):
        run(*FAILING, "+env.kwargs={how: exit, at: 120}", "sampler.restarts=10")
    assert (tmp_path / "run0" / "checkpoints" / "last.pt").exists()


def test_no_replacement_is_made_where_none_is_allowed(run):
    with pytest.raises(WorkerError, match=r"sampler.restarts=0 allows no further replacement"):
        run(*FAILING, "+env.kwargs={how: exit}", "sampler.restarts=0")
