"""Sweeps of a small application: settings, checks, cores, threads, GPUs, other sweepers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from pathlib import Path

import pytest

from walle.launcher.allocation import Need
from walle.launcher.launch import Launch, repeats_text
from walle.launcher.planning import Job, Plan
from walle.launcher.records import Identity, Manifest
from walle.launcher.workers.backend import LOST


@pytest.mark.slow
def test_nothing_is_left_of_a_sweep_that_never_began(app):
    for wrong in (
        "+hydra.launcher.retries=1",
        "hydra.launcher.dry_run=true",
        "no_such_key=1",
        "no_such_key=1,2",  # which Hydra refuses after it has written multirun.yaml
    ):
        app.run("job=0,1", wrong)
        assert not app.out.exists(), wrong
    (app.directory / "rules.py").write_text("def check(cfg):\n    raise ValueError('never')\n")
    for check in ("rules.check", "rules:check"):
        code, said = app.run("job=0,1", f"hydra.launcher.validate={check}")
        assert (code, "never" in said) == (2, True)
    assert not app.out.exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "order=sorted",
            "hydra.launcher.order='sorted' is unknown; choose one of: blocks, given, interleaved",
        ),
        ("timeout_s=0", "hydra.launcher.timeout_s=0.0 must be positive"),
        ("cores=[4096]", "hydra.launcher.cores names [4096]"),
        ("validate=app.no_such", "hydra.launcher.validate='app:no_such': app has no no_such"),
    ],
)
def test_wrong_settings_fail_before_anything_starts(app, setting, message):
    code, output = app.run("job=0,1", f"hydra.launcher.{setting}")
    assert code == 2
    assert message in output
    assert "Traceback" not in output
    assert app.ran() == []


@pytest.mark.slow
def test_the_application_may_refuse_configs_before_any_job_starts(app):
    (app.directory / "rules.py").write_text(
        "def check(cfg):\n"
        "    if cfg.job > 1 or not cfg.do: raise ValueError(f'job={cfg.job} is above 1')\n"
    )
    code, output = app.run("job=0,1,2,3", "hydra.launcher.validate=rules.check")
    assert code == 2
    assert "job=2: job=2 is above 1" in output
    assert "job=3: job=3 is above 1" in output
    code, output = app.run("job=0,1,2,3", "do=${z}", "hydra.launcher.validate=rules.check")
    assert (code, output.count("not found")) == (2, 1)  # what is wrong in every job
    assert app.ran() == []


def test_two_jobs_may_not_write_to_one_directory(app):
    code, output = app.run("job=0,1", "hydra.sweep.subdir=same")
    assert code == 2
    assert "#0 (job=0) and #1 (job=1) would both write to out/same" in output
    assert app.ran() == []


def test_a_job_may_not_write_into_the_directory_of_another(app):
    code, output = app.run("do=a,a/b", "hydra.sweep.subdir=${do}")
    assert code == 2
    assert "#1 (do=a/b) would write to out/a/b, inside the directory of #0 (do=a)" in output
    assert app.ran() == []


def test_jobs_side_by_side_have_disjoint_cores_and_the_same_threads(app):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    assert app.run("job=0,1", "do=cores")[0] == 0
    told = [(app.out / str(num) / "cores.txt").read_text().split() for num in (0, 1)]
    for job, child, threads in told:
        assert job == child  # what a job starts is pinned with it
        assert job.isdigit()
        assert threads == "1"
    assert told[0][0] != told[1][0]
    assert app.processes() == []
    settings = json.loads((app.out / "manifest.json").read_text())["settings"]
    assert settings["threads"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.slow
def test_the_sweeps_thread_settings_replace_the_users(app):
    code, _ = app.run("job=0", "do=cores", "hydra.launcher.threads=3", OMP_NUM_THREADS="7")
    assert code == 0
    assert (app.out / "0" / "cores.txt").read_text().split()[2] == "3"


@pytest.mark.slow
def test_a_sweep_over_sampler_n_never_overlaps_two_jobs(app):
    unchecked = "hydra.launcher.check_cores=false"
    code, output = app.run("sampler.n=1,2,99", "seed=0,1", "sleep_s=0.1", unchecked)
    assert code == 0, output
    rows = app.index()
    spans = sorted((row["started"], row["ended"]) for row in rows)
    for (_, ended), (started, _) in itertools.pairwise(spans):
        assert ended <= started
    # in blocks: every n of the first seed, then every n of the second
    in_time = [row["seed"] for row in sorted(rows, key=lambda row: row["started"])]
    assert in_time == ["0", "0", "0", "1", "1", "1"]
    marked = {row["sampler.n"] for row in rows if row["oversubscribed"] == "True"}
    assert "99" in marked
    assert "1" not in marked
    assert output.count("need more than") == 1
    assert all(row["load_start"] and row["load_end"] for row in rows)


TWICE = """
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class TwiceSweeper(BasicSweeper):
    def sweep(self, arguments):
        jobs = [["job=1"], ["job=2"], ["job=1"], ["rate=5e-1", "job=1"]]
        results = self.launcher.launch(jobs, initial_job_idx=0)
        print("told:", [(result.overrides, result.return_value) for result in results])
"""


def test_jobs_with_the_same_configuration_run_once(app):
    code, output = app.run("seed=3,3", "job=1,2")
    assert code == 0, output
    assert app.ran() == [1, 2]
    line = "2 of 4 jobs repeat the configuration of another job, and are not run a second time: "
    assert line + "seed=3 job=1, seed=3 job=1; seed=3 job=2, seed=3 job=2\n" in output
    assert "2 jobs in out" in output
    assert [row["directory"] for row in app.index()] == ["0", "1"]


@pytest.mark.slow
def test_a_sweeper_gets_the_same_result_for_every_repeat_in_its_own_order(app):
    (app.directory / "hydra_plugins").mkdir()
    (app.directory / "hydra_plugins" / "twice.py").write_text(TWICE)
    with (app.directory / "config.yaml").open("a") as config:
        config.write("rate: 0.5\n")
    code, output = app.run("hydra.sweeper._target_=hydra_plugins.twice.TwiceSweeper")
    assert code == 0, output
    told = [(["job=1"], 10), (["job=2"], 20), (["job=1"], 10), (["rate=5e-1", "job=1"], 10)]
    assert f"told: {told}" in output
    assert app.ran() == [1, 2]


@pytest.mark.slow
def test_jobs_whose_configuration_contains_their_number_are_not_the_same(app):
    with (app.directory / "config.yaml").open("a") as config:
        config.write("number: ${hydra:job.num}\n")
    assert app.run("seed=3,3")[0] == 0
    assert app.ran() == [0, 0]


@pytest.mark.slow
def test_a_gpu_is_handed_out_by_the_launcher_alone(app):
    with (app.directory / "config.yaml").open("a") as config:
        config.write("device: cuda\n")
    text = (app.directory / "app.py").read_text()
    text = text.replace("speaks", "speaks {os.environ['CUDA_VISIBLE_DEVICES']}")
    (app.directory / "app.py").write_text(text)
    code, output = app.run("job=0,1", CUDA_VISIBLE_DEVICES="")
    assert code == 2
    assert "#0 (job=0) asks for a GPU with device=cuda, and the sweep has none" in output
    code, output = app.run("job=0,1", "device=cuda:1", CUDA_VISIBLE_DEVICES="5,6")
    assert code == 2
    assert "use device=cuda" in output
    code, output = app.run("job=0,1", "sleep_s=1", CUDA_VISIBLE_DEVICES="5,6")
    assert code == 0, output
    seen = {(app.out / str(num) / "output.log").read_text() for num in (0, 1)}
    if len(os.sched_getaffinity(0)) > 1:
        assert seen == {"job 0 speaks 5\n", "job 1 speaks 6\n"}


ADAPTIVE = """
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class AdaptiveSweeper(BasicSweeper):
    def sweep(self, arguments):
        first = self.launcher.launch([["job=0", "do=raise"], ["job=1"]], initial_job_idx=0)
        print("first:", [result.status.name for result in first], first[1].return_value)
        try:
            first[0].return_value
        except RuntimeError as error:
            print("told:", error)
        second = self.launcher.launch([["job=2", "sleep_s=0.1"]], initial_job_idx=2)
        print("second:", second[0].return_value)
"""


@pytest.mark.slow
def test_an_adaptive_sweeper_gets_failures_as_results_and_goes_on(app):
    (app.directory / "hydra_plugins").mkdir()
    (app.directory / "hydra_plugins" / "adaptive.py").write_text(ADAPTIVE)
    code, output = app.run(
        "name=x", "hydra.sweeper._target_=hydra_plugins.adaptive.AdaptiveSweeper"
    )
    assert code == 0, output
    assert "first: ['FAILED', 'COMPLETED'] 10" in output
    assert "told: #0 job=0 do=raise: failed: ValueError: the cause (exit code 1)" in output
    assert "second: 20" in output
    assert [row["directory"] for row in app.index()] == ["0", "1", "2"]


@pytest.mark.slow
def test_a_terminal_shows_a_table(app):
    launcher, terminal = app.start_on_terminal("job=0,1", "sleep_s=1", "hydra.launcher.cores=[0]")
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that its last writer is gone
        while True:
            shown += os.read(terminal, 65536)
    os.close(terminal)
    text = shown.decode()
    assert launcher.wait(timeout=20) == 0
    assert "job=0" in text
    assert "running" in text
    assert "1 of 2 ended, about" in text


def test_ctrl_c_while_planning_is_no_traceback(app):
    (app.directory / "rules.py").write_text(
        "import time\ndef check(cfg):\n    print('planning', flush=True); time.sleep(30)\n"
    )
    launcher = app.start("job=0", "hydra.launcher.validate=rules.check")
    app.wait_until(lambda: "planning" in app.said())
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=20) == 130
    assert app.said().endswith("stopped before any job was started\n")
    assert "Traceback" not in app.said()


def test_repeats_name_the_jobs_and_count_the_rest():
    asked = [[f"job={n}"] for n in (1, 2, 3, 4, 5)] * 2
    assert repeats_text(asked, [0, 1, 2, 3, 4] * 2) == (
        "5 of 10 jobs repeat the configuration of another job, and are not run a second time: "
        "job=1, job=1; job=2, job=2; job=3, job=3; and 2 more"
    )


def test_jobs_of_workers_that_vanished_are_no_results_of_a_search(capsys):
    """After `scancel` the search ends too, and resumes with these trials."""
    identity = Identity(0, ("seed=1",), "", {})
    job = Job("seed=1", None, Path("nowhere"), identity, Need(1))
    plan = Plan([job], {}, [0], [], Manifest((), {}, (), ()), exclusive=False)
    launch = object.__new__(Launch)
    launch._hydras_sweeper = False
    with pytest.raises(SystemExit, match="1"):
        launch._report(plan, {0: LOST}, [])
    assert "To resume: start the sweep again" in capsys.readouterr().err
