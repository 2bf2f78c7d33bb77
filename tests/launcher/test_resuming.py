"""Sweeps of a small application that are run again: what runs, what is skipped or refused."""

from __future__ import annotations

import re
import signal

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


@pytest.mark.slow
def test_four_of_six_jobs_fail_each_in_its_way_and_only_these_run_again(six):
    code, output = six.run(*SIX, "hydra.launcher.timeout_s=2", "hydra.launcher.grace_s=0.2")
    assert code == 1
    assert six.processes() == []
    assert six.ran() == [0, 1, 2, 3, 4, 5]

    *last, advice = output.splitlines()[-10:]
    assert re.match(r"To resume: \S*python\S* ", advice)
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


OWN_RECORD = """
        import json
        directory = Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
        status = json.loads((directory / "status.json").read_text())
        record = {"state": "completed", "return_value": 7}
        (directory / "status.json").write_text(json.dumps(status | record))
        time.sleep(600)
"""


@pytest.mark.slow
def test_a_job_that_recorded_its_end_before_its_launcher_was_killed_is_done(app):
    text = (app.directory / "app.py").read_text()
    text = text.replace('\n        raise ValueError("the cause")\n', OWN_RECORD, 1)
    (app.directory / "app.py").write_text(text)
    sweep = ("job=1,2", "do=raise", "name=x", "hydra.launcher.cores=[0]")
    launcher = app.start(*sweep)
    status = app.out / "0" / "status.json"
    app.wait_until(lambda: status.exists() and "completed" in status.read_text())
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    app.ran()
    (app.directory / "healed").touch()
    code, output = app.run(*sweep)
    assert code == 0, output
    assert "2 jobs in out, 1 done already" in output
    assert app.ran() == [2]
    assert [row["return_value"] for row in app.index()] == ["7", "20"]


@pytest.mark.slow
def test_a_grown_grid_keeps_its_numbers_and_runs_only_what_is_new(app):
    assert app.run("job=2,1", "name=grid")[0] == 0
    assert app.ran() == [1, 2]
    code, output = app.run("job=1,2,3", "name=grid")
    assert code == 0, output
    assert app.ran() == [3]
    assert [row["overrides"] for row in app.index()] == [f"job={n} name=grid" for n in (2, 1, 3)]


@pytest.mark.slow
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


@pytest.mark.slow
def test_without_a_name_everything_runs_again(app):
    for _ in range(2):
        assert app.run("job=1,2")[0] == 0
        assert app.ran() == [1, 2]


@pytest.mark.slow
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


def test_a_dry_run_prints_the_plan_and_runs_nothing(app):
    assert app.run("job=0", "name=dry")[0] == 0
    app.ran()
    code, output = app.run("job=0,1", "name=dry", "hydra.launcher.dry_run=true")
    assert code == 0
    assert "skip  #0" in output
    assert "run   #1 on 1 core(s) in out/1: job=1" in output
    assert app.ran() == []
    assert not (app.out / "1").exists()


@pytest.mark.slow
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


def test_the_jobs_of_a_killed_launcher_have_time_to_save(app):
    launcher = app.start("job=0", "do=save")
    app.wait_until(lambda: (app.directory / "ready").exists())
    launcher.kill()
    launcher.wait()
    app.wait_until(lambda: app.processes() == [], seconds=5)
    assert (app.directory / "saved").exists()


@pytest.mark.slow
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


@pytest.mark.slow
def test_two_launchers_never_share_a_directory(app):
    first = app.start("job=0", "name=shared", "sleep_s=30")
    app.wait_until(lambda: app.speaks(0))
    code, output = app.run("job=0", "name=shared", "sleep_s=30")
    assert code == 2
    assert "another launcher is running the sweep in out" in output
    first.terminate()
    assert first.wait(timeout=20) == 143


@pytest.mark.slow
def test_a_sweep_that_measures_time_runs_in_blocks_that_grow_with_it(app):
    """Jobs 0 to 3 are n=1,2 with seeds 7 and 5; then seed 9 comes."""
    seeds = ("name=blocks", "hydra.launcher.check_cores=false")
    assert app.run("sampler.n=1,2", "seed=7,5", *seeds)[0] == 0
    (launch,) = app.manifest()["launches"]
    assert [sorted(launch["order"][:2]), sorted(launch["order"][2:])] == [[0, 2], [1, 3]]
    assert [row["block"] for row in app.index()] == ["0", "1"] * 2
    assert [app.status(num)["block"] for num in range(4)] == [0, 1] * 2
    first, second, both = (set(app.status(num)["cores"]) for num in range(3))
    assert first | second == both  # n=1 runs on another core in the second block, if there is one

    code, output = app.run("sampler.n=1,2", "seed=9,5,7", *seeds)
    assert code == 0, output
    rows = {(row["sampler.n"], row["seed"]): row["block"] for row in app.index()}
    assert {seed: rows["2", seed] for seed in ("7", "5", "9")} == {"7": "0", "5": "1", "9": "2"}
    assert app.manifest()["settings"]["order"] == "blocks"


@pytest.mark.slow
def test_without_blocks_no_job_has_one(app):
    assert app.run("job=0,1", "seed=1,2")[0] == 0
    assert "block" not in app.index()[0]
    assert "block" not in app.status(0)


def test_an_unknown_key_of_repeats_is_refused(app):
    code, output = app.run("job=0,1", "hydra.launcher.repeat=sead")
    assert code == 2
    assert "hydra.launcher.repeat=sead is no key of the jobs' configs" in output
