"""`start_from=DIR`: a run takes the networks and the normalisers of another one."""

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import read
from tests.test_damaged_checkpoints import LEARNING, SMALL
from tests.test_training import learned
from tests.toy_spaces import Stamped
from walle.agent import checkpoint
from walle.config import compose
from walle.errors import ConfigError
from walle.policy.starting import Parent
from walle.timing import AGENT_SECTIONS, Timer
from walle.training import Training, make_problem, train

ROOT = Path(__file__).resolve().parents[2]
AIM = ("env=gym", "env.id=tests.toy:Aim")
RUNS = {
    "ppo": ("algo=ppo", *AIM, "algo.epochs=1"),
    "gru": (
        *("algo=ppo", "env=gym", "env.id=tests.toy:Recall", "algo.epochs=1"),
        *("net=gru", "net.hidden=8", "net.sequence=4", "algo.minibatch_size=32"),
    ),
    "cnn": ("algo=a2c", "env=gym", "env.id=tests.toy_images:Look", "net=cnn"),
    "a3c": ("algo=a3c", *AIM, "sampler=process", "sampler.n=1", "sampler.max_lag=null"),
    "ppo_kl": ("algo=ppo_kl", *AIM, "algo.epochs=1"),
    "pqn": ("algo=pqn", "env=acrobot", "algo.epochs=1", "algo.normalize_observations=true"),
    "trpo": ("algo=trpo", "env=gym", "env.id=tests.toy:Constant"),
    "dqn": ("algo=dqn", "env=cartpole", *LEARNING),
    "ddpg": ("algo=ddpg", *AIM, *LEARNING),
    "td3": ("algo=td3", *AIM, *LEARNING),
    "sac": ("algo=sac", *AIM, *LEARNING),
    "xqc": ("algo=xqc", *AIM, *LEARNING),
}
SLOW = ("a3c", "ddpg", "cnn", "xqc")


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A function that returns the directory of the run with that name in `RUNS`."""
    made = {}

    def _parent(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            train(compose([*SMALL, *RUNS[name]]), made[name])
        return made[name]

    return _parent


def start(directory, *overrides):
    """The algorithm's state of a new run from `directory`, before it starts, and its line."""
    config = compose([*SMALL, *overrides, f"start_from={directory}"])
    problem, environment = make_problem(config)
    timer = Timer(AGENT_SECTIONS)
    made = Training(config, Path(), timer, problem, environment, None, Parent.read(directory))
    (line,) = made.news
    return checkpoint.as_data(made._algorithm.state_dict()), line


def leaves(state, path=""):
    parts = enumerate(state) if isinstance(state, list) else state.items()
    for key, part in parts:
        name = f"{path}.{key}" if path else f"{key}"
        if isinstance(part, dict | list):
            yield from leaves(part, name)
        else:
            yield name, part


def is_equal(ours, theirs):
    ours, theirs = (torch.as_tensor(x, dtype=torch.float64) for x in (ours, theirs))
    return torch.equal(ours, theirs)


ON_POLICY = r"vector|(value|baseline)\.vector|normalizers\.(obs|reward\.moments)\..*"
NAMES = {  # as the line lists them, and the entries of the state; in `tensors` Adam has three
    "dqn": ("values, target", r"tensors\.[04]"),
    "ddpg": ("policy, critic, policy_target, critic_target", r"tensors\.[0489]"),
    "td3": ("policy, critic, policy_target, critic_target", r"tensors\.[0489]"),
    "sac": ("policy, critic, log_temperature, critic_target", r"tensors\.([048]|12)"),
    "xqc": (
        "policy, critic, log_temperature, critic_target, policy_moments, critic_moments",
        r"tensors\.([048]|12|13|14)|rewards\.moments\..*",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RUNS]
)
def test_networks_and_normalisers_are_taken_and_the_rest_is_new(parent, name):
    directory = parent(name) / "checkpoints" / "last.pt"
    before = checkpoint.load(directory)["algorithm"]
    if name == "ppo":  # the schedule of its noise begins again
        before["vector"][before["vector"] == -1.0] = -0.5
    lanes = () if name == "gru" else ("sampler.lanes=2",)  # another number
    found, line = start(directory, *RUNS[name], *lanes, "seed=9", "algo.gamma=0.5")
    new = dict(leaves(found))
    words = "policy, critic, normaliser of observations, normaliser of rewards"
    words, taken = NAMES.get(name, (words, ON_POLICY))
    assert f"256 steps: takes {words}; anew: optimizers, schedules, counters, random" in line
    assert ("replay buffer; the first 64 steps are random" in line) == (name in NAMES)
    same = {key for key, part in leaves(before) if re.fullmatch(taken, key)}
    assert len(same) > 1
    for key, part in leaves(before):
        if key in same:
            assert is_equal(new[key], part), key
    others = {k: x for k, x in new.items() if k not in same and "generator" not in k}
    usual = {"beta": 1.0, "rate": 1.0}
    assert all(
        (torch.as_tensor(x) == usual.get(k, 0)).all() for k, x in others.items() if x is not None
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_samplers_learners_and_a_resumption_change_no_bit(
    parent, tmp_path, monkeypatch, command, capsys, name
):
    shutil.copytree(parent(name), tmp_path / "before")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    first = tmp_path / "before/checkpoints/best.pt"
    quick = (*SMALL, *RUNS[name], "logger.progress=lines", "start_from=../before", "seed=3")
    quick += ("+env.kwargs.ends=terminated", "learner.shards=2", "schedule_steps=256")
    ways = {
        "serial": (),
        "two": ("sampler=process", "sampler.n=2", "learner.n=2"),
        "short": ("total_steps=128",),
    }
    for how, more in ways.items():
        command(*quick, *more, f"hydra.run.dir=../{how}")
        assert f"starting from {first}, " in capsys.readouterr().out
    shutil.rmtree(tmp_path / "before")
    command("resume=../short", "total_steps=256", "start_from=../before")
    assert "starting from" not in capsys.readouterr().out
    told = json.loads((tmp_path / "short/run.json").read_text())
    assert told["parent"]["checkpoint"] == str(first)
    whole = learned(tmp_path / "serial")
    assert len(whole) == 4
    assert [learned(tmp_path / how) == whole for how in ("two", "short")] == [True, True]


def test_large_numbers_keep_the_offset_of_the_parent(tmp_path, monkeypatch):
    run = (*SMALL, "algo=ppo", "algo.epochs=1", "env=gym", "env.id=tests.toy_spaces:Stamped")
    train(compose(run), tmp_path / "before")
    monkeypatch.setattr(Stamped, "START", 1.7e9 + 64)
    train(compose([*run, f"start_from={tmp_path / 'before'}"]), tmp_path / "after")
    found = [
        checkpoint.load(tmp_path / name / "checkpoints/last.pt") for name in ("before", "after")
    ]
    assert [state["offset"].tolist() for state in found] == [[1.7e9, 0]] * 2
    # An offset that float32 cannot bridge, and one of another shape.
    monkeypatch.setattr(Stamped, "START", 1.7e9 + 2**25)
    wider = ("env.time_feature=true", "env.episode_limit=8")
    for other, line in (((), "differ by 3.4e+07"), (wider, "this one space of obs=Box(3,)")):
        with pytest.raises(ConfigError, match=re.escape(line)):
            train(compose([*run, *other, f"start_from={tmp_path / 'before'}"]), tmp_path / "far")
    assert not (tmp_path / "far").exists()


REFUSED = {
    "algorithm": (("algo=ppo_kl",), "that run has algo.name=ppo, and this one algo.name=ppo_kl"),
    "net": (
        ("net.critic_hidden=[8]",),
        "that run has net.critic_hidden=[16, 16], and this one net.critic_hidden=[8]",
    ),
    "kind of net": (("net=gru", "net.sequence=4"), "that run has net.name=mlp, and this one net.n"),
    "normaliser": (
        ("algo.normalize_observations=false",),
        "has algo.normalize_observations=True, and this one algo.normalize_observations=False",
    ),
    "observations": (
        ("env.time_feature=true", "env.episode_limit=8"),
        "that run has space of obs=Box(2,), and this one space of obs=Box(3,)",
    ),
    "actions": (
        ("env.id=tests.toy:Constant",),
        "that run has space of action=Box(1,), and this one space of action=Discrete(2)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_algorithm_net_or_space_is_refused_with_both(parent, tmp_path, case):
    overrides, message = REFUSED[case]
    config = compose([*SMALL, *RUNS["ppo"], *overrides, f"start_from={parent('ppo')}"])
    with pytest.raises(ConfigError) as error:
        train(config, tmp_path / "run")
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("ppo", r"normalizers\.obs\.mean is float64 \[2\], and this run has float64 \[3\]"),
        ("sac", r"tensors\.0 is float32 \[354\], and this run has float32 \[370\]"),
    ],
)
def test_a_parent_of_an_older_version_with_other_spaces_names_both_shapes(
    parent, tmp_path, name, shapes
):
    state = checkpoint.load(parent(name) / "checkpoints" / "last.pt")
    del state["policy"]
    checkpoint.save(tmp_path / "last.pt", state)
    with pytest.raises(ConfigError, match=f"has other shapes .*: .*{shapes}"):
        start(tmp_path / "last.pt", *RUNS[name], "env.time_feature=true", "env.episode_limit=8")


@pytest.mark.parametrize(("name", "normalized"), [("td3", False), ("xqc", True)])
def test_a_run_of_version_0_3_tells_by_its_state_whether_rewards_were_normalised(
    tmp_path, command, monkeypatch, name, normalized
):
    key, run = "algo.normalize_rewards", (*SMALL, *RUNS[name])
    train(compose([*run, f"{key}={normalized}"]), tmp_path)
    newer = ("normalize_rewards", "schedule", "adam_beta1")[: 3 if name == "td3" else 1]
    for path in (tmp_path / "checkpoints").glob("*.pt"):
        state = checkpoint.load(path)
        for setting in newer:
            del state["config"]["algo"][setting]
        checkpoint.save(path, state)
    told = json.loads((tmp_path / "run.json").read_text())
    for setting in newer:
        del told["config"]["algo"][setting]
    (tmp_path / "run.json").write_text(json.dumps(told))
    start(tmp_path, *run, f"{key}={normalized}")
    with pytest.raises(
        ConfigError, match=rf"{key}={normalized}, and this one {key}={not normalized};"
    ):
        start(tmp_path, *run, f"{key}={not normalized}")
    monkeypatch.chdir(tmp_path)
    command("resume=.", "total_steps=384")
    resumed = checkpoint.load(tmp_path / "checkpoints/last.pt")
    assert (resumed["env_steps"], "rewards" in resumed["algorithm"]) == (384, normalized)


@pytest.mark.parametrize("fault", ["missing", "one byte", "half", "field", "infinite", "nothing"])
def test_a_parent_that_cannot_be_read_ends_with_two_and_one_line(
    parent, tmp_path, command, capsys, fault
):
    before = shutil.copytree(parent("ppo"), tmp_path / "before")
    best = before / "checkpoints" / "best.pt"
    data, state = best.read_bytes(), torch.load(best, weights_only=True)
    if fault == "missing":
        best = before = tmp_path / "elsewhere"
    elif fault in ("one byte", "half"):
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        best.write_bytes(flipped if fault == "one byte" else data[:middle])
    elif fault == "nothing":
        shutil.rmtree(best.parent)
    else:
        del state["checksums"]  # as older versions wrote it
        vector = state["algorithm"]["vector"]
        state["algorithm"]["vector"] = vector[1:] if fault == "field" else vector * math.inf
        torch.save(state, best)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        command(*SMALL, *RUNS["ppo"], f"start_from={before}", f"hydra.run.dir={tmp_path}/run")
    found = capsys.readouterr()
    assert (ended.value.code, found.err.count("\n"), found.out) == (2, 1, "")
    assert str(before if fault == "nothing" else best) in found.err
    readable = (
        "; last.pt beside it can be read: use which=last (start_from=DIR/last) to continue from it"
    )
    assert (readable in found.err) == (fault not in ("missing", "nothing"))
    assert not (tmp_path / "run").exists()


def test_a_directory_its_checkpoints_and_their_names_mean_the_same_as_for_load(parent):
    run = parent("ppo")
    files = run / "checkpoints"
    named = {run: "best", run / "best": "best", run / "last": "last", files: "best"}
    named |= {files / "last": "last", files / "last.pt": "last"}
    found = {path: Parent.read(path).file for path in named}
    assert found == {path: files / f"{name}.pt" for path, name in named.items()}


def test_nothing_that_the_parent_names_is_imported(parent, tmp_path):
    state = checkpoint.load(parent("ppo") / "checkpoints" / "last.pt")
    state["config"]["env"]["id"] = "tests.nowhere:Env"
    state["policy"]["net"]["own"] = {"path": "tests.nowhere:Net", "settings": {}}
    checkpoint.save(tmp_path / "last.pt", state)
    assert "takes policy" in start(tmp_path / "last.pt", *RUNS["ppo"])[1]
    state["config"]["algo"]["name"] = "tests.nowhere:Algorithm"
    checkpoint.save(tmp_path / "last.pt", state)
    with pytest.raises(ConfigError, match=r"has algo\.name=tests\.nowhere:Algorithm, and this one"):
        start(tmp_path / "last.pt", *RUNS["ppo"])


@pytest.mark.slow
def test_a_sweep_starts_from_runs_beside_the_user(parent, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(parent("ppo"), tmp_path / name)
    words = (*SMALL, *RUNS["ppo"], "eval.episodes=0", "hydra.sweep.dir=sweep")
    more = ("start_from=a,b/last,gone", "hydra.job.chdir=true", "hydra.launcher.check_cores=false")
    arguments = [sys.executable, "-m", "walle.run", "-m", *words, *more]
    ended = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, (tmp_path / "sweep").exists()) == (2, False)
    assert f"start_from=gone: start_from: {tmp_path}/gone does not exist" in ended.stderr
    arguments[-3] = "start_from=a,b/last"
    subprocess.run(arguments, cwd=tmp_path, check=True, timeout=300)
    told = [json.loads((tmp_path / f"sweep/{i}/run.json").read_text()) for i in range(2)]
    files = [each["parent"]["checkpoint"] for each in told]
    assert files == [
        f"{tmp_path}/{name}.pt" for name in ("a/checkpoints/best", "b/checkpoints/last")
    ]


@pytest.mark.slow
def test_the_commands_of_the_page_run(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = (ROOT / "docs/using_policies.md").read_text().partition("## Fine-tune\n")[2]
    lines = re.search(r"```sh\n(.+?)```", section, re.DOTALL)[1].strip().splitlines()
    assert len(lines) == 4
    for line in lines:
        words = shlex.split(line, comments=True)[2:]
        words = [re.sub(r"^total_steps=.*", "total_steps=256", word) for word in words]
        sac = "algo=sac" in words
        learning = ("algo.learning_starts=64", "algo.updates_per_step=0.1") if sac else ()
        quick = ("batch_size=64", "sampler.lanes=4", "sampler=serial", "algo.compile=false")
        unmeasured = ("hydra.launcher.check_cores=false",) if "-m" in words else ()
        command(*words, *quick, *learning, *unmeasured, "eval.episodes=1")
    jobs = sorted((tmp_path / "multirun").rglob("run.json"))
    assert [bool(json.loads(job.read_text())["parent"]) for job in jobs] == [True, False]
    assert read(jobs[0].with_name("iterations.csv"))
