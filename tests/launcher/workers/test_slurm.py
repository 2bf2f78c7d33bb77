"""What the launcher asks of Slurm, with commands that only pretend to be Slurm's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from walle.errors import ConfigError
from walle.launcher.launch import make_backend
from walle.launcher.settings import SlurmConf, WalleLauncherConf, check_settings
from walle.launcher.workers import slurm
from walle.launcher.workers.backend import LocalBackend, SlurmBackend
from walle.launcher.workers.claims import Claims
from walle.launcher.workers.slurm import SlurmError, array_sizes, batch_script
from walle.launcher.workers.submission import Submission, new_directory

SHOWN = (
    "JobId=2 ArrayJobId=1 JobState=RUNNING NumNodes=1   Nodes=n1 CPU_IDs=0-1,4 Mem=0 GRES= \n"
    "JobId=3 ArrayJobId=1 JobState=RUNNING NumNodes=1   Nodes=n2 CPU_IDs=3 Mem=0 GRES= \n"
)
SBATCH = r"""#!/bin/bash
# Starts every element of the array at once, on this machine.
for option in "$@"; do case "$option" in --array=0-*) last="${option#--array=0-}";; esac; done
script="$PRETENDED/script"; cat > "$script"
for ((i = 0; i <= last; i++)); do
    SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$i bash "$script" > "$PRETENDED/log$i" 2>&1 &
done
echo 7
"""
OTHERS = {
    "squeue": "#!/bin/bash\necho 7_0 RUNNING None; echo 7_1 PENDING launch failed requeued held",
    "sinfo": "#!/bin/bash\necho low; echo high",
    "scontrol": "#!/bin/bash\necho MaxArraySize = 1001",
    "scancel": "#!/bin/bash",
}


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    directory = tmp_path / "slurm"
    directory.mkdir()
    for name, text in {"sbatch": SBATCH, **OTHERS}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("PRETENDED", str(directory))
    return directory


@pytest.mark.slow
def test_a_sweep_of_two_workers_on_one_directory(app, pretended):
    two = ("hydra.launcher.slurm.workers=2", "hydra.launcher.slurm.heartbeat_s=0.2")
    code, output = app.run("job=range(4)", "sleep_s=0.2", "hydra.launcher.backend=slurm", *two)
    assert code == 0, output
    assert app.ran() == [0, 1, 2, 3]
    assert [row["return_value"] for row in app.index()] == ["0", "10", "20", "30"]
    assert "submitted 2 workers to Slurm: 7" in output
    assert "4 of 4 jobs are complete" in output
    assert re.search(r"#3 starts on cores \d: job=3", output)
    claims = sorted(path.name for path in (app.out / ".workers/1/claims").iterdir())
    assert claims == [name for job in range(4) for name in (f"{job}.0", f"{job}.0.completed")]
    app.wait_until(lambda: app.processes() == [])


def test_the_queue_says_why_a_worker_waits(pretended):
    assert slurm.states(["7"]) == {
        "7_0": ("RUNNING", "None"),
        "7_1": ("PENDING", "launch failed requeued held"),
    }


def test_a_cluster_without_arrays_is_refused(app, pretended):
    (pretended / "scontrol").write_text("#!/bin/bash\necho MaxArraySize = 0")
    code, output = app.run("job=range(2)", "hydra.launcher.backend=slurm")
    assert code != 0
    assert "allows no arrays of jobs (MaxArraySize=0)" in output


def test_without_slurm_one_line_says_what_is_missing(app):
    code, output = app.run("job=0,1", "hydra.launcher.backend=slurm", PATH="/nowhere")
    assert code == 2
    assert output == (
        "walle: hydra.launcher.backend=slurm needs Slurm's commands, and sbatch, squeue, sinfo, "
        "scontrol, scancel cannot be found: start the sweep on a login node of the cluster, or "
        "leave the backend local\n"
    )
    assert not (app.out / "manifest.json").exists()


def test_a_slurm_that_does_not_answer_leaves_no_sweep(app, pretended):
    (pretended / "sinfo").write_text("#!/bin/bash\necho 'sinfo: fatal: no server' >&2; exit 1")
    code, output = app.run("job=0,1", "hydra.launcher.backend=slurm")
    assert code == 2
    assert output == (
        "walle: hydra.launcher.backend=slurm: no answer (sinfo -h: sinfo: fatal: no server): start "
        "the sweep on a login node of the cluster, or leave the backend local\n"
    )
    assert not app.out.exists()


@pytest.mark.parametrize(
    ("settings", "of_slurm", "reason"),
    [
        ({"cores": [0]}, {}, "use hydra.launcher.slurm.cores"),
        ({"check_cores": True}, {}, "leave it out"),
        ({}, {"partition": "fast"}, "no partition fast; choose among high, low"),
        ({}, {"workers": 0}, "slurm.workers=0 must be positive"),
        ({}, {"heartbeat_s": 0}, "slurm.heartbeat_s=0 must lie in"),
        ({}, {"template": "nowhere"}, "cannot be read"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(pretended, settings, of_slurm, reason):
    asked = WalleLauncherConf(backend="slurm", slurm=SlurmConf(**of_slurm), **settings)
    with pytest.raises(ValueError, match=reason) as refused:
        make_backend(asked)
    assert "\n" not in str(refused.value)


def test_only_workers_go_on_without_the_command():
    with pytest.raises(ValueError, match=r"wait=false needs workers .* add .*backend=slurm"):
        check_settings(WalleLauncherConf(wait=False))
    with pytest.raises(ValueError, match="backend='pbs' is unknown; choose one of: local, ray"):
        check_settings(WalleLauncherConf(backend="pbs"))


def test_a_worker_takes_the_cores_that_slurm_gave_it(monkeypatch):
    monkeypatch.setattr(slurm, "_call", lambda *command: SHOWN)
    environ = {"SLURM_CPUS_ON_NODE": "3", "SLURMD_NODENAME": "n1"}
    assert slurm.own_cores("1_0", environ, [2, 3, 5]) == [2, 3, 5]  # Slurm has bound it
    assert slurm.own_cores("1_0", environ, range(8)) == [0, 1, 4]
    assert slurm.own_cores("1_0", environ, range(8, 16)) == [8, 9, 12]
    other = environ | {"SLURM_CPUS_ON_NODE": "1", "SLURMD_NODENAME": "n2"}
    assert slurm.own_cores("1_0", other, range(8)) == [3]
    unknown = environ | {"SLURMD_NODENAME": "n9"}
    assert slurm.own_cores("1_0", unknown, range(8)) == [0, 1, 2]


def test_the_name_of_a_worker():
    last = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    assert slurm.worker_name(last) == "12_3"
    assert slurm.worker_name({"SLURM_JOB_ID": "12"}) == "12"
    assert slurm.worker_name({}) is None


@pytest.mark.parametrize(
    ("state", "asked"),
    [("RUNNING", True), ("PREEMPTED", True), ("TIMEOUT", True), ("CANCELLED", False)],
)
def test_a_worker_that_its_user_cancelled_does_not_start_again(monkeypatch, state, asked):
    calls = []
    monkeypatch.setattr(slurm, "_call", lambda *call: calls.append(call) or f"JobState={state} ")
    assert slurm.requeue("1_0") is asked
    assert (("scontrol", "requeue", "1_0") in calls) is asked


def test_a_batch_script(tmp_path):
    settings = SlurmConf(partition="low", time="30", options=["--nice=5"], setup=["module load x"])
    text = batch_script(settings, "python -m worker", name="walle-x", logs=Path("logs"), cores=4)
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    for option in ("--partition=low", "--time=30", "--cpus-per-task=4", "--requeue", "--nice=5"):
        assert f"#SBATCH {option}" in lines
    assert "--exclusive" not in text
    assert lines[-2:] == ["module load x", "exec python -m worker"]
    assert "--exclusive" in batch_script(settings, "x", name="", logs=Path(), cores=None)

    settings.template = str(tmp_path / "own.sh")
    (tmp_path / "own.sh").write_text("#!/bin/sh\n#SBATCH -A me\nexec nice @COMMAND@\n")
    assert batch_script(settings, "run", name="", logs=Path(), cores=1) == (
        "#!/bin/sh\n#SBATCH -A me\nexec nice run\n"
    )
    (tmp_path / "own.sh").write_text("#!/bin/sh\n")
    with pytest.raises(SlurmError, match="does not contain @COMMAND@"):
        batch_script(settings, "run", name="", logs=Path(), cores=1)


def test_a_batch_script_of_a_directory_with_a_space_and_a_percent_sign():
    text = batch_script(SlurmConf(), "x", name="walle-my sweep", logs=Path("/my 9%a"), cores=1)
    assert "#SBATCH '--job-name=walle-my sweep'\n" in text
    assert "#SBATCH '--output=/my 9%%a/%A_%a.log'\n" in text


def test_the_reason_of_a_refusal_is_the_line_of_the_command_itself():
    said = "sbatch: unrecognized option '--nonsense'\nTry \"sbatch --help\" for more information\n"
    assert slurm.refusal(said, "sbatch") == "sbatch: unrecognized option '--nonsense'"
    assert slurm.refusal("scontrol: not running\nscontrol: error: no\n", "scontrol")[-2:] == "no"
    assert slurm.refusal("exec format\nerror\n", "squeue") == "error"
    assert slurm.refusal("", "squeue") == "no reason given"


def test_workers_over_the_limit_of_an_array_are_split(caplog, monkeypatch):
    monkeypatch.setattr(slurm, "_call", lambda *command: "MaxArraySize = 4")
    assert array_sizes(4) == [4]
    assert caplog.text == ""
    assert array_sizes(10) == [4, 4, 2]
    assert "submitted as arrays of 4, 4, 2" in caplog.text


def test_no_variable_of_the_user_wins_over_an_option(monkeypatch):
    """`SBATCH_TIMELIMIT` wins over a script, and the command line over both."""
    calls = []
    monkeypatch.setattr(slurm, "_call", lambda *words, given: calls.append(words) or "7\n")
    conf = SlurmConf(account="two words", time=30)
    script = batch_script(conf, "python x", name="it's", logs=Path("out"), cores=2)
    script = script.replace("--requeue", "--requeue   # tell me") + "#SBATCH --ignored\n"
    assert slurm.submit(script, 3) == "7"
    (words,) = calls
    assert {"--account=two words", "--job-name=it's", "--requeue", "--array=0-2"} <= {*words}
    assert not {"#", "tell", "--ignored"} & {*words}
    with pytest.raises(SlurmError, match=r"option .* cannot be read \(No closing quotation\)"):
        slurm.submit("#!/bin/bash\n#SBATCH --comment='a\n", 1)


def test_a_busy_slurm_is_asked_again_for_a_restart(monkeypatch):
    silent = SlurmError("scontrol has not answered")
    answers = [silent, "JobState=RUNNING ", silent, "JobState=PENDING ", "too many"]
    monkeypatch.setattr(slurm, "PAUSE_S", 0.0)

    def call(*_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(slurm, "_call", call)
    assert slurm.requeue("7_0")  # the second answer was lost
    assert answers == ["too many"]
    answers[:] = [silent] * slurm.TRIES
    with pytest.raises(SlurmError, match="has not answered"):
        slurm.requeue("7_0")


def test_workers_of_an_earlier_command_run_only_jobs_that_have_not_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "states", lambda arrays: {"12_0": "COMPLETING"})
    backend = object.__new__(SlurmBackend)
    backend._settings = WalleLauncherConf(backend="slurm")
    assert backend._running_submission(tmp_path) is None
    submission = Submission(new_directory(tmp_path), ["12"], [0])
    claims = Claims(submission.directory, "worker")
    submission.record()
    assert backend._running_submission(tmp_path) == submission
    with pytest.raises(ConfigError, match=r"Slurm still has workers for this sweep.*scancel 12"):
        LocalBackend(WalleLauncherConf()).locked(tmp_path).__enter__()
    with monkeypatch.context() as patch:
        patch.setattr(slurm, "states", lambda arrays: None)
        with pytest.raises(ConfigError, match=r"backend=slurm does not answer.*try again"):
            backend._running_submission(tmp_path)
    claims.take(0, 0)
    assert backend._running_submission(tmp_path) == submission
    claims.end(0, 0, "completed")
    assert backend._running_submission(tmp_path) is None
    assert new_directory(tmp_path).name == "2"
