import csv
import shutil
import sys
from pathlib import Path

import pytest

import walle
from tests.policy.conftest import SMALL_NET, TINY, settings, trained  # noqa: F401 - a fixture
from walle import eval as command
from walle.eval import Target, find_targets, summary, varying
from walle.policy.acting import Origin
from walle.policy.arguments import Setting, parse
from walle.policy.evaluating import Result


@pytest.fixture
def walle_eval(monkeypatch, capsys):
    """The command in this process: exit code, stdout and stderr."""

    def _eval(*arguments):
        monkeypatch.setattr(sys, "argv", ["walle eval", *map(str, arguments)])
        code = command.main()
        found = capsys.readouterr()
        return code, found.out, found.err

    return _eval


@pytest.fixture
def sweep(trained, tmp_path):  # noqa: F811
    for name in ("discrete", "mujoco"):
        shutil.copytree(trained(name), tmp_path / "sweep" / name)
    return tmp_path / "sweep"


def test_a_run_is_evaluated_as_from_python(walle_eval, trained):  # noqa: F811
    code, out, err = walle_eval(trained("discrete"), "episodes=4", "seed=3")
    expected = walle.evaluate(trained("discrete"), 4, seed=3)
    assert (code, out, err) == (0, f"{trained('discrete')}: {expected}\n", "")


@pytest.mark.slow
def test_the_runs_of_a_sweep_are_evaluated_side_by_side(walle_eval, sweep, trained, tmp_path):  # noqa: F811
    """A run whose checkpoint is damaged costs one line, and the exit code says so."""
    shutil.copytree(trained("clip"), sweep / "z")
    (sweep / "z" / "checkpoints" / "best.pt").write_bytes(b"no zip")
    code, out, err = walle_eval(
        sweep, "episodes=2", "processes=2", f"csv={tmp_path / 'new' / 'a.csv'}"
    )
    assert code == 1
    assert err.startswith("walle eval: z: ")
    assert "is damaged" in err
    with (tmp_path / "new" / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["discrete", "mujoco"]
    for row in rows:
        expected = walle.evaluate(sweep / row["run"], 2)
        assert float(row["return_mean"]) == expected.mean.value
        assert row["env"] == expected.env_id
    assert out.count("2 episodes") == 2


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_an_environment_may_end_its_process(walle_eval, sweep, tmp_path, processes):
    """It costs no other result."""
    marker = tmp_path / "marker"
    marker.touch()  # with it the environment does not fail
    kwargs = ["+env.kwargs.how=exit", "+env.kwargs.at=3", f"+env.kwargs.marker={marker}"]
    fails = ["env=gym", "env.id=tests.toy:FailsOnce", "algo.compile=false", *kwargs]
    walle.train(walle.compose([*TINY, *SMALL_NET, *fails]), sweep / "fails")
    marker.unlink()
    code, out, err = walle_eval(sweep, "episodes=2", f"processes={processes}")
    assert (code, err.count("\n")) == (1, 1)
    assert [line.partition(":")[0] for line in out.splitlines()[:2]] == ["discrete", "mujoco"]
    assert err.startswith("walle eval: fails: the process that evaluated it was killed, or its")
    assert f"`walle eval {sweep / 'fails'}` repeats this run" in err


@pytest.mark.slow
def test_a_run_that_was_broken_off_is_in_no_mean(walle_eval, trained, tmp_path):  # noqa: F811
    for seed, name in enumerate("abc"):
        run = tmp_path / "sweep" / name
        shutil.copytree(trained("discrete"), run)
        about = (run / "run.json").read_text()
        (run / "run.json").write_text(about.replace('"seed": 0', f'"seed": {seed}'))
    status = tmp_path / "sweep" / "b" / "status.json"
    status.write_text(status.read_text().replace('"completed"', '"interrupted"'))
    table = tmp_path / "new" / "a.csv"
    code, out, err = walle_eval(tmp_path / "sweep", "episodes=2", f"csv={table}")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == ["a", "b", "c"]
    assert [line.endswith(", interrupted run") for line in lines[:3]] == [False, True, False]
    assert lines[3].startswith("all: mean return of 2 runs ")
    assert lines[4] == "in no mean, as they did not complete: b (interrupted)"
    with table.open() as file:
        states = [row["state"] for row in csv.DictReader(file)]
    assert states == ["completed", "interrupted", "completed"]


def test_typed_settings_that_differ_name_the_runs():
    shared = ["env=hopper"]
    assert varying([[*shared, "seed=1"], [*shared, "seed=2", "+env.kwargs.a=b"]]) == [
        {"seed": "1", "env.kwargs.a": "default"},
        {"seed": "2", "env.kwargs.a": "b"},
    ]


def result(mean):
    return Result(Origin("x", "ppo", 1, 0), "X", 0, True, [mean, mean], [1, 1], {})


def of_sweep(place, algo, seed, possible=(0.0, 6.0)):
    typed = {"algo": algo, "seed": str(seed)}
    return Target(f"{algo}{seed}", Path("x"), typed, "completed", Path(place), possible)


def test_runs_of_equal_settings_are_summarised():
    """The interval of 3 and 5 is 4 -+ 12.7, and it ends at the possible returns."""
    jobs = [("ppo", 1, 3.0), ("a2c", 1, 9.0), ("ppo", 2, 5.0)]
    found = [(of_sweep("s", algo, seed), result(mean)) for algo, seed, mean in jobs]
    assert list(summary(found)) == ["algo=ppo: mean return of 2 runs 4 [0, 6]"]


def test_policies_named_by_themselves_and_runs_of_two_sweeps_have_no_common_mean():
    """Nobody said that they differ in their seed alone."""
    alone = [(Target(name, Path(name), {}), result(1.0)) for name in ("outputs/a", "outputs/b")]
    assert not list(summary(alone))
    two = [
        (of_sweep(place, "ppo", seed), result(3.0 + seed)) for place in "st" for seed in range(2)
    ]
    assert [line.partition(":")[0] for line in summary(two)] == ["s algo=ppo", "t algo=ppo"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "no path: give a run's directory"),
        (("x", "episode=3"), "episode is not a setting; did you mean 'episodes'?"),
        (("x", "--episodes", "3"), "--episodes is not a flag; settings are written episodes=VALUE"),
        (("x", "episodes=few"), "episodes='few' must be a whole number"),
        (("x", "episodes=2.5"), "episodes='2.5' must be a whole number"),
        (("x", "deterministic=1"), "deterministic='1' must be true or false"),
        (("x", f"csv={__file__}/a.csv"), "File exists"),
        (("nowhere/at=all",), "nowhere/at=all: no such directory"),
        (("x", "video_steps=5"), "video_steps=5 must be 1 at least, beside video=FILE"),
        (("x", "processes=-1"), "processes=-1 must be 1 at least"),
        (("x", "processes=0"), "processes=0 must be 1 at least"),
        (("x", "seed=-1", "video=a.gif"), "seed=-1 must be 0 at least"),
        (("x", "seed=-1", "--watch"), "seed=-1 must be 0 at least"),
        (("x", "csv=."), "csv=. is a directory: name a file in it"),
        (("x", "video=."), "video=. is a directory: name a file in it"),
    ],
)
def test_mistakes_are_one_line_and_code_2(walle_eval, arguments, expected):
    code, out, err = walle_eval(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_settings_and_paths_may_come_in_any_order(tmp_path):
    settings = {"n": Setting(int, 1, "a number"), "flag": Setting(bool, False, "a switch")}
    paths, values, flags = parse(
        ["n=1e3", "--far", "a/b=c", "flag=True", "d"], "", settings, {"--far": "far"}
    )
    assert [str(path) for path in paths] == ["a/b=c", "d"]
    assert (values, flags) == ({"n": 1000, "flag": True}, {"far": True})


def test_help_shows_every_setting(walle_eval, capsys):
    with pytest.raises(SystemExit) as ended:
        walle_eval("--help")
    found = capsys.readouterr().out
    assert ended.value.code == 0
    assert "seed of the episodes, which are the same for every policy (default: 0)" in found
    assert all(f"  {name} " in found for name in command.SETTINGS)


def test_a_file_is_a_target_of_its_own(trained):  # noqa: F811
    file = trained("discrete") / "checkpoints" / "last.pt"
    assert find_targets(file, several=False) == [Target(str(file), file, {})]


def test_what_cannot_be_drawn_is_refused_before_the_evaluation(walle_eval, trained, tmp_path):  # noqa: F811
    code, out, err = walle_eval(trained("memory"), f"video={tmp_path / 'a.gif'}")
    assert (code, out) == (2, "")
    assert "tests.toy:Recall-v0" in err


@pytest.mark.parametrize("name", ["eval.csv", "checkpoints/last.pt", "../manifest.json"])
def test_a_table_replaces_no_file_of_a_run_or_a_sweep(walle_eval, sweep, name):
    (sweep / "manifest.json").write_text("{}")
    table = sweep / "discrete" / name
    before = table.read_bytes()
    code, out, err = walle_eval(sweep / "discrete", "episodes=1", f"csv={table}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is a file of a run or a sweep: give another name" in err
    assert table.read_bytes() == before
    own = [sweep / "discrete", "episodes=1", f"csv={sweep / 'own.csv'}"]
    assert [walle_eval(*own)[0] for _ in range(2)] == [0, 0]


def test_an_environment_may_change_the_directory_and_fail_in_a_video(
    walle_eval, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    words = [*TINY, *SMALL_NET, *settings("ppo"), "env=gym", "env.id=tests.toy:Restless"]
    walle.train(walle.compose([*words, f"+env.kwargs.to={tmp_path / 'elsewhere'}"]), "run")
    for steps, expected in ((2, 0), (9, 1)):
        monkeypatch.chdir(tmp_path)
        words = ("trust=true", "episodes=2", "csv=a.csv", "video=a.gif", f"video_steps={steps}")
        code, _, err = walle_eval("run", *words)
        assert code == expected
    message = "walle eval: the episode cannot be shown beyond step 3: RuntimeError: the gearbox "
    assert err.splitlines()[-1].startswith(message)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert {"run", "a.csv", "a.gif"} <= {path.name for path in tmp_path.iterdir()}
