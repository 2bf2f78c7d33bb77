"""Settings of single algorithms in sweeps, from the command line and from a sweep file."""

import json

import pytest

from walle.config.callback import with_plus_signs
from walle.errors import ConfigError
from walle.launcher.records import read_manifest

FILE = """\
# Two algorithms.
defaults: [config, override env: cartpole, _self_]
name: two
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      algo: ppo,a2c
      ppo.clip: 0.1,0.3
      a2c.batch_size: 256
"""
DRY = "hydra.launcher.dry_run=true"


@pytest.fixture
def planned(tmp_path, monkeypatch, command, capsys):
    """The jobs of a dry run beside the file above, without their numbers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "two.yaml").write_text(FILE)

    def _planned(*arguments):
        capsys.readouterr()
        command(*arguments, DRY)
        lines = [line for line in capsys.readouterr().out.splitlines() if "][walle] run " in line]
        return sorted(line.rpartition(": ")[2] for line in lines)

    return _planned


def test_plus_signs_come_before_names_of_algorithms_alone():
    typed = ["walle", "-m", "algo=ppo,a2c", "ppo.clip=0.1", "algo.clip=1", "eval.every=1", "ppo.x"]
    assert with_plus_signs(typed) == [
        *typed[:3],
        "++ppo.clip=0.1",
        *typed[4:],
    ]
    assert with_plus_signs(["+ppo.x=1", "ppo_x.y=1"]) == ["+ppo.x=1", "ppo_x.y=1"]


@pytest.mark.slow
def test_a_sweep_file_and_the_command_line(planned):
    assert planned("-cn", "two", "a2c.batch_size=512") == [
        "algo=a2c batch_size=512",
        "algo=ppo algo.clip=0.1",
        "algo=ppo algo.clip=0.3",
    ]


@pytest.mark.slow
def test_an_algorithm_of_the_search_path(planned, tmp_path):
    (tmp_path / "more" / "algo").mkdir(parents=True)
    (tmp_path / "more" / "algo" / "mine.yaml").write_text("defaults: [ppo, _self_]\n")
    place = f"hydra.searchpath=[file://{tmp_path / 'more'}]"
    assert planned("-m", place, "env=cartpole", "algo=mine,a2c", "mine.clip=0.1,0.3") == [
        "algo=a2c",
        "algo=mine algo.clip=0.1",
        "algo=mine algo.clip=0.3",
    ]


def test_a_wrong_one_is_refused_before_anything_starts(planned, tmp_path, capsys):
    with pytest.raises(SystemExit) as refused:
        planned("-m", "algo=ppo,a2c", "name=wrong", "ppo.clipp=0.1")
    assert refused.value.code == 2
    said = "ppo.clipp=0.1: ppo has no setting clipp; did you mean 'ppo.clip'?"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "multirun").exists()


def test_a_single_run_is_told_how_to_say_it(planned, tmp_path, capsys):
    with pytest.raises(SystemExit) as refused:
        planned("algo=ppo", "ppo.clip=0.1")
    assert refused.value.code == 2
    assert "in a single run type algo.KEY=VALUE" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


def test_from_python_too():
    from walle import compose

    with pytest.raises(ConfigError, match=r"in a single run type algo.KEY"):
        compose(["ppo.clip=0.1"])


@pytest.mark.slow
def test_jobs_record_the_final_setting_alone_and_are_recognised(planned, command, tmp_path, capsys):
    """The jobs are recorded as if each had been typed with `algo.clip`; a second launch skips."""
    small = ("env=cartpole", "total_steps=512", "batch_size=256", "sampler.n=1", "eval.episodes=0")
    typed = ("-m", "algo=ppo,a2c", "ppo.clip=0.1,0.2", "name=own", *small)
    command(*typed)
    command(*typed, DRY)
    assert capsys.readouterr().out.count("] skip ") == 3
    manifest = read_manifest(tmp_path / "multirun" / "own")
    assert set(manifest.swept) == {"algo", "algo.clip"}
    assert [job.identity.config.get("algo.clip") for job in manifest.jobs] == [0.1, 0.2, None]
    assert all("ppo.clip" not in str(job.identity) for job in manifest.jobs)
    for number in range(3):
        directory = tmp_path / "multirun" / "own" / str(number)
        assert json.loads((directory / "status.json").read_text())["attempts"] == 1
        overrides = json.loads((directory / "run.json").read_text())["overrides"]
        assert not any(one.startswith("++") for one in overrides)
    assert len(list((tmp_path / "multirun" / "own").glob("[0-9]*"))) == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["env=[hopper,ant]"],
            "env=[hopper,ant]: a run has one env; for a sweep over several type",
        ),
        (["start_from=gone", "seed=1,2"], "gone does not exist; give a run's directory"),
        (["-m", "seed=1,2", "net=[mlp,gru]"], "a run has one net; for a sweep over several type"),
        (["algo.clip=${z}"], "algo.clip: Interpolation key 'z' not found; correct the"),
        (["algo.clip=${oc.env:WALLE_NOPE}"], "variable 'WALLE_NOPE' not found\"; set the variable"),
        (["+env.kwargs.a=${seed.x}"], "node `seed` is not a container and thus cannot"),
        (["name=${oc.env:WALLE_NOPE}"], "variable 'WALLE_NOPE' not found\"; set the variable"),
        (["hydra.sweep.dir=${z}"], "Interpolation key 'z' not found; correct the reference"),
        (["hydra.sweep.subdir=${z}"], "Interpolation key 'z' not found; correct the reference"),
        (["-cn", "two", "+hydra.sweeper.params.seed=${z}"], "Interpolation key 'z' not found; c"),
        (["-cn", "two", "algo.gamma=${no.such:3}"], "algo.gamma: Unsupported interpolation type"),
    ],
)
def test_a_reference_without_a_value_is_one_line_in_sweeps(planned, tmp_path, capsys, words, line):
    with pytest.raises(SystemExit) as ended:
        planned(*([] if "-cn" in words else ["-m"]), *words)
    err = capsys.readouterr().err
    assert (ended.value.code, line in err, "Traceback" in err) == (2, True, False), err
    assert all(line in each for each in err.splitlines() if each.startswith(("walle", "algo")))
    assert not list(tmp_path.rglob("run.json"))
