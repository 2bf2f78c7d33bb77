"""Sweeps of a small application on a real Ray cluster of two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from tests.launcher.conftest import ROOT
from tests.sampling.cluster.processes import wait_until
from tests.sampling.cluster.test_ray import TINY, results
from walle.config import compose
from walle.launcher.workers.submission import submissions
from walle.training import train

pytestmark = pytest.mark.ray
ACTOR = "ray::Supervisor"
NAMED = "import ray; ray.init('{}'); print(ray.util.list_named_actors(all_namespaces=True))"
PROGRAM = "walle.launcher.workers.worker"


@pytest.fixture(scope="module")
def cluster():
    """A head without cores, and two nodes with one core and, as Ray is told, one GPU each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80_000_000}
    found = Cluster(True, head_node_args={**small, "num_cpus": 0, "include_dashboard": False})
    found.add = lambda: found.add_node(**small, num_cpus=1, num_gpus=1)
    try:
        for _ in range(2):
            found.add()
        yield found
        asked = [sys.executable, "-c", NAMED.format(found.address)]
        assert subprocess.run(asked, capture_output=True, text=True).stdout == "[]\n"
    finally:
        found.shutdown()


@pytest.fixture
def on_ray(cluster):
    """The settings of a sweep on the cluster."""
    keys = {"address": cluster.address, "heartbeat_s": 0.3}
    return ("hydra.launcher.backend=ray", *(f"hydra.launcher.ray.{k}={v}" for k, v in keys.items()))


def processes(word, directory):
    """The processes of a test with a word in their command line.

    Other checkouts may be tested at the same time: those of a test run in its directory, and those
    of the cluster where the tests were started.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(word in part for part in process.cmdline()):
                found.append(process)
    return [process for process in found if _is_under(process, (str(directory), os.getcwd()))]


def _is_under(process, places):
    with suppress(psutil.Error):
        return process.cwd() in places
    return False


@pytest.fixture(autouse=True)
def no_process_left(tmp_path):
    """Ray keeps idle processes; the actors of workers and their programs must have ended."""
    yield
    wait_until(lambda: not processes(PROGRAM, tmp_path) and not processes(ACTOR, tmp_path), 30)


def both_speak(app):
    return app.speaks(0) and app.speaks(1)


def test_a_sweep_over_two_nodes(app, on_ray):
    command, three = ("job=range(6)", "sleep_s=0.5", "+device=cuda"), ("workers=3", "gpus=1")
    code, output = app.run(*command, *on_ray, *(f"hydra.launcher.ray.{key}" for key in three))
    assert code == 0, output
    assert app.ran() == list(range(6))
    assert len(set(app.owners().values())) == 2
    assert "started 3 workers on Ray: 1 core of " in output
    assert "1 worker will start when a node of the cluster has 1 free core" in output
    assert "6 of 6 jobs are complete" in output
    cores = {(app.owners()[job], str(app.status(job)["cores"])) for job in range(6)}
    assert len(cores) == 2 == len({core for _, core in cores})  # one each, though one host has both
    assert [app.status(job)["gpus"] for job in range(6)] == [["0"]] * 6
    found, untimed = app.index(), ("num", "job", "state", "return_value", "attempts", "overrides")
    code, output = app.run(*command, "hydra.sweep.dir=local", "hydra.launcher.gpus=[0]")
    assert code == 0, output
    app.out = app.directory / "local"
    for here, there in zip(app.index(), found, strict=True):
        assert [here.get(key) for key in untimed] == [there.get(key) for key in untimed]


def test_a_run_in_a_worker_has_the_bits_of_a_run_here(tmp_path, on_ray):
    tiny = (*TINY, "env=cartpole", "sampler=serial", "seed=3")
    done = subprocess.run(
        [sys.executable, "-m", "walle.run", "-m", *tiny, "name=tiny", *on_ray],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    train(compose(list(tiny)), tmp_path / "here")
    assert results(tmp_path / "multirun/tiny/0") == results(tmp_path / "here")


def test_the_jobs_of_a_killed_worker_are_finished(app, on_ray):
    launcher = app.start("job=range(2)", "do=wait", "name=n", *on_ray)
    wait_until(lambda: both_speak(app))
    killed = app.owners()[0]
    os.kill(int(killed.rpartition("-")[2]), signal.SIGKILL)
    (app.directory / "go").touch()
    assert launcher.wait(timeout=500) == 0, app.said()
    assert app.states() == ["completed"] * 2
    assert app.owners()[0] not in (killed, "")
    assert app.index()[0]["attempts"] == "2"
    assert "changed hands: its worker was stopped or vanished" in app.said()


def test_workers_go_on_without_the_command(app, on_ray):
    command = ("job=range(4)", "do=wait", "sampler.n=null", "name=n", *on_ray)  # all cores each
    code, output = app.run(*command, "hydra.launcher.wait=false")
    assert code == 0, output
    assert f"`walle sweep status {app.out.name}` shows them" in output
    wait_until(lambda: sum(app.speaks(job) for job in range(4)) == 2)
    launcher = app.start(*command)
    wait_until(lambda: "the workers of an earlier command" in app.said())
    launcher.kill()
    launcher.wait()

    asked = [sys.executable, "-m", "walle.sweep", "status", str(app.out)]
    hidden = app.directory / "hidden"
    hidden.mkdir()
    (hidden / "ray.py").write_text("raise ImportError('status must not need Ray')")
    environ = os.environ | {"PYTHONPATH": f"{hidden}:{ROOT}"}
    shown = subprocess.run(asked, capture_output=True, text=True, check=True, env=environ).stdout
    assert "running" in shown
    assert "lost" not in shown
    assert "workers on Ray: 2 running" in shown
    assert "To resume" not in shown

    launcher = app.start(*command)
    wait_until(lambda: "the workers of an earlier command" in app.said())
    (app.directory / "go").touch()
    assert launcher.wait(timeout=500) == 0, app.said()
    assert app.ran() == [0, 1, 2, 3]
    assert len(submissions(app.out)) == 1
    assert app.states() == ["completed"] * 4


def test_ctrl_c_ends_the_workers_and_their_jobs(app, on_ray):
    launcher = app.start("do=save,hang", "name=n", *on_ray)
    wait_until(lambda: both_speak(app) and (app.directory / "ready").exists())
    launcher.send_signal(signal.SIGUSR1)
    wait_until(lambda: (app.directory / "warned").exists())
    launcher.send_signal(signal.SIGINT)
    wait_until(lambda: (app.directory / "saved").exists())
    assert launcher.poll() is None  # one of the jobs does not end
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=500) == 128 + signal.SIGINT, app.said()
    assert app.processes() == []
    assert app.states() == ["interrupted"] * 2
    assert "stopping: the workers end their jobs" in app.said()
    assert "To resume: " in app.said()
    assert "not started" not in app.said()


def test_a_directory_that_a_node_does_not_see_is_refused(app, on_ray):
    directory = "/proc/self/cwd/out"  # another one in every process
    code, output = app.run("job=0", "name=n", f"hydra.sweep.dir={directory}", *on_ray)
    assert code == 2, output
    assert "does not see what the sweep's directory /proc/self/cwd/out holds here" in output
    assert "Traceback" not in output
    assert app.ran() == []


def test_a_ray_of_its_own_ends_with_the_command(app):
    own = ("hydra.launcher.backend=ray", "hydra.launcher.ray.address=null")
    code, output = app.run("job=range(2)", *own)
    assert code == 0, output
    assert app.ran() == [0, 1]
    assert "2 of 2 jobs are complete" in output
    wait_until(lambda: app.processes() == [], 20)


def test_an_own_ray_ends_when_the_command_is_killed(app):
    own = ("hydra.launcher.backend=ray", "hydra.launcher.ray.address=null")
    launcher = app.start("job=0", "sleep_s=600", *own)
    wait_until(lambda: app.speaks(0))
    programs = processes(PROGRAM, app.directory)
    jobs = [child for program in programs for child in program.children(recursive=True)]
    launcher.kill()
    launcher.wait()
    assert len(jobs) > 2
    assert psutil.wait_procs([*programs, *jobs], timeout=30)[1] == []


def test_no_cluster_is_one_line(app):
    nobody = ("hydra.launcher.backend=ray", "hydra.launcher.ray.address=127.0.0.1:1")
    code, output = app.run("job=0", *nobody)
    assert code == 2
    assert "hydra.launcher.ray.address=127.0.0.1:1: no connection to Ray" in output
    assert "Traceback" not in output


def test_the_jobs_of_a_lost_node_are_finished(app, on_ray, cluster):
    launcher = app.start("job=range(2)", "do=wait", "name=n", *on_ray)
    wait_until(lambda: both_speak(app))
    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
    wait_until(
        lambda: len(processes(PROGRAM, app.directory)) == 1
    )  # Ray starts it again when a core is free
    (app.directory / "go").touch()
    assert launcher.wait(timeout=500) == 0, app.said()
    assert app.states() == ["completed"] * 2
    assert "changed hands: its worker was stopped or vanished" in app.said()
