import itertools
import json
import os
import shutil
import threading
import time

import pytest

from tests.conftest import SMALL, read
from walle import algos, training
from walle.agent import checkpoint
from walle.agent.recorder import describe
from walle.algos import engines
from walle.algos.on_policy.ppo import PPO
from walle.config import compose
from walle.envs import EnvSpec
from walle.errors import ConfigError, WorkerError
from walle.sampling import process_sampling
from walle.system import machine
from walle.system.locks import DirectoryLost
from walle.system.run_files import write_status
from walle.training import RunResult, make_algorithm, make_problem, make_tasks, train, warnings

TIMES = {
    "wall_s",
    "iteration_s",
    "collect_s",
    "collect_max_s",
    "compile_s",
    "learn_s",
    "other_s",
    "collect_share",
    "learn_share",
    "env_steps_per_s",
}
CONSTANT = ("env=gym", "env.id=tests.toy:Constant-v0")


def learned(directory):
    """iterations.csv without the columns that tell of time."""
    rows = read(directory / "iterations.csv")
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.mark.parametrize(
    ("env", "counts"),
    [
        ("cartpole", (1, 3)),  # which ends episodes early
        pytest.param("cartpole", (2, 4), marks=pytest.mark.slow),
        pytest.param("halfcheetah", (1, 2, 3, 4), marks=pytest.mark.slow),
    ],
)
def test_learning_does_not_depend_on_the_number_of_samplers(run, env, counts):
    _, serial = run(f"env={env}", "sampler=serial")
    expected = learned(serial)
    assert len(expected) == 3
    for n in counts:
        _, directory = run(f"env={env}", f"sampler.n={n}")
        assert learned(directory) == expected


@pytest.mark.slow
def test_overlapped_learning_does_not_depend_on_it_either(run):
    runs = [run("env=cartpole", f"sampler.n={n}", "sampler.max_lag=1")[1] for n in (1, 3)]
    assert learned(runs[0]) == learned(runs[1])


@pytest.mark.slow
def test_ppo_kl_does_not_depend_on_it_either(run):
    small = ("algo=ppo_kl", "env=hopper", "algo.epochs=3")
    runs = [run(*small, f"sampler.n={n}")[1] for n in (1, 3)]
    assert learned(runs[0]) == learned(runs[1])


@pytest.mark.slow
def test_seeds_differ(run):
    assert learned(run("env=cartpole", "seed=1")[1]) != learned(run("env=cartpole", "seed=2")[1])


def test_lock_step_times_sum_to_the_iteration(run):
    _, directory = run("env=hopper", "sampler.n=2")
    for row in read(directory / "iterations.csv"):
        parts = sum(float(row[name]) for name in ("collect_s", "learn_s", "other_s"))
        assert parts == pytest.approx(float(row["iteration_s"]), rel=0.01)
        assert float(row["collect_s"]) > 0
        assert float(row["other_s"]) >= 0
        assert row["lag_max"] == "0"


@pytest.mark.parametrize("max_lag", ["0", "1", "null"])
def test_sections_sum_to_the_wall_clock(run, max_lag):
    outcome, directory = run("env=hopper", "sampler.n=2", f"sampler.max_lag={max_lag}")
    rows = read(directory / "timing.csv")
    for row in rows:
        sections = [float(v) for k, v in row.items() if k.endswith("_s") and k != "total_s" and v]
        assert sum(sections) == pytest.approx(float(row["total_s"]), rel=0.01)
    agent = sum(float(row["total_s"]) for row in rows if row["process"] == "agent")
    assert agent <= outcome.wall_s
    processes = {row["process"] for row in rows}
    assert {"agent"} < processes <= {"agent", "sampler-0", "sampler-1"}


@pytest.mark.slow
def test_overlap_lags_by_exactly_one_and_saves_time(run):
    slow = ("env=slow", "env.step_ms=1", "sampler.n=2", "sampler.max_lag=1")
    _, directory = run(*slow, "algo.epochs=1000", "total_steps=1536")  # both take 0.2 s and more
    rows = read(directory / "iterations.csv")
    assert [row["lag_max"] for row in rows] == ["0", "1", "1", "1", "1", "1"]
    spent = {part: sum(float(row[part]) for row in rows[2:]) for part in ("collect_s", "learn_s")}
    assert sum(float(row["iteration_s"]) for row in rows[2:]) < sum(spent.values())
    assert all(float(row["collect_s"]) < float(row["collect_max_s"]) for row in rows)
    assert [float(row["compile_s"]) > 0 for row in rows] == [True] + [False] * 5


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["sampler=serial", "sampler.n=2"])
def test_compiling_is_neither_collecting_nor_learning(run, monkeypatch, sampler):
    choose = engines.choose

    def slowly(*arguments):
        time.sleep(3)
        return choose(*arguments)

    monkeypatch.setattr(engines, "choose", slowly)
    outcome, directory = run("env=cartpole", sampler)
    assert outcome.steps_per_s > 2 * outcome.env_steps / outcome.wall_s
    first = read(directory / "iterations.csv")[0]
    assert float(first["other_s"]) > 2  # on a busy machine the samplers still collect for a while
    assert float(first["collect_s"]) + float(first["learn_s"]) < 3
    rows = [row for row in read(directory / "timing.csv") if row["iteration"] == "1"]
    assert [float(row["compile_s"]) > 3 for row in rows if row["process"] == "agent"] == [True]
    if sampler == "sampler.n=2":  # they have collected meanwhile
        assert all(float(row["wait_policy_s"]) < 0.3 for row in rows if row["process"] != "agent")


def test_free_running_measures_its_lag(run):
    _, directory = run("env=cartpole", "sampler.n=2", "sampler.max_lag=null", "total_steps=2560")
    rows = read(directory / "iterations.csv")
    assert int(rows[-1]["env_steps"]) >= 2560
    assert max(int(row["lag_max"]) for row in rows) >= 1
    for row in rows:  # a sampler that waits for a core may be any number of versions behind
        assert 0 <= float(row["lag_mean"]) <= int(row["lag_max"]) <= int(row["policy_version"])


@pytest.mark.slow
def test_unequal_blocks_free_running(run):
    _, directory = run("env=cartpole", "sampler.n=3", "sampler.max_lag=null")
    assert int(read(directory / "iterations.csv")[-1]["env_steps"]) >= 768


def test_what_a_run_writes(run):
    outcome, directory = run("env=cartpole", "eval.every=256", "eval.episodes=3", "trace=true")
    status = json.loads((directory / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["attempts"]) == ("completed", 0, 1)
    provenance = json.loads((directory / "run.json").read_text())
    assert provenance["config"]["sampler"]["n"] >= 1
    assert provenance["seed"] == 0
    assert "environ" not in json.dumps(provenance)
    rows = read(directory / "iterations.csv")
    assert [row["env_steps"] for row in rows] == ["256", "512", "768"]
    assert list(rows[0])[:27] == [
        *("iteration", "env_steps", "episodes", "wall_s", "iteration_s", "collect_s"),
        *("collect_max_s", "learn_s", "other_s", "compile_s", "collect_share", "learn_share"),
        *("env_steps_per_s", "policy_version", "lag_mean", "lag_max", "faults"),
        *("return_mean", "return_round_mean", "return_round_min"),
        *("return_round_max", "return_round_std", "length_mean", "loss", "grad_norm", "kl"),
        "clip_fraction",
    ]
    episodes = read(directory / "episodes.csv")
    assert len(episodes) == int(rows[-1]["episodes"])
    assert set(episodes[0]) == {
        *("env_steps", "wall_s", "sampler", "lane", "policy_version", "return", "length", "end")
    }
    evaluated = read(directory / "eval.csv")
    assert [row["episodes"] for row in evaluated] == ["3", "3", "3"]
    assert outcome.return_mean == float(rows[-1]["return_mean"])
    means = [float(row["return_mean"]) for row in evaluated]
    assert (outcome.eval_mean, outcome.best) == (means[-1], max(means))
    spans = read(directory / "trace.csv")
    assert {row["process"] for row in spans} >= {"agent", "sampler-0"}
    assert {row["section"] for row in spans} >= {"act", "env_step", "update", "wait_experience"}


def test_the_evaluation_comes_first_in_what_a_run_tells():
    result = RunResult(500.0, 501.0, 58.04, 1000, 4.0, None)
    assert str(result) == "evaluation 500.0 (without exploration), last training episodes 58.0"
    assert str(result._replace(eval_mean=None)) == "last training episodes 58.0"
    assert str(result._replace(return_mean=None)) == (
        "evaluation 500.0 (without exploration), no episode ended"
    )
    row = {
        "return_mean": 58.04,
        "env_steps_per_s": 1234.5,
        "collect_share": 0.25,
        "learn_share": 0.5,
        "iteration_s": 1.0,
    }
    text = "return 58.0  1,234 steps/s  collect 25%  learn 50%"
    assert describe(row, 500.0, {}) == f"eval 500.0  {text}"
    assert describe(row, None, {}) == text


@pytest.mark.parametrize(
    ("name", "expected"),
    [("eval", 500.0), ("best", 501.0), ("return", 58.0), ("steps_per_s", 300.0), ("wall_s", 4.0)],
)
def test_a_sweeper_gets_what_objective_names(name, expected):
    result = RunResult(500.0, 501.0, 58.0, 1000, 4.0, None, steps_per_s=300.0)
    assert result.objective(name) == expected


def test_settings_that_a_script_changes_are_checked(tmp_path):
    config = compose(["env=cartpole"])
    config.total_steps = -5
    with pytest.raises(ConfigError, match=r"total_steps=-5 must be positive"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_evaluations_a_sweeper_gets_the_episodes_mean():
    assert RunResult(None, None, 58.0, 1000, 4.0, None).objective("eval") == 58.0


def test_a_run_that_ends_before_its_episodes_says_so():
    def lines(*overrides):
        return list(
            warnings(compose(["env=pendulum", "sampler.lanes=64", *overrides]), 200, EnvSpec(""))
        )

    assert lines("total_steps=12_800") == []
    (line,) = lines("total_steps=12_799")
    assert line.startswith("64 lanes share 12,799 steps, and an episode takes up to 200: few or ")
    assert "total_steps=12_800" in line
    assert lines("total_steps=4096", "algo=trpo", "sampler.collect=episodes") == []


def test_more_samplers_than_cores_are_told(monkeypatch):
    monkeypatch.setattr("walle.training.usable_cores", lambda: [0, 1])
    for fits in (["sampler.n=2"], ["sampler.n=8", "env=slow"], ["sampler=serial"]):
        assert not list(warnings(compose(fits), None, EnvSpec("")))
    (line,) = warnings(compose(["sampler.n=8"]), None, EnvSpec(""))
    assert line.startswith("8 samplers share 2 cores: more than")


def test_every_checkpoint_holds_policy_and_settings(run):
    _, directory = run(
        "env=cartpole", "algo.minibatch_size=64", "eval.every=256", "eval.episodes=2"
    )
    for name in ("last", "best"):
        state = checkpoint.load(directory / "checkpoints" / f"{name}.pt")
        assert state["config"]["env"]["id"] == "CartPole-v1"
        assert state["snapshot"]["version"] >= 1


@pytest.mark.slow
def test_an_earlier_attempt_is_set_aside(tmp_path):
    config = compose(
        ["env=cartpole", "total_steps=256", "batch_size=256", "logger.progress=quiet",
         "eval.episodes=0", "algo.epochs=1"]
    )  # fmt: skip
    for _ in range(2):
        train(config, tmp_path)
    assert json.loads((tmp_path / "status.json").read_text())["attempts"] == 2
    assert len(read(tmp_path / "iterations.csv")) == 1
    assert len(read(tmp_path / "attempts" / "1" / "iterations.csv")) == 1


def test_an_exception_in_an_environment_reaches_the_user(run, tmp_path):
    with pytest.raises(WorkerError, match=r"(?s)sampler-0 failed.*the gearbox broke.*in lane 0"):
        run("env=gym", "env.id=tests.toy:Counter-v0", "+env.kwargs.raise_at=40", "sampler.n=1")
    status = json.loads(next(tmp_path.glob("run*/status.json")).read_text())
    assert status["state"] == "failed"
    assert "gearbox" in status["error"]


def test_a_nan_reward_ends_the_run(run):
    with pytest.raises(WorkerError, match=r"reward of nan in lane"):
        run("env=gym", "env.id=tests.toy:Counter-v0", "+env.kwargs.nan_at=40", "sampler.n=2")


@pytest.mark.parametrize("sampler", ["process", "serial"])
def test_every_environment_is_closed(run, tmp_path, sampler):
    told = tmp_path / "closed"
    run(
        "env=gym", "env.id=tests.toy:Rude-v0", "+env.kwargs.how=well", f"+env.kwargs.closed={told}",
        f"sampler={sampler}", "eval.every=512", "eval.episodes=3", "env.episode_limit=20",
    )  # fmt: skip
    # Two lanes of a trial, two lanes that hand a state over, the environment that holds it, and a
    # pattern of it.
    # Each of two evaluations puts a state back into three lanes: a lane and a pattern are closed.
    probe, lanes, evaluation = 2 + 2 + 2, 8, 3 + 2 * 3 * 2
    assert told.read_text().count("closed") == probe + lanes + evaluation


@pytest.mark.parametrize(  # discrete actions hide a NaN
    ("env", "algo"), [("cartpole", "ppo"), ("pendulum", "ppo"), ("cartpole", "pqn")]
)
def test_a_policy_that_diverges_ends_the_run(run, env, algo):
    with pytest.raises(WorkerError, match="the policy has diverged"):
        run(f"env={env}", f"algo={algo}", "algo.learning_rate=1e38", "algo.normalize_rewards=false")


def test_action_values_that_diverge_end_the_run(tmp_path):
    words = ["env=cartpole", "algo=dqn", "algo.learning_rate=1e38", "algo.learning_starts=256"]
    with pytest.raises(WorkerError, match="the policy has diverged"):
        train(compose([*words, "logger.progress=quiet", "total_steps=2048"]), tmp_path)


def test_serial_sampling_is_pinned_when_asked(run, monkeypatch):
    asked = []
    monkeypatch.setattr("os.sched_setaffinity", lambda _, cores: asked.append(set(cores)))
    run("env=cartpole", "sampler=serial", "sampler.pin=true")
    cores = os.sched_getaffinity(0)
    assert asked == [{min(cores)}, cores]


@pytest.mark.parametrize("override", ["batch_size=1e15", "sampler.max_lag=1000000000"])
def test_rounds_beyond_the_memory_are_refused(run, override):
    with pytest.raises(ConfigError, match=r"GB of shared memory, and this machine or its"):
        run("env=cartpole", override)


def test_an_unknown_environment_fails_before_anything_is_written(run, tmp_path):
    with pytest.raises(ConfigError, match="HalfCheetah"):
        run("env.id=HalfCheeta-v5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("algo", "round_"),
    [
        (("algo=ppo",), 1),
        (("algo=ppo",), 3),
        (("algo=sac", "algo.learning_starts=700"), 1),  # a replay buffer writes files of its own
    ],
)
def test_a_directory_deleted_under_a_run_ends_it(tmp_path, monkeypatch, algo, round_):
    kind, count = algos.load(algo[0].partition("=")[2]), itertools.count(1)
    update = kind.update

    def delete(self, rollout):
        if next(count) == round_:
            shutil.rmtree(tmp_path / "run")
        return update(self, rollout)

    monkeypatch.setattr(kind, "update", delete)
    config = compose(
        [
            *(setting for setting in SMALL if "epochs" not in setting),
            *(*algo, "algo.compile=false", "sampler=serial"),
            *("env=gym", "env.id=Pendulum-v1", "checkpoint.every=256"),
        ]
    )
    with pytest.raises(DirectoryLost, match="run was deleted or moved"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_failure_in_an_evaluation_leaves_a_checkpoint(run, tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("the gearbox broke")

    with monkeypatch.context() as patch:
        patch.setattr("walle.agent.evaluation.Evaluator.evaluate", broken)
        with pytest.raises(ValueError, match="the gearbox broke"):
            run("env=cartpole", "sampler=serial", "eval.every=256", "eval.episodes=2")
    (directory,) = {path.parent.parent for path in tmp_path.rglob("last.pt")}
    assert [row["env_steps"] for row in read(directory / "iterations.csv")] == ["256"]
    state = checkpoint.load(directory / "checkpoints" / "last.pt")
    assert (state["env_steps"], state["evaluation_is_due"]) == (256, True)


def test_the_last_evaluation_that_was_broken_off_can_be_made_up(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").touch()
    state = {"env_steps": 512, "iteration": 2, "evaluation_is_due": True}
    state |= {"config": {"total_steps": 512}, "callbacks": {}}
    state |= {"versions": {}, "cpu_model": "Abacus"}
    monkeypatch.setattr(checkpoint, "load", lambda _: state)
    monkeypatch.setattr(checkpoint, "made_here", lambda: state)
    assert checkpoint.earlier_state(tmp_path, print, total_steps=512) is state
    state["evaluation_is_due"] = False
    write_status(tmp_path, {"state": "completed"})
    with pytest.raises(ConfigError, match="has learned from 512 steps already"):
        checkpoint.earlier_state(tmp_path, print, total_steps=512)


def test_the_checkpoint_of_another_run_is_refused(run):
    _, theirs = run("env=cartpole", "sampler=serial", "seed=3")
    state = checkpoint.load(theirs / "checkpoints" / "last.pt")
    before = {path: path.read_bytes() for path in theirs.rglob("*.csv")}
    config = compose([*SMALL, "env=cartpole", "sampler=serial", "seed=4", "total_steps=1024"])
    with pytest.raises(ConfigError, match=r"is another run's: it has seed=3, and run.json has 4"):
        train(config, theirs, resumed=state)
    assert {path: path.read_bytes() for path in theirs.rglob("*.csv")} == before


@pytest.mark.slow
def test_an_update_that_is_broken_off_under_lag_is_done_again(run, monkeypatch):
    """A sampler that fails meanwhile interrupts the agent; the state before the update is saved."""
    overlapped = ("env=cartpole", "sampler.max_lag=1", "sampler.n=1")
    _, whole = run(*overlapped)
    update, calls = PPO.update, []

    def interrupted(self, rollout):
        metrics = update(self, rollout)
        calls.append(1)
        if len(calls) == 2:
            raise WorkerError("sampler-0 failed")
        return metrics

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "update", interrupted)
        with pytest.raises(WorkerError):
            run(*overlapped)
    broken = whole.parent / "run1"
    state = checkpoint.load(broken / "checkpoints" / "last.pt")
    assert state["env_steps"] == 256
    train(compose([*SMALL, *overlapped]), broken, resumed=state)
    assert learned(broken) == learned(whole)


def test_settings_that_were_not_composed_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config=\['env=hopper'\]: give .* walle\.compose"):
        train(["env=hopper"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_environment_s_trial_has_the_time_limit_of_samplers(monkeypatch, capsys):
    monkeypatch.setattr("walle.training.probe", lambda *_: time.sleep(5))
    config = compose(["env=cartpole", "sampler=serial", "sampler.timeout_s=0.1"])
    with pytest.raises(WorkerError, match=r"the trial of the environment has lasted 0 s"):
        make_problem(config)
    assert "the trial of the environment has lasted" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["Evaluator", "SerialSampling"])
def test_a_start_that_fails_leaves_no_thread_and_no_pin(run, monkeypatch, part):
    def fail(*_, **__):
        raise OSError("no memory is left")

    owner, name = {
        "Evaluator": (training, "Evaluator"),
        "SerialSampling": (process_sampling, "SlotFiller"),
    }[part]
    monkeypatch.setattr(owner, name, fail)
    cores = os.sched_getaffinity(0)
    words = ("sampler=serial", "sampler.pin=true", "logger.progress=lines", "eval.episodes=1")
    with pytest.raises(OSError, match="no memory is left"):
        run("env=cartpole", *words)
    assert os.sched_getaffinity(0) == cores
    assert "walle-progress" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def hyperthreads(monkeypatch, tmp_path):
    """A machine with the cores 0 and 1, of which 2 and 3 are the second hardware threads."""
    for core, text in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text)
    monkeypatch.setattr(machine, "TOPOLOGY", tmp_path)  # an absolute path takes the root's place
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})


@pytest.mark.parametrize(
    ("overrides", "pinned"),
    [
        (["sampler.n=null"], [0, 1]),
        (["sampler.n=3"], [0, 1, 2]),
        (["sampler.n=5"], [0, 1, 2, 3, 0]),
        (["sampler=serial"], [0]),
    ],
)
def test_samplers_get_physical_cores_first(hyperthreads, overrides, pinned):
    config = compose(["env=cartpole", "sampler.pin=true", *overrides])
    problem, probed = make_problem(config)
    tasks = make_tasks(config, problem, probed, make_algorithm(config, problem))
    assert [task.core for task in tasks] == pinned


def test_learners_count_physical_cores_that_no_sampler_has(hyperthreads):
    sizes = ["env=cartpole", "learner.n=null", "learner.shards=4"]
    assert compose(sizes).learners == 2  # in lock-step they wait for each other
    assert compose([*sizes, "sampler.n=1", "sampler.max_lag=1"]).learners == 1
    assert compose([*sizes, "sampler.n=null", "sampler.max_lag=1"]).learners == 1
