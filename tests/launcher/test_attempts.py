"""Jobs with a checkpoint: which of them go on from it, and which start from the beginning."""

from __future__ import annotations

import json
import shlex
import signal

import pytest
from omegaconf import OmegaConf

from walle.agent import checkpoint
from walle.launcher.allocation import Grant, Need
from walle.launcher.planning import Job, can_resume
from walle.launcher.records import Identity, is_done, read_manifest, resume_text
from walle.launcher.runner import start_attempt
from walle.system.run_files import read_status, update_status

FAULTS = {1: "raise", 2: "os_exit", 3: "sigkill", 4: "hang"}
RUN = """
def learn(do):
    # Five rounds, with a row and a checkpoint after each one; the fault comes in the fourth.
    import json
    here = Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
    last, rows = here / "checkpoints" / "last.pt", here / "rows.csv"
    (here / "run.json").touch()
    if not json.loads((here / "status.json").read_text())["resume"]:
        assert not last.exists() and not rows.exists()
        last.parent.mkdir()
        last.write_text("0")
    for number in range(int(last.read_text()), 5):
        if number == 3 and not Path("healed").exists():
            if do == "raise_once":
                Path("healed").touch()
            act(do.removesuffix("_once"))
        with rows.open("a") as file:
            file.write(f"{number}\\n")
        last.write_text(str(number + 1))
    print("learned")
"""


@pytest.fixture
def learner(app):
    """The application, with a job that writes checkpoints; its `do` is a fault in round 3."""
    text = (app.directory / "app.py").read_text()
    text = text.replace("@hydra.main", RUN + "\n\n@hydra.main")
    text = text.replace('if not Path("healed").exists():\n        act(cfg.do)', "learn(cfg.do)")
    (app.directory / "app.py").write_text(text)
    return app


def rows(app, num):
    return [int(line) for line in (app.out / str(num) / "rows.csv").read_text().split()]


@pytest.mark.slow
def test_jobs_that_failed_go_on_from_their_checkpoints_when_the_sweep_starts_again(learner):
    text = (learner.directory / "app.py").read_text()
    text = text.replace("learn(cfg.do)", f"learn({FAULTS}[cfg.job])")
    (learner.directory / "app.py").write_text(text)
    sweep = ("job=1,2,3,4", "name=x", "hydra.launcher.timeout_s=2", "hydra.launcher.grace_s=0.2")
    assert learner.run(*sweep)[0] == 1
    assert [rows(learner, num) for num in range(4)] == [[0, 1, 2]] * 4
    assert [learner.status(num)["resume"] for num in range(4)] == [False] * 4

    (learner.directory / "healed").touch()
    code, output = learner.run(*sweep)
    assert code == 0, output
    assert "4 jobs in out, 4 resume from a checkpoint" in output
    assert "#0 resumes from its checkpoint (attempt 2) on cores" in output
    assert [rows(learner, num) for num in range(4)] == [[0, 1, 2, 3, 4]] * 4
    index = learner.index()
    assert [(row["state"], row["attempts"], row["error"]) for row in index] == [
        ("completed", "2", "")
    ] * 4
    for num in range(4):
        status = learner.status(num)
        assert is_done(status, status["config_hash"])
        assert (status["resume"], status["log_tail"], status["signal"]) == (True, None, None)
        assert not (learner.out / str(num) / "attempts").exists()
    log = (learner.out / "2" / "output.log").read_text()
    assert log.index("job 3 speaks") < log.index("--- attempt 2, ") < log.index("learned")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_jobs_of_a_stopped_or_killed_sweep_go_on_from_their_checkpoints(learner, signum):
    launcher = learner.start("job=1,2", "do=save", "hydra.launcher.cores=[0]")
    last = learner.out / "0" / "checkpoints" / "last.pt"
    learner.wait_until(lambda: last.exists() and last.read_text() == "3")
    launcher.send_signal(signum)
    launcher.wait(timeout=20)
    (learner.directory / "healed").touch()
    arguments = shlex.split(resume_text(read_manifest(learner.out)).removeprefix("To resume: "))
    assert arguments[1:3] == ["app.py", "-m"]
    code, output = learner.run(*arguments[3:])
    assert code == 0, output
    assert "1 resume from a checkpoint" in output
    assert [rows(learner, num) for num in (0, 1)] == [[0, 1, 2, 3, 4]] * 2
    assert [row["attempts"] for row in learner.index()] == ["2", "1"]


@pytest.mark.slow
def test_a_retry_goes_on_from_the_checkpoint_even_in_a_sweep_without_a_name(learner):
    code, output = learner.run("job=1", "do=raise_once", "hydra.launcher.retries=1")
    assert code == 0, output
    assert rows(learner, 0) == [0, 1, 2, 3, 4]
    assert (learner.status(0)["attempts"], learner.status(0)["resume"]) == (2, True)


@pytest.mark.slow
def test_a_sweep_that_does_not_resume_starts_its_jobs_from_the_beginning(learner):
    assert learner.run("job=1", "do=raise")[0] == 1
    (learner.directory / "healed").touch()
    assert learner.run("job=1", "do=raise")[0] == 0
    assert rows(learner, 0) == [0, 1, 2, 3, 4]
    status = learner.status(0)
    assert (status["attempts"], status["resume"]) == (2, False)
    assert "log_tail" not in status
    earlier = learner.out / "0" / "attempts" / "1"
    assert (earlier / "rows.csv").read_text() == "0\n1\n2\n"
    assert (earlier / "checkpoints" / "last.pt").exists()
    assert json.loads((earlier / "status.json").read_text())["state"] == "failed"


def job(directory):
    config = OmegaConf.create({"hydra": {"sweep": {"dir": "multirun/2026-11-22/10-00-00"}}})
    return Job("job=1", config, directory, Identity(0, ("job=1",), "hash", {}), Need())


def write_checkpoint(directory, name=checkpoint.LAST, **status):
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / name).touch()
    (directory / "run.json").touch()
    update_status(directory, **{"config_hash": "hash", "state": "failed"} | status)


@pytest.mark.parametrize("name", [checkpoint.LAST, checkpoint.PREVIOUS])
@pytest.mark.parametrize("state", ["failed", "interrupted", "running"])
def test_a_job_that_did_not_complete_can_go_on(tmp_path, state, name):
    assert not can_resume(job(tmp_path))
    write_checkpoint(tmp_path, name=name, state=state)
    assert can_resume(job(tmp_path))


@pytest.mark.parametrize("status", [{"state": "completed"}, {"config_hash": "another"}])
def test_a_complete_job_and_another_configuration_cannot_go_on(tmp_path, status):
    write_checkpoint(tmp_path, **status)
    assert not can_resume(job(tmp_path))


def test_a_job_cannot_go_on_from_another_programs_checkpoint_or_an_unfinished_one(tmp_path):
    write_checkpoint(tmp_path, name="last.tmp")
    assert not can_resume(job(tmp_path))
    (tmp_path / "checkpoints" / checkpoint.LAST).touch()
    assert can_resume(job(tmp_path))
    (tmp_path / "run.json").unlink()
    assert not can_resume(job(tmp_path))


def test_every_start_counts_as_an_attempt_and_keeps_what_the_job_wrote_into_its_status(tmp_path):
    grant = Grant(0, (0,), (), oversubscribed=False)
    assert start_attempt(job(tmp_path), grant, resume=False)["attempts"] == 1
    write_checkpoint(
        tmp_path, replacements=[{"sampler": "sampler-1"}], log_tail=["why"], error="why"
    )
    assert start_attempt(job(tmp_path), grant, resume=True)["attempts"] == 2
    status = read_status(tmp_path)
    assert (status["state"], status["attempts"], status["resume"]) == ("running", 2, True)
    assert status["replacements"] == [{"sampler": "sampler-1"}]
    assert (status["log_tail"], status["error"]) == (None, None)
    assert (status["label"], status["sweep"]) == ("job=1", "2026-11-22/10-00-00")
    assert start_attempt(job(tmp_path), grant, resume=False)["attempts"] == 3
    assert "replacements" not in read_status(tmp_path)
    assert (tmp_path / "attempts" / "1" / "checkpoints").is_dir()
