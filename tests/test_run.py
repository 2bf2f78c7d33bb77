"""`walle run resume=DIR`, as a user types it."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from tests.conftest import largest_file, read
from tests.test_training import learned
from walle import training
from walle.agent import checkpoint
from walle.agent.callback import Callback
from walle.config import compose, config_directory
from walle.run import _into_its_directory
from walle.system.commands import command_of
from walle.system.run_files import read_status, update_status

ROOT = str(Path(__file__).resolve().parents[1])
SMALL = (
    "env=cartpole",
    "sampler=serial",
    "batch_size=128",
    "sampler.lanes=8",
    "algo.epochs=2",
    "eval.episodes=0",
    "logger.progress=quiet",
)


@pytest.fixture
def refused(command, capsys):
    """Runs a command that must end with code 2 and one line, and returns the line."""

    def _refused(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            command(*arguments)
        found = capsys.readouterr()
        assert (ended.value.code, found.err.count("\n"), found.out) == (2, 1, "")
        return found.err

    return _refused


@pytest.mark.slow
def test_a_run_and_a_job_of_the_same_settings_have_one_hash(tmp_path):
    settings = [*SMALL, "total_steps=128", "algo.compile=false", "seed=3", "sampler.timeout_s=600"]
    one, sweep = f"hydra.run.dir={tmp_path / 'run'}", f"hydra.sweep.dir={tmp_path / 'sweep'}"
    for more in ([one], ["-m", sweep]):
        arguments = [sys.executable, "-m", "walle.run", *more, *settings]
        subprocess.run(arguments, check=True, timeout=500, capture_output=True)
    found = [read_status(tmp_path / each)["config_hash"] for each in ("run", "sweep/0")]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["run", "a b, [c]=d'e\"f\\g$h"])
def test_a_run_goes_on_in_its_directory_as_far_as_asked(tmp_path, command, capsys, name):
    (tmp_path / name).mkdir()
    (tmp_path / name).rename(tmp_path / "short")
    whole, short = tmp_path / "whole", tmp_path / "short"
    # With a schedule of its own, a longer run begins as a shorter one does.
    schedule = "schedule_steps=512"
    command(*SMALL, schedule, "total_steps=512", f"hydra.run.dir={whole}")
    command(*SMALL, schedule, "total_steps=256", f"hydra.run.dir={short}")
    hydra = {path.name: path.read_bytes() for path in (short / ".hydra").iterdir()}
    directory = short.rename(tmp_path / name)
    capsys.readouterr()
    command(f"resume={directory}", "total_steps=512")
    assert "resuming after iteration 2, 256 steps" in capsys.readouterr().out
    assert learned(directory) == learned(whole)
    assert len(learned(directory)) == 4
    status = json.loads((directory / "status.json").read_text())
    assert (status["state"], status["attempts"]) == ("completed", 2)
    provenance = json.loads((directory / "run.json").read_text())
    assert provenance["config"]["total_steps"] == 512
    (resumption,) = provenance["resumptions"]
    assert resumption["overrides"][1:] == ["total_steps=512"]
    assert hydra == {path.name: path.read_bytes() for path in (directory / ".hydra").iterdir()}
    assert not (directory / "attempts").exists()


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """The directory of a run with all its steps."""
    from walle.config import compose
    from walle.training import train

    directory = tmp_path_factory.mktemp("completed") / "run"
    train(compose([*SMALL, "total_steps=256"]), directory)
    (directory / "run.log").touch()  # Hydra's
    return directory


@pytest.mark.slow
def test_a_longer_dqn_reports_other_schedules_and_may_keep_its_own(tmp_path, command, capsys):
    small = [word for word in SMALL if "epochs" not in word and "quiet" not in word]
    dqn = (*small, "algo=dqn", "algo.learning_starts=128", "algo.updates_per_step=0.1")
    dqn += ("algo.exploration_fraction=1", "algo.compile=false", "logger.progress=lines")
    command(*dqn, "total_steps=512", "schedule_steps=384", f"hydra.run.dir={tmp_path / 'whole'}")
    command(*dqn, "total_steps=384", f"hydra.run.dir={tmp_path / 'short'}")
    shutil.copytree(tmp_path / "short", tmp_path / "other")
    assert "the schedule of" not in capsys.readouterr().out
    command(f"resume={tmp_path / 'short'}", "total_steps=512", "schedule_steps=384")
    assert "the schedule of" not in capsys.readouterr().out
    command(f"resume={tmp_path / 'other'}", "total_steps=512")
    line = "the schedule of learning rate and exploration now ends at 512 steps instead of 384;"
    assert f"{line} schedule_steps=384 keeps that\n" in capsys.readouterr().out
    whole, short, other = (learned(tmp_path / name) for name in ("whole", "short", "other"))
    assert short == whole != other


class Early(Callback):
    """Ends a run after its first round."""

    def on_round(self, round_):
        return True


def files(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_completed_run_is_not_begun_again(completed, refused):
    before = files(completed)
    line = refused(f"resume={completed}")
    assert "has learned from 256 steps already; give more total_steps to continue" in line
    assert files(completed) == before


class Killer(Callback):
    """Kills the run between its last checkpoint and its last record."""

    def on_end(self, end):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_run_that_is_killed_after_its_last_round_is_completed(tmp_path):
    settings = (
        *SMALL,
        "sampler=process",
        "sampler.n=2",
        "eval.every=128",
        "eval.episodes=2",
        "total_steps=256",
    )
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    callbacks = "callbacks=[tests.test_run:Killer]"
    for arguments, code in (
        ((*settings, f"hydra.run.dir={whole}"), 0),
        ((*settings, callbacks, f"hydra.run.dir={killed}"), -signal.SIGKILL),
        ((f"resume={killed}", callbacks), -signal.SIGKILL),  # as often as it takes
        ((f"resume={killed}", "callbacks=[]"), 0),
        ((f"resume={killed}",), 2),
    ):
        command = [sys.executable, "-m", "walle.run", *arguments]
        assert subprocess.run(command, cwd=ROOT, timeout=500, check=False).returncode == code
        if code < 0:
            assert read_status(killed)["state"] == "running"
    assert learned(killed) == learned(whole)
    same = ("state", "exit_code", "return_value")
    left, right = (read_status(directory) for directory in (killed, whole))
    assert [left[name] for name in same] == [right[name] for name in same]
    rows = [read(directory / "eval.csv") for directory in (killed, whole)]
    assert [row["return_mean"] for row in rows[0]] == [row["return_mean"] for row in rows[1]]


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("sampler.collect=episodes", "env.episode_limit=12"),
        ("algo=dqn", "algo.learning_starts=100", "algo.updates_per_step=0.1"),
        ("callbacks=[tests.test_run:Early]",),
    ],
)
@pytest.mark.parametrize("state", ["running", "failed"])
def test_what_is_left_of_a_run_is_done(tmp_path, command, refused, settings, state):
    small = [word for word in SMALL if "algo=dqn" not in settings or word != "algo.epochs=2"]
    command(*small, *settings, "total_steps=256", f"hydra.run.dir={tmp_path}")
    before, rows = read_status(tmp_path), learned(tmp_path)
    update_status(tmp_path, state=state, exit_code=None, ended=None, return_value=None, reason=None)
    command(f"resume={tmp_path}")
    after = read_status(tmp_path)
    assert (after["state"], after["exit_code"], after["attempts"]) == ("completed", 0, 2)
    assert [after[name] for name in ("return_value", "reason")] == [
        before[name] for name in ("return_value", "reason")
    ]
    assert learned(tmp_path) == rows
    refused(f"resume={tmp_path}")


@pytest.mark.parametrize(
    ("word", "kept"), [("total_steps=384", False), ("objective=return", False), ("name=x", True)]
)
def test_a_run_that_is_resumed_with_other_steps_is_no_job_of_a_sweep(
    completed, tmp_path, command, word, kept
):
    shutil.copytree(completed, tmp_path / "0")
    update_status(tmp_path / "0", state="failed", config_hash="of the job")
    command(f"resume={tmp_path / '0'}", word)
    status = read_status(tmp_path / "0")
    assert (status["state"], status["config_hash"] == "of the job") == ("completed", kept)


def test_a_directory_without_a_run_is_refused(tmp_path, refused):
    line = refused(f"resume={tmp_path}/typo")
    assert line.startswith(f"walle: resume={tmp_path}/typo: no run has been here (no run.json)")
    assert not list(tmp_path.iterdir())
    (tmp_path / "manifest.json").touch()
    assert "this is a sweep: type its command again" in refused(f"resume={tmp_path}")


@pytest.mark.parametrize("words", [["resume="], ["++resume=''"], ["resume=a", "resume=b"]])
def test_a_run_is_resumed_in_one_directory(tmp_path, refused, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    line = refused(*words)
    assert re.fullmatch(rf"walle: {re.escape(' '.join(words))}: name (one run only|a .*)\n", line)
    assert "resume=typo: no run has been here" in refused("++resume=typo")
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_in_no_other_directory(completed, refused, tmp_path):
    before = files(completed)
    line = refused(f"hydra.run.dir={tmp_path}/other", f"resume={completed}")
    assert (
        f"resume={completed} with hydra.run.dir={tmp_path}/other: a run is resumed in its" in line
    )
    assert files(completed) == before
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("more", [["-m"], ["seed=1,2", "--multirun"], ["-cn", "speedup"]])
def test_a_sweep_cannot_resume_one_run(completed, refused, tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    assert "which resumes by itself: start the sweep again as before" in refused(
        f"resume={completed}", *more
    )
    assert not list(tmp_path.iterdir())


def test_a_contradiction_is_refused_before_anything_changes(completed, refused):
    before = files(completed)
    line = refused(f"resume={completed}", "total_steps=512", "seed=3")
    assert "seed=3 contradicts the run, which has seed=0" in line
    assert files(completed) == before


def test_damaged_checkpoints_are_refused_before_anything_changes(completed, refused):
    kept = files(completed / "checkpoints")
    for name in kept:
        name.write_bytes(b"no checkpoint")
    before = files(completed)
    line = refused(f"resume={completed}", "total_steps=512")
    assert "last.pt is damaged or no checkpoint of walle's" in line
    assert files(completed) == before
    for path, content in kept.items():
        path.write_bytes(content)


def test_a_file_that_may_not_grow_leaves_a_checkpoint_and_the_way_on(
    completed, tmp_path, command, capsys
):
    directory = shutil.copytree(completed, tmp_path / "run")
    with largest_file(5000), pytest.raises(SystemExit) as ended:
        command(f"resume={directory}", "total_steps=512")
    shown = os.path.relpath(directory)
    line, *notes = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert line.startswith("walle: cannot write: [Errno 27] File too large")
    assert line.endswith(
        f"{shown}/checkpoints/last.pt remains: allow larger files (ulimit -f) and continue with "
        f"resume={shown}"
    )
    assert all("written: [Errno 27]" in note for note in notes)
    command(f"resume={directory}", "total_steps=512")
    assert [row["iteration"] for row in read(directory / "iterations.csv")] == list("1234")


def test_a_read_only_disk_is_told_once_with_the_way_on(
    completed, tmp_path, command, capsys, monkeypatch
):
    def read_only(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    directory = shutil.copytree(completed, tmp_path / "run")
    monkeypatch.setattr("walle.system.locks.locked_file", read_only)
    before = files(directory)
    with pytest.raises(SystemExit) as ended:
        command(f"resume={directory}", "total_steps=512")
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert line.startswith("walle: cannot write: [Errno 30] Read-only file system")
    assert "last.pt remains: make the disk writable and continue with resume=" in line
    assert files(directory) == before


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_says_how_to_go_on(completed, tmp_path, command, capsys, monkeypatch, times):
    def interrupted(*_, **__):
        if times == 2:
            raise KeyboardInterrupt(signal.SIGINT)
        return training.RunResult(None, None, None, 256, 1.0, signal.SIGINT)

    directory = shutil.copytree(completed, tmp_path / "a run")
    monkeypatch.setattr(training, "train", interrupted)
    with pytest.raises(SystemExit) as ended:
        command(f"resume={directory}", "total_steps=512", "logger.progress=lines")
    assert ended.value.code == 130
    way = capsys.readouterr().out.splitlines()[-1]
    assert way == f"resume with: {command_of('run')} resume='{os.path.relpath(directory)}'"


def test_ctrl_c_before_a_run_begins_leaves_no_directory(tmp_path, command, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt(signal.SIGINT)

    monkeypatch.setattr(training, "train", interrupted)
    with pytest.raises(SystemExit) as ended:
        command(*SMALL, f"hydra.run.dir={tmp_path / 'new'}")
    assert ended.value.code == 130
    assert capsys.readouterr().err == "walle: stopped before the run began\n"
    assert not (tmp_path / "new").exists()


def test_a_second_run_says_where_the_files_of_the_first_are(tmp_path, command, capsys):
    small = [word for word in SMALL if "quiet" not in word]
    small += ["total_steps=128", "logger.progress=lines", f"hydra.run.dir={tmp_path}"]
    line = f"the files of the earlier run here are in {os.path.relpath(tmp_path / 'attempts')}\n"
    command(*small)
    assert line not in capsys.readouterr().out
    command(*small)
    assert line in capsys.readouterr().out


def test_noise_falls_only_where_actions_are_continuous():
    before, config = {"total_steps": 1000}, compose(["total_steps=2000"])
    box, two = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
    assert "rate and noise now" in training.schedule_change(before, config, box)[0]
    assert "noise" not in "".join(training.schedule_change(before, config, two))
    state = compose(["total_steps=2000", "net.scale=state"])
    assert "noise" not in "".join(training.schedule_change(before, state, box))


def test_a_run_without_a_checkpoint_begins_again(tmp_path, command, capsys):
    command(*SMALL, "total_steps=256", f"hydra.run.dir={tmp_path}")
    for name in (checkpoint.LAST, checkpoint.PREVIOUS):
        (tmp_path / "checkpoints" / name).unlink(missing_ok=True)
    command(f"resume={tmp_path}")
    assert "has no checkpoint; the run starts again" in capsys.readouterr().out
    assert [row["iteration"] for row in read(tmp_path / "iterations.csv")] == ["1", "2"]


def test_nothing_is_resumed_unless_asked():
    for arguments in (["walle", "resume=null"], ["walle"]):
        assert _into_its_directory(arguments) == arguments


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_walle_itself_answers(command, capsys, flag):
    command(flag)
    said = capsys.readouterr().out
    assert said.startswith("walle " if flag == "--version" else "python -m walle.run [KEY=VALUE")


def test_a_run_whose_reader_left_ends_without_a_word_of_hydra():
    """Hydra writes a line about every exception that leaves the task, but not about SystemExit."""
    code = (
        "import walle.run as command\n"
        "def _run(composed): raise BrokenPipeError\n"
        "command._run = _run\n"
        "command.run(None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_reader_of_the_output_may_leave(tmp_path):
    run = f"{sys.executable} -m walle.run --help | head -1"
    said = subprocess.run(
        ["bash", "-c", run],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
    )
    assert said.stdout.startswith("python -m walle.run")
    assert said.stderr == ""


def test_flags_may_stand_between_settings(command, capsys, monkeypatch, tmp_path):
    """And a refused sweep leaves no directory behind."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        command("algo.clip=7,8", "-m", "env=hopper")
    assert stop.value.code == 2
    assert "algo.clip=7" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["algo.clip=7", "callbacks=[nowhere:Name]", "algo=sac"])
def test_a_refused_run_leaves_no_directory(refused, monkeypatch, tmp_path, fault):
    monkeypatch.chdir(tmp_path)
    refused(*(word for word in SMALL if not fault.startswith("algo=")), "env=cartpole", fault)
    assert not list(tmp_path.iterdir())


def test_a_refused_run_leaves_the_files_of_others(refused, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refused(*SMALL, "algo.clip=7", f"hydra.run.dir={tmp_path}")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_setting_of_sweeps_is_refused_without_a_sweep(refused, tmp_path):
    said = refused(*SMALL, "hydra.launcher.dry_run=true", f"hydra.run.dir={tmp_path / 'run'}")
    assert "hydra.launcher.dry_run=true is a setting of sweeps, and this is one run: add -m" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_runs_that_start_at_the_same_time_have_directories_of_their_own(tmp_path):
    arguments = [sys.executable, "-m", "walle.run", *SMALL, "total_steps=128", "algo.compile=false"]
    quiet = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    environ = os.environ | {"PYTHONPATH": ROOT}
    runs = [subprocess.Popen(arguments, env=environ, **quiet) for _ in range(4)]
    errors = [run.communicate(timeout=500)[1].decode() for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, errors
    assert len(list(tmp_path.glob("outputs/*/*/run.json"))) == 4


def test_a_directory_is_named_after_the_microsecond():
    """In single runs and in sweeps; a sweep with a name keeps it."""
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        nodes = [hydra_compose("config", return_hydra_config=True).hydra for _ in range(3)]
        named = hydra_compose("config", ["name=mine"], return_hydra_config=True).hydra
    found = {path for node in nodes for path in (node.run.dir, node.sweep.dir)}
    assert len(found) == 6
    assert {re.sub(r"\d", "0", path) for path in found} == {
        f"{top}/0000-00-00/00-00-00-000000" for top in ("outputs", "multirun")
    }
    assert named.sweep.dir == "multirun/mine"


@pytest.mark.slow
def test_a_run_needs_no_locale_and_no_home(tmp_path):
    """Nor a writable one, in a directory whose name has spaces and letters beyond ASCII."""
    here = tmp_path / "Läufe von gestern"
    here.mkdir()
    bare = {key: os.environ[key] for key in ("PATH", "XDG_CACHE_HOME") if key in os.environ}
    bare |= {"PYTHONPATH": ROOT, "LC_ALL": "C", "HOME": "/proc/none"}

    def walle(*arguments):
        words = [sys.executable, "-m", *arguments]
        done = subprocess.run(words, cwd=here, env=bare, capture_output=True, timeout=500)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    walle("walle.run", *SMALL, "total_steps=128", "hydra.run.dir='ein Maß'")
    walle("walle.run", "resume=ein Maß", "total_steps=256")
    assert read_status(here / "ein Maß")["attempts"] == 2
    assert "ein Maß" in walle("walle.eval", "ein Maß", "episodes=1")
    walle("walle.run", "-m", *SMALL, "total_steps=128", "hydra.sweep.dir='ein Ü'")
    assert read_status(here / "ein Ü" / "0")["state"] == "completed"


def test_settings_may_stand_on_both_sides_of_every_flag(command, capsys):
    command("env=cartpole", "-cn", "speedup", "--cfg", "job", "seed=7", "--package", "env")
    assert "id: CartPole-v1" in capsys.readouterr().out
    for words in (
        ["--info", "searchpath"],
        ["seed=7", "--info", "searchpath"],
        ["--info", "-cn", "speedup"],
    ):
        command(*words, "env=cartpole")
        assert "Config search path" in capsys.readouterr().out


def test_a_directory_below_a_broken_link_is_one_line(command, tmp_path, capsys):
    (tmp_path / "scratch").symlink_to("/nowhere/at/all")
    for flag, key in (("", "run"), ("-m", "sweep")):
        words = [flag] if flag else []
        with pytest.raises(SystemExit) as ended:
            command(*words, "env=cartpole", f"hydra.{key}.dir={tmp_path}/scratch/a")
        said = capsys.readouterr().err
        assert ended.value.code == 1
        assert "File exists: " in said
        assert "broken link that stands in the way, or choose another directory" in said


def test_a_sweep_over_nothing_is_refused(command, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command("-m", "env=cartpole", "seed=range(0)", f"hydra.sweep.dir={tmp_path}/s")
    assert ended.value.code == 2
    assert "the sweep has no jobs" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("where", ["__init__", "step"])
def test_an_environment_that_exits_is_told(tmp_path, where):
    """Its exit code would be the command's, also 0."""
    env = f"+env.kwargs.how=exits in {where}"
    words = ["env=gym", "env.id=tests.toy:Rude-v0", env, "sampler=serial", "total_steps=4096"]
    command = [sys.executable, "-m", "walle.run", *words, f"hydra.run.dir={tmp_path}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "SystemExit: 0" in ran.stderr
    assert "another class of yours, called sys.exit" in ran.stderr
    assert "Traceback" not in ran.stderr
