"""Whole sweeps of a small application: failures, resuming, cores, signals."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from pathlib import Path

import pytest

SIX = ("job=0,1,2,3,4,5", "name=six")
FAULTS = {1: "raise", 2: "os_exit", 3: "sigkill", 4: "hang"}


@pytest.fixture
def six(app):
    """The application, with the job's number saying what it does."""
    text = (app.directory / "app.py").read_text()
    text = text.replace("act(cfg.do)", f"act({FAULTS}.get(cfg.job, 'nothing'))")
    (app.directory / "app.py").write_text(text)
    return app


def test_four_of_six_jobs_fail_each_in_its_way_and_only_these_run_again(six):
    code, output = six.run(*SIX, "hydra.launcher.timeout_s=2", "hydra.launcher.grace_s=0.2")
    assert code == 1
    assert six.processes() == []
    assert six.ran() == [0, 1, 2, 3, 4, 5]

    last = output.splitlines()[-9:]
    assert last[0] == "4 of 6 jobs did not complete:"
    reasons = [
        "failed: ValueError: the cause (exit code 1)",
        "failed: its process ended with exit code 3 before the job returned (exit code 3)",
        "failed: killed by SIGKILL",
        "failed: ran past its limit of 2 s (SIGKILL)",
    ]
    for num, reason in zip((1, 2, 3, 4), reasons, strict=True):
        assert last[2 * num - 1] == f"  #{num} job={num}: {reason}"
        assert last[2 * num].strip() == f"out/{num}"

    states = [row["state"] for row in six.index()]
    assert states == ["completed", "failed", "failed", "failed", "failed", "completed"]
    assert six.status(1)["log_tail"][-1] == "ValueError: the cause"
    assert six.status(2)["exit_code"] == 3
    assert six.status(3)["signal"] == "SIGKILL"

    (six.directory / "healed").touch()
    code, output = six.run(*SIX)
    assert code == 0, output
    assert six.ran() == [1, 2, 3, 4]
    assert [row["state"] for row in six.index()] == ["completed"] * 6
    assert [row["return_value"] for row in six.index()] == ["0", "10", "20", "30", "40", "50"]
    assert six.status(1)["attempts"] == 2
    assert (six.out / "1" / "attempts" / "1" / "status.json").exists()


def test_a_grown_grid_keeps_its_numbers_and_runs_only_what_is_new(app):
    assert app.run("job=2,1", "name=grid")[0] == 0
    assert app.ran() == [1, 2]
    code, output = app.run("job=1,2,3", "name=grid")
    assert code == 0, output
    assert app.ran() == [3]
    assert [row["overrides"] for row in app.index()] == [f"job={n} name=grid" for n in (2, 1, 3)]


def test_a_changed_config_is_refused_with_the_difference_and_leaves_no_trace(app):
    assert app.run("job=1,2", "name=grid", "sleep_s=0")[0] == 0
    before = {f: f.read_bytes() for f in app.out.iterdir() if f.is_file()}
    app.ran()
    code, output = app.run("job=1,2,3", "name=grid", "sleep_s=0.5")
    assert code == 2
    assert "sleep_s: 0 -> 0.5" in output
    assert "hydra.launcher.resume=false" in output
    assert app.ran() == []
    assert {f: f.read_bytes() for f in app.out.iterdir() if f.is_file()} == before

    code, output = app.run("job=1,2", "name=grid", "sleep_s=0.5", "hydra.launcher.resume=false")
    assert code == 0, output
    assert app.ran() == [1, 2]
    assert (app.directory / "out-2" / "index.csv").exists()


def test_without_a_name_everything_runs_again(app):
    for _ in range(2):
        assert app.run("job=1,2")[0] == 0
        assert app.ran() == [1, 2]


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


def test_the_sweeps_thread_settings_replace_the_users(app):
    code, _ = app.run("job=0", "do=cores", "hydra.launcher.threads=3", OMP_NUM_THREADS="7")
    assert code == 0
    assert (app.out / "0" / "cores.txt").read_text().split()[2] == "3"


def test_a_sweep_over_sampler_n_never_overlaps_two_jobs(app):
    code, output = app.run("sampler.n=1,2,99", "seed=0,1", "sleep_s=0.1")
    assert code == 0, output
    rows = app.index()
    spans = sorted((row["started"], row["ended"]) for row in rows)
    for (_, ended), (started, _) in itertools.pairwise(spans):
        assert ended <= started
    # interleaved: every n of the first seed, then every n of the second
    in_time = [row["seed"] for row in sorted(rows, key=lambda row: row["started"])]
    assert in_time == ["0", "0", "0", "1", "1", "1"]
    marked = {row["sampler.n"] for row in rows if row["oversubscribed"] == "True"}
    assert "99" in marked
    assert "1" not in marked
    assert output.count("need more than") == 1
    assert all(row["load_start"] and row["load_end"] for row in rows)


def test_a_killed_launcher_takes_its_jobs_along_and_the_next_one_resumes(app):
    arguments = ("job=0,1,2", "name=killed", "do=leave", "sleep_s=1", "hydra.launcher.cores=[0]")
    launcher = app.start(*arguments)
    app.wait_until(lambda: app.speaks(1))
    launcher.kill()
    launcher.wait()
    app.wait_until(lambda: app.processes() == [], seconds=5)
    assert app.ran() == [0, 1]
    code, output = app.run(*arguments)
    assert code == 0, output
    assert app.ran() == [1, 2]
    assert app.processes() == []


def test_the_next_launcher_waits_for_the_jobs_of_a_killed_one(app):
    arguments = ("job=0", "name=killed", "do=hang")
    launcher = app.start(*arguments)
    app.wait_until(lambda: app.speaks(0))
    launcher.kill()
    launcher.wait()
    (app.directory / "healed").touch()
    code, output = app.run(*arguments)
    assert code == 0, output
    assert app.index()[0]["state"] == "completed"


def test_two_launchers_never_share_a_directory(app):
    first = app.start("job=0", "name=shared", "sleep_s=30")
    app.wait_until(lambda: app.speaks(0))
    code, output = app.run("job=0", "name=shared", "sleep_s=30")
    assert code == 2
    assert "another launcher is running the sweep in out" in output
    first.terminate()
    assert first.wait(timeout=20) == 143


def test_ctrl_c_stops_cleanly_and_writes_the_index(app):
    launcher = app.start("job=0,1,2", "name=stopped", "sleep_s=30", "hydra.launcher.cores=[0]")
    app.wait_until(lambda: app.speaks(0))
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=20) == 130
    assert [row["state"] for row in app.index()] == ["interrupted", "pending", "pending"]
    assert "#0 job=0: interrupted" in app.said()
    assert app.processes() == []


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


def test_a_second_ctrl_c_kills(app):
    launcher = app.start("job=0", "do=hang")
    app.wait_until(lambda: app.speaks(0))
    app.wait_until(lambda: len(app.processes()) == 5)  # with its child: it ignores SIGTERM now
    launcher.send_signal(signal.SIGTERM)
    app.wait_until(lambda: "again to kill" in app.said())
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=20) == 143
    assert app.index()[0]["state"] == "interrupted"
    assert app.processes() == []


def test_retries_and_the_limit_on_failures(app):
    one = ("hydra.launcher.cores=[0]",)
    code, output = app.run("job=0,1,2", "do=raise", "hydra.launcher.retries=1", *one)
    assert code == 1
    assert app.ran() == [0, 0, 1, 1, 2, 2]
    assert [row["attempts"] for row in app.index()] == ["2", "2", "2"]
    code, output = app.run("job=0,1,2", "do=raise", "hydra.launcher.on_failure=stop", *one)
    assert code == 1
    assert app.ran() == [0]
    assert output.count("not started") == 3  # the warning, and both jobs in the list
    code, output = app.run("job=0,1,2", "do=raise", "hydra.launcher.max_failures=2", *one)
    assert app.ran() == [0, 1]
    assert "#1 failed: ValueError: the cause (exit code 1)" in output


def test_no_job_is_tried_again_after_the_limit_on_failures(app):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    limits = ("hydra.launcher.retries=1", "hydra.launcher.max_failures=1")
    code, output = app.run("do=raise,raise_late", *limits)
    assert code == 1
    assert "2 of 2 ended" in output
    assert "3 of 2 ended" not in output
    assert [row["attempts"] for row in app.index()] == ["2", "1"], output


def test_a_dry_run_prints_the_plan_and_runs_nothing(app):
    assert app.run("job=0", "name=dry")[0] == 0
    app.ran()
    code, output = app.run("job=0,1", "name=dry", "hydra.launcher.dry_run=true")
    assert code == 0
    assert "skip  #0" in output
    assert "run   #1 on 1 core(s) in out/1: job=1" in output
    assert app.ran() == []
    assert not (app.out / "1").exists()


def test_nothing_is_left_of_a_sweep_that_never_began(app):
    for wrong in ("+hydra.launcher.order=given", "hydra.launcher.dry_run=true", "no_such_key=1"):
        app.run("job=0,1", wrong)
        assert not app.out.exists(), wrong
    (app.directory / "rules.py").write_text("def check(cfg):\n    raise ValueError('never')\n")
    assert app.run("job=0,1", "hydra.launcher.validate=rules.check")[0] == 2
    assert not app.out.exists()


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


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("order=sorted", "hydra.launcher.order=sorted: choose one of given, interleaved, shuffled"),
        ("timeout_s=0", "hydra.launcher.timeout_s=0.0: it must be above 0"),
        ("cores=[4096]", "hydra.launcher.cores names [4096]"),
        ("validate=app.no_such", "hydra.launcher.validate=app.no_such"),
    ],
)
def test_wrong_settings_fail_before_anything_starts(app, setting, message):
    code, output = app.run("job=0,1", f"hydra.launcher.{setting}")
    assert code == 2
    assert message in output
    assert "Traceback" not in output
    assert app.ran() == []


def test_the_application_may_refuse_configs_before_any_job_starts(app):
    (app.directory / "rules.py").write_text(
        "def check(cfg):\n    if cfg.job > 1: raise ValueError(f'job={cfg.job} is above 1')\n"
    )
    code, output = app.run("job=0,1,2,3", "hydra.launcher.validate=rules.check")
    assert code == 2
    assert "job=2: job=2 is above 1" in output
    assert "job=3: job=3 is above 1" in output
    assert app.ran() == []


def test_the_config_hash_ignores_where_and_when_the_outputs_go(app):
    with (app.directory / "config.yaml").open("a") as config:
        config.write(
            "logs: ${hydra:runtime.output_dir}/logs\nstamp: ${now:%H-%M-%S.%f}\nlabel: ${name}\n"
        )
    ignore = "hydra.launcher.hash_ignore=[name,label]"
    assert app.run("job=0", "name=first", ignore)[0] == 0
    app.out.rename(app.directory / "elsewhere")
    app.ran()
    code, output = app.run("job=0,1", "name=second", ignore, "hydra.sweep.dir=elsewhere")
    assert code == 0, output
    assert app.ran() == [1]


def test_a_killed_supervisor_costs_its_job_and_nothing_else(app):
    launcher = app.start("job=0,1", "do=leave", "sleep_s=1.5", "hydra.launcher.cores=[0]")
    app.wait_until(lambda: app.speaks(0))
    app.wait_until(lambda: len(app.processes()) == 5)  # launcher, warm, supervisor, job, its child
    supervisor = parent_of(next(pid for pid in app.processes() if leads_a_job(pid)))
    os.kill(supervisor, signal.SIGKILL)
    assert launcher.wait(timeout=30) == 1
    assert [row["state"] for row in app.index()] == ["failed", "completed"]
    assert app.processes() == []


def test_a_killed_warm_process_costs_no_job(app):
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
    """A job leads a session, as the warm process above its supervisor does."""
    return os.getsid(pid) == pid and os.getsid(parent_of(pid)) == parent_of(parent_of(pid))


def test_two_jobs_may_not_write_to_one_directory(app):
    code, output = app.run("job=0,1", "hydra.sweep.subdir=same")
    assert code == 2
    assert "#0 (job=0) and #1 (job=1) would both write to out/same" in output
    assert app.ran() == []


def test_a_gpu_is_handed_out_by_the_launcher_alone(app):
    with (app.directory / "config.yaml").open("a") as config:
        config.write("device: cuda\n")
    text = (app.directory / "app.py").read_text()
    text = text.replace("speaks", "speaks {os.environ['CUDA_VISIBLE_DEVICES']}")
    (app.directory / "app.py").write_text(text)
    code, output = app.run("job=0,1", CUDA_VISIBLE_DEVICES="")
    assert code == 2
    assert "#0 (job=0) asks for a GPU with device=cuda, and this machine shows none" in output
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


def test_a_closed_terminal_stops_cleanly(app):
    launcher, terminal = app.start_on_terminal("job=0,1", "sleep_s=30", "hydra.launcher.cores=[0]")
    app.wait_until(lambda: app.speaks(0))
    os.close(terminal)
    assert launcher.wait(timeout=20) == 128 + signal.SIGHUP
    assert [row["state"] for row in app.index()] == ["interrupted", "pending"]
    assert app.processes() == []


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
    assert "1 of 2 ended, 0 wait, about" in text


def test_returned_values_that_cannot_travel_fail_the_job_alone(app):
    text = (app.directory / "app.py").read_text()
    text = text.replace("return cfg.job * 10", "return iter(sys.stdin) if cfg.job else {1, 2}")
    (app.directory / "app.py").write_text(text)
    code, output = app.run("job=0,1")
    assert code == 1
    assert [row["state"] for row in app.index()] == ["completed", "failed"]
    assert "#0 returned a set, which JSON cannot hold" in output
    assert "#1 job=1: failed: PicklingError: Cannot pickle" in output
