"""The files and the commands of own_settings.md and own_classes.md, in a directory of the user."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from walle.system.run_files import read_status

ROOT = Path(__file__).resolve().parents[2]
PAGE = "".join((ROOT / "docs" / f"own_{x}.md").read_text() for x in ("settings", "classes"))
# The files whole, as a reader copies them: a header of Hydra counts in the first lines alone.
BLOCKS = re.findall(r"```(?:yaml|python)\n(.*?)```", PAGE, re.DOTALL)
FILES = [(re.findall(r"^# (\S+\.(?:py|yaml))$", text, re.MULTILINE)[0], text) for text in BLOCKS]
COMMANDS = re.findall(r"^walle run (.*)$", PAGE, re.MULTILINE)
TINY = (
    "total_steps=512",
    "batch_size=256",
    "sampler.lanes=8",
    "sampler=serial",
    "seed=0",
    "eval.episodes=0",
    "logger.progress=quiet",
)
EARLY = ("algo.learning_starts=256", "algo.updates_per_step=0.05")
UNMEASURED = "hydra.launcher.check_cores=false"


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """The page's files and examples/own_package in the working directory."""
    shutil.copytree(ROOT / "examples" / "own_package", tmp_path, dirs_exist_ok=True)
    for name, text in FILES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    of_the_page = ("early", "corridor", "residual")
    for module in [name for name in sys.modules if name.split(".")[0] in of_the_page]:
        monkeypatch.delitem(sys.modules, module)


@pytest.fixture
def composed(beside, command, capsys):
    """Composes the settings of a command typed beside the page's files."""

    def _composed(*arguments):
        capsys.readouterr()
        command(*arguments, "--cfg", "job")
        return OmegaConf.create(capsys.readouterr().out)

    return _composed


def test_an_experiment_changes_any_settings(composed):
    found = composed("+experiment=mine", "seed=3")
    assert (found.algo.name, found.env.name, found.seed) == ("a2c", "cartpole", 3)
    assert (found.total_steps, found.batch_size) == (100_000, 512)
    assert found.algo.learning_rate == 1e-3


def test_an_experiment_with_a_comment_before_its_header_says_so(beside, command, capsys):
    file = beside / "conf" / "experiment" / "mine.yaml"
    file.write_text("# Mine.\n" + file.read_text())
    with pytest.raises(SystemExit):
        command("+experiment=mine", "--cfg", "job")
    said = capsys.readouterr().err
    assert said == (
        "walle: conf/experiment/mine.yaml must begin with the line `# @package _global_`, "
        "before any other comment\n"
    )


def test_an_environment_of_ones_own(composed):
    found = composed("env=short").env
    assert (found.name, found.id, found.episode_limit) == ("short", "CartPole-v1", 50)


def test_a_sweep_of_ones_own(composed):
    found = composed("-cn", "learning_rates")
    assert (found.name, found.env.name, found.total_steps) == ("learning_rates", "cartpole", 1e5)


def test_the_directory_may_be_named(composed, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert composed("env=short", "--config-dir", str(tmp_path / "conf")).env.name == "short"
    with pytest.raises(SystemExit) as refused:
        composed("env=short")
    assert refused.value.code == 2


def test_an_experiment_that_does_not_exist(composed, capsys):
    with pytest.raises(SystemExit) as refused:
        composed("+experiment=mien")
    assert refused.value.code == 2
    assert capsys.readouterr().err.startswith(
        "walle: experiment=mien does not exist; did you mean 'mine'?"
    )


def test_the_page_has_files_and_commands():
    assert len(FILES) >= 6
    assert len(COMMANDS) >= 12
    assert sum("-m" in command or "-cn" in command for command in COMMANDS) >= 5


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["env=ant"], (5, 2048)),  # tuned
        (["-cn", "order"], (5, 2048)),
        (["-cn", "order", "+experiment=order"], (7, 1024)),
        (["-cn", "order", "+experiment=order", "algo.epochs=8"], (8, 1024)),
    ],
)
def test_the_order_is_as_the_page_has_it(typed, expected, composed, beside):
    sweep = "defaults: [config, override env: ant, _self_]\nseed: 3\n"
    (beside / "conf" / "order.yaml").write_text(sweep)
    mine = "# @package _global_\nseed: 4\nbatch_size: 1024\nalgo:\n  epochs: 7\n"
    (beside / "conf" / "experiment" / "order.yaml").write_text(mine)
    found = composed(*typed)
    assert (found.algo.epochs, found.batch_size) == expected
    assert found.seed == {1: 0, 2: 3, 3: 4, 4: 4}[len(typed)]


DRY = [each for each in COMMANDS if "ppo.clip" in each or "two_algorithms" in each]
SINGLE = [each for each in COMMANDS if not re.search(r"(^| )(-m|-cn|--cfg) ", each)]
SWEEPS = [each for each in COMMANDS if each not in (*DRY, *SINGLE) and "--cfg" not in each]


@pytest.mark.slow
@pytest.mark.parametrize("typed", SINGLE)
def test_each_run_of_the_page_works_at_a_tiny_size(typed, beside, command):
    off_policy = re.search(r"algo=(sac|dqn)\b", typed)
    command(*typed.split(), *TINY, *(EARLY if off_policy else ()))
    (run,) = (file.parent for file in beside.rglob("status.json"))
    assert read_status(run)["state"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("typed", SWEEPS)
def test_each_sweep_of_the_page_works_at_a_tiny_size(typed, beside, command):
    command(*typed.split(), *TINY, UNMEASURED)
    runs = [file.parent for file in beside.rglob("status.json")]
    assert len(runs) >= 2
    assert {read_status(run)["state"] for run in runs} == {"completed"}


@pytest.mark.slow
@pytest.mark.parametrize("typed", DRY)
def test_sweeps_with_settings_of_one_algorithm_have_the_jobs_that_the_page_says(
    typed, beside, command, capsys
):
    """`tests/config/test_callback.py` runs such a sweep."""
    command(*typed.split(), *TINY, UNMEASURED, "hydra.launcher.dry_run=true")
    assert "3 jobs in" in capsys.readouterr().out  # 9 with three seeds


def test_what_a_command_comes_to_is_shown(composed):
    (typed,) = (each for each in COMMANDS if each.endswith("--cfg job"))
    found = composed(*typed.split()[:-2])
    assert (found.algo.epochs, found.algo.name, found.env.name) == (5, "ppo", "cartpole")
