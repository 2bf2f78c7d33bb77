"""Sweeps of a small application: how jobs end, retries, limits, signals."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from walle.launcher.allocation import Allocator, Need, Resources
from walle.launcher.jobs import Verdict
from walle.launcher.planning import Job, Plan
from walle.launcher.records import Identity, Manifest
from walle.launcher.runner import Runner
from walle.launcher.settings import WalleLauncherConf
from walle.system.run_files import read_status, update_status


def test_ctrl_c_stops_cleanly_and_writes_the_index(app):
    launcher = app.start("job=0,1,2", "name=stopped", "sleep_s=30", "hydra.launcher.cores=[0]")
    app.wait_until(lambda: app.speaks(0))
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=20) == 130
    assert [row["state"] for row in app.index()] == ["interrupted", "pending", "pending"]
    end = app.said().splitlines()[-5:]
    assert end[0] == "3 of 3 jobs did not complete:"
    assert end[1] == "  #0 job=0: interrupted: stopped before its end (exit code 130)"
    assert end[3] == "  #1-2: not started: the sweep was stopped before"
    assert re.match(r"To resume: \S*python\S* ", end[4])
    assert end[4].endswith("hydra.sweep.dir=out hydra.launcher.resume=true")
    assert "left" not in app.said()
    assert app.processes() == []


@pytest.mark.slow
def test_a_second_ctrl_c_kills(app):
    launcher = app.start("job=0", "do=hang")
    app.wait_until(lambda: app.speaks(0))
    app.wait_until(lambda: len(app.processes()) == 5)  # with its child: it ignores SIGTERM now
    launcher.send_signal(signal.SIGTERM)
    app.wait_until(lambda: "a second Ctrl-C kills them" in app.said())
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=20) == 143
    assert app.index()[0]["state"] == "interrupted"
    assert app.processes() == []


@pytest.mark.slow
def test_retries_and_the_limit_on_failures(app):
    one = ("hydra.launcher.cores=[0]",)
    code, output = app.run("job=0,1,2", "do=raise", "hydra.launcher.retries=1", *one)
    assert code == 1
    assert app.ran() == [0, 0, 1, 1, 2, 2]
    assert [row["attempts"] for row in app.index()] == ["2", "2", "2"]
    code, output = app.run("job=0,1,2", "do=raise", "hydra.launcher.max_failures=1", *one)
    assert code == 1
    assert app.ran() == [0]
    assert "1 failed: the 2 jobs still waiting will not be started" in output
    assert "  #1-2: not started" in output
    code, output = app.run("job=0,1,2", "do=raise", "hydra.launcher.max_failures=2", *one)
    assert app.ran() == [0, 1]
    assert "#0 failed: ValueError: the cause (exit code 1)" in output
    assert "#1 failed: as #0 (exit code 1)" in output


@pytest.mark.slow
def test_a_broken_sweep_with_retries_ends_at_the_limit_on_failures(app):
    limits = ("hydra.launcher.retries=1", "hydra.launcher.max_failures=2")
    code, output = app.run("job=range(6)", "do=raise", "hydra.launcher.cores=[0]", *limits)
    assert code == 1
    assert app.ran() == [0, 0, 1, 1]
    assert "2 failed: the 4 jobs still waiting will not be started" in output


def test_a_sweep_whose_jobs_fail_alike_stops_after_three_with_one_message(app):
    text = (app.directory / "app.py").read_text()
    text = text.replace(
        'ValueError("the cause")', 'ValueError(f"cause {time.time()}\\nthe fix")', 1
    )
    (app.directory / "app.py").write_text(text)
    one = "hydra.launcher.cores=[0]"
    code, output = app.run("job=range(6)", "do=raise", one)
    assert code == 1
    assert app.ran() == [0, 1, 2]
    alike = "3 failed alike (hydra.launcher.max_failures=N allows more): the 3 jobs still waiting"
    assert alike in output
    assert output.count("    | the fix") == 1
    assert [output.count(f"#{n} failed: as #0 (exit code 1)") for n in (1, 2)] == [1, 1]
    code, output = app.run("job=range(4)", "do=raise", one, "hydra.launcher.max_failures=9")
    assert app.ran() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("others", ["nothing", "sys_exit"])
def test_a_sweep_whose_jobs_differ_runs_them_all(app, others):
    settings = ("hydra.launcher.cores=[0]", "hydra.launcher.order=given")
    app.run("job=range(4)", f"do={others},raise", *settings)
    assert len(app.ran()) == 8


@pytest.mark.slow
def test_no_job_is_tried_again_after_the_limit_on_failures(app):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    limits = ("hydra.launcher.retries=1", "hydra.launcher.max_failures=1")
    code, output = app.run("do=raise,raise_late", *limits)
    assert code == 1
    assert "2 of 2 ended" in output
    assert "3 of 2 ended" not in output
    assert [row["attempts"] for row in app.index()] == ["2", "1"], output


@pytest.mark.slow
def test_other_ends_of_a_job(app):
    code, output = app.run("job=0", "do=sys_exit")
    assert code == 1
    assert "SystemExit: no way" in output
    code, output = app.run("job=0", "do=sys_exit_2")
    assert code == 1
    assert "#0 (the only job): failed: app: the reason (exit code 2)" in output
    code, output = app.run("job=0", "do=memory")
    assert code == 1
    assert "MemoryError" in output


OWN_STATUS = """
        from walle.system.run_files import update_status
        directory = hydra.core.hydra_config.HydraConfig.get().runtime.output_dir
        trace = 'Traceback (most recent call last):\\n  File "robot.py", line 6, in step\\n'
        error = f"WorkerError: sampler-1 failed:\\n{trace}KeyError: 3\\nraised in lane 32\\n"
        update_status(Path(directory), state="failed", error=error)
        sys.exit(1)
"""


@pytest.mark.slow
def test_the_cause_of_a_failed_run_is_one_line_everywhere(app):
    text = (app.directory / "app.py").read_text()
    text = text.replace('\n        raise ValueError("the cause")\n', OWN_STATUS, 1)
    (app.directory / "app.py").write_text(text)
    code, output = app.run("do=raise")
    assert code == 1
    cause = "WorkerError: sampler-1 failed: KeyError: 3"
    assert output.count(f"failed: {cause} (exit code 1)") == 2  # when it ends, and in the list
    assert app.status(0)["error"] == app.index()[0]["error"] == cause
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_killed_supervisor_costs_its_job_and_nothing_else(app):
    launcher = app.start("job=0,1", "do=leave", "sleep_s=1.5", "hydra.launcher.cores=[0]")
    app.wait_until(lambda: app.speaks(0))
    app.wait_until(lambda: len(app.processes()) == 5)  # with the fork server and the child
    supervisor = parent_of(next(pid for pid in app.processes() if leads_a_job(pid)))
    os.kill(supervisor, signal.SIGKILL)
    assert launcher.wait(timeout=30) == 1
    assert [row["state"] for row in app.index()] == ["failed", "completed"]
    assert app.processes() == []


@pytest.mark.slow
def test_a_killed_fork_server_costs_no_job(app):
    launcher = app.start("job=0,1", "sleep_s=1.5", "hydra.launcher.cores=[0]")
    app.wait_until(lambda: app.speaks(0))
    job = next(pid for pid in app.processes() if leads_a_job(pid))
    os.kill(parent_of(parent_of(job)), signal.SIGKILL)
    assert launcher.wait(timeout=30) == 0, app.said()
    assert "starting another one" in app.said()
    assert [row["state"] for row in app.index()] == ["completed", "completed"]
    assert app.processes() == []


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def leads_a_job(pid):
    """A job leads a session, as the fork server above its supervisor does."""
    return os.getsid(pid) == pid and os.getsid(parent_of(pid)) == parent_of(parent_of(pid))


def test_a_closed_terminal_stops_cleanly(app):
    launcher, terminal = app.start_on_terminal("job=0,1", "sleep_s=30", "hydra.launcher.cores=[0]")
    app.wait_until(lambda: app.speaks(0))
    os.close(terminal)
    assert launcher.wait(timeout=20) == 128 + signal.SIGHUP
    assert [row["state"] for row in app.index()] == ["interrupted", "pending"]
    assert app.processes() == []


@pytest.mark.slow
def test_a_warning_reaches_the_jobs_and_ends_nothing(app):
    launcher = app.start("job=0", "do=warned", "sleep_s=2")
    app.wait_until(lambda: (app.directory / "ready").exists())
    for number in (signal.SIGUSR2, signal.SIGUSR1):
        launcher.send_signal(number)
    assert launcher.wait(timeout=30) == 0, app.said()
    assert (app.directory / "warned").exists()
    assert [row["state"] for row in app.index()] == ["completed"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_second_signal_of_a_terminal_or_slurm_kills_no_job(app, number):
    launcher = app.start("job=0", "do=save", "hydra.launcher.cores=[0]")
    app.wait_until(lambda: (app.directory / "ready").exists())
    for _ in range(2):
        launcher.send_signal(number)
        time.sleep(0.5)  # the launcher looks four times a second
    assert launcher.wait(timeout=30) == 128 + number
    assert (app.directory / "saved").exists()


@pytest.mark.slow
def test_returned_values_that_cannot_travel_fail_the_job_alone(app):
    text = (app.directory / "app.py").read_text()
    text = text.replace("return cfg.job * 10", "return iter(sys.stdin) if cfg.job else {1, 2}")
    (app.directory / "app.py").write_text(text)
    code, output = app.run("job=0,1")
    assert code == 1
    assert [row["state"] for row in app.index()] == ["completed", "failed"]
    assert "#0 returned a set, which JSON cannot hold" in output
    assert "#1 job=1: failed: PicklingError: Cannot pickle" in output


def test_a_worker_does_not_run_a_job_again_that_completed_before_its_worker_was_killed(
    tmp_path, monkeypatch
):
    class Reclaimed(Allocator):
        def next(self):
            grant = super().next()
            return grant and grant._replace(again=True)

    job = Job("", OmegaConf.create(), tmp_path, Identity(0, (), "hash", {}), Need())
    plan = Plan([job], {}, [0], [], Manifest((), {}, (), ()), exclusive=False)
    update_status(tmp_path, state="completed", config_hash="hash", return_value=1.5)
    before = read_status(tmp_path)
    allocator = Reclaimed([Need()], [0], Resources([0], []))
    server = SimpleNamespace(start=pytest.fail)
    monkeypatch.setattr("walle.launcher.runner.ForkServer", lambda *_: server)
    runner = Runner(plan, allocator, WalleLauncherConf(), b"", -1)
    assert runner.run([], []) == {0: Verdict("completed")}
    assert read_status(tmp_path) == before
