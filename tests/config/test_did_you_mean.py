"""Errors of Hydra in one line with the cure, as a user meets them."""

import argparse

import pytest
from hydra.errors import MissingConfigException

from walle.config import compose
from walle.config.did_you_mean import explain
from walle.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("+algo.gamma=0.9", "algo.gamma has a value already; drop the +: algo.gamma=..."),
        ("+env=hopper", "env has a value already; drop the +: env=..."),
        ("+algo=ppo", "algo has a value already; drop the +: algo=..."),
        ("seed=1,2", "seed=1,2 has several values; for a sweep over them add -m"),
        (
            "net=[mlp,gru]",
            "net=[mlp,gru]: a run has one net; for a sweep over several type -m net=",
        ),
        ("+env=[ant,hopper]", "+env=[ant,hopper]: a run has one env; for a sweep over several"),
        ("logger.info={x:1}", "logger.info={x:1} must be a list: [...]"),
        ("env.kwargs=[1]", "env.kwargs=[1] must be a mapping: {key: value}"),
        ("logger=[wandb,tensorbord]", "logger=tensorbord does not exist; did you mean 'tensorb"),
        ("algo.lr=3", "algo.lr is not a setting; did you mean algo.learning_rate?"),
        ("gamma=1", "gamma is not a setting; did you mean algo.gamma?"),
        ("n=2", "n is not a setting; did you mean sampler.n or learner.n?"),
        ("tests", "tests is not KEY=VALUE; to resume a run type resume=tests"),
        ("n_envs=8", "n_envs is not a setting; did you mean sampler.lanes?"),
        ("pppo.clip=3", "pppo is not a setting; did you mean 'ppo'?"),
        (
            "hydra.launcher.retires=3",
            "hydra.launcher.retires is not a setting; did you mean 'hydra.launcher.retries'?",
        ),
        ("algo.zzzz=3", "algo.zzzz is not a setting; --help shows the settings"),
        ("env=Ant-v5", "env=Ant-v5 does not exist; did you mean env=ant?"),
        ("env=HalfCheetah-v4", "env=HalfCheetah-v4 does not exist; did you mean env=halfcheetah?"),
        (
            "env=Blackjack-v1",
            "env=Blackjack-v1 does not exist; did you mean env=gym env.id=Blackjack-v1?",
        ),
        ("env=mine:Cart", "env=mine:Cart does not exist; did you mean env=gym env.id=mine:Cart?"),
        ("env=a.b.Cart", "env=a.b.Cart does not exist; did you mean env=gym env.id=a.b:Cart?"),
        (
            "env=ALE/Pong-v5",
            "env=ALE/Pong-v5 does not exist; did you mean env=gym env.id=ALE/Pong-v5?",
        ),
        (
            "env=dm_control/walker-walk-v0",
            "env=dm_control/walker-walk-v0 does not exist; did you mean env=gym env.id=dm_control",
        ),
        ("3", "3 is not KEY=VALUE; type KEY=VALUE, without spaces"),
        ("seed:3", "seed:3 is not KEY=VALUE; type KEY=VALUE, without spaces"),
        ("seed=#3", "seed=#3: Hydra cannot read #3; a text needs quotes: \"seed='...'\""),
        ("seed=1,", "seed=1, is cut off: write several values without spaces, as in seed=A,B"),
        ("logger=[a,", "logger=[a, is cut off: write several values without spaces"),
        ("name=a[z]", "name=a[z]: Hydra cannot read a[z]; a text needs quotes: \"name='...'\""),
        ("hydra.run.dir=x,y", "hydra.run.dir=x,y has several values; a text needs quotes: "),
        ("hydra.launcher.cores=4", "hydra.launcher.cores=4 must be a list: [...]"),
        ("hydra.launcher.threads=two", "hydra.launcher.threads=two: Value 'two' of type 'str'"),
        ("hydra.run.dir=null", "hydra.run.dir=null: field 'hydra.run.dir' is not Optional"),
        ("algo.name=null", "algo.name has no value; give one: algo.name=module:Class"),
        ("~algo.name", "algo.name has no value; give one: algo.name=module:Class"),
        ("algo.name=3", "algo.name='3' is not registered; did you mean"),
        ("env=hoper", "env=hoper does not exist; did you mean 'hopper'?"),
        ("env=zzzz", "env=zzzz does not exist; choose one of: acrobot, ant"),
    ],
)
def test_what_was_meant(override, line):
    with pytest.raises(ConfigError) as caught:
        compose([override])
    assert str(caught.value).startswith(line)


def test_a_launcher_that_is_not_installed_names_its_package():
    options = ["basic", "walle", "walle_schema"]
    error = MissingConfigException("not found", "hydra/launcher/joblib", options)
    assert explain(error) == (
        "hydra/launcher=joblib does not exist; choose one of: basic, walle, or install the package "
        "that has it: hydra-joblib-launcher?"
    )


def test_a_sweep_that_does_not_exist_lists_those_that_do():
    with pytest.raises(ConfigError, match=r"^-cn sped: no sweep has that name; did you mean"):
        compose([], "sped")
    with pytest.raises(ConfigError, match=r"choose one of: algorithms, .*speedup, .*walle sweeps"):
        compose([], "zzzz")


def test_a_sweep_file_of_ones_own_is_suggested_and_a_path_is_not_its_name(tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "own.yaml").write_text("hydra: {mode: MULTIRUN}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^-cn ownn: no sweep has that name; .* 'own'\?"):
        compose([], "ownn")
    for path in ("conf/own", "conf/own.yaml", str(tmp_path / "conf" / "own")):
        line = r"^-cn \S+: \S+ is not in conf/; type -cd \S*conf -cn own$"
        with pytest.raises(ConfigError, match=line):
            compose([], path)
    with pytest.raises(ConfigError, match=r"^-cn \.: no sweep has that name"):
        compose([], ".")


def test_a_python_on_which_hydra_does_not_start_is_one_line(command, capsys, monkeypatch):
    """As `argparse` of Python 3.14, which checks every help text when an option is added."""
    add = argparse.ArgumentParser.add_argument

    def checking(self, *names, **settings):
        if not isinstance(settings.get("help", ""), str):
            raise ValueError("badly formed help string")  # noqa: TRY004
        return add(self, *names, **settings)

    monkeypatch.setattr(argparse.ArgumentParser, "add_argument", checking)
    with pytest.raises(SystemExit) as ended:
        command("env=cartpole")
    found = capsys.readouterr()
    assert (ended.value.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert found.err.startswith("walle: Hydra 1.")
    assert found.err.endswith("does not start on Python 3.14; use Python 3.11 to 3.13\n")
