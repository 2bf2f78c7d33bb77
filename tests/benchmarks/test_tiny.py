"""Every benchmark that has no test of its own runs as its first lines say, at a tiny size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {"cluster", "data", "end_to_end", "learn", "off_policy", "plan_cluster", "soak"}


def output(name, *arguments, cwd):
    """What the benchmark prints; it must exit with 0."""
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
def test_collecting_next_to_physics(tmp_path):
    small = ("--tasks", "HalfCheetah", "--repetitions", "2", "--steps", "2000", "--cores", "1")
    small += ("--batch-size", "1024", "--only", "limit", "walle")
    said = output("collect", *small, "--json", tmp_path / "found.json", cwd=tmp_path)
    assert "of the limit" in said
    assert json.loads((tmp_path / "found.json").read_text())["provenance"]["written"]


@pytest.mark.slow
def test_starting(tmp_path):
    small = ("--samplers", "2", "--cores", "1", "--env", "CartPole-v1", "--repetitions", "1")
    said = output("startup", *small, "--json", tmp_path / "found.json", cwd=tmp_path)
    assert "MiB" in said
    assert (tmp_path / "found.json").exists()


def test_physics(tmp_path):
    small = ("--tasks", "HalfCheetah", "Reacher", "--repetitions", "2", "--steps", "60")
    output("physics", *small, "--json", tmp_path / "found.json", cwd=tmp_path)
    tasks = json.loads((tmp_path / "found.json").read_text())["tasks"]
    assert list(tasks) == ["HalfCheetah", "Reacher"]
    assert all(min(us) > 0 for us in tasks["Reacher"]["us"].values())
    assert len(tasks["HalfCheetah"]["times_as_loaded"]["walle"]["times"]) == 2


@pytest.mark.slow
def test_cold_start(tmp_path):
    small = ("env=cartpole", "batch_size=256", "sampler=serial", "--repetitions", "1")
    output("cold_start", *small, "--json", "found.json", cwd=tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    (cold,), (warm,) = found["cold"], found["warm"]
    assert min(warm["first round"], warm["processor"]) > 0
    assert cold["processor"] > warm["processor"]


@pytest.mark.slow
def test_lanes(tmp_path):
    small = ("--tasks", "Reacher", "--lanes", "1", "4", "--steps", "64", "--repetitions", "2")
    said = output("lanes", *small, cwd=tmp_path)
    assert [line.split()[1] for line in said.splitlines() if "Reacher" in line] == ["1", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["overhead", "many"])
def test_the_launcher(command, tmp_path):
    jobs = "10" if command == "many" else "2"
    said = output("launcher", command, "--jobs", jobs, cwd=tmp_path)
    assert " s" in said


def test_loading(tmp_path):
    small = ("--runs", "2", "--iterations", "3", "--tables", "iterations")
    assert "iterations" in output("load", *small, cwd=tmp_path)


@pytest.mark.slow
def test_seeded_runs_find_a_change(tmp_path):
    saved = tmp_path / "before.json"
    said = output("seeded_runs", "--only", "a2c", "--save", saved, cwd=tmp_path)
    found = json.loads(saved.read_text())
    assert f"a2c{' ' * 18}{found['a2c']}" in said
    same = output("seeded_runs", "--only", "a2c", "--compare", saved, cwd=tmp_path)
    assert "identical" in same
    saved.write_text(json.dumps({"a2c": "0" * 16}))
    with pytest.raises(AssertionError):
        output("seeded_runs", "--only", "a2c", "--compare", saved, cwd=tmp_path)


@pytest.mark.slow
def test_saving(tmp_path):
    small = ("--env", "cartpole", "--rounds", "3", "--steps", "6144", "--every", "2048")
    said = output("saving", *small, "--json", tmp_path / "found.json", cwd=tmp_path)
    assert [line.split()[0] for line in said.splitlines()][-3:] == ["hand", "save", "resume"]
    assert 0 < json.loads((tmp_path / "found.json").read_text())["save_share"] < 1


@pytest.mark.slow
def test_balance(tmp_path):
    small = ("--repetitions", "1", "total_steps=16384", "--json", tmp_path / "found.json")
    said = output("balance", *small, cwd=tmp_path)
    assert "equal cores: " in said
    assert len(json.loads((tmp_path / "found.json").read_text())["one busy core"]) == 1


@pytest.mark.slow
def test_plan(tmp_path):
    small = ("--tasks", "stragglers", "--samplers", "2", "--lags", "1", "--seconds", "0.1")
    small += ("--json", tmp_path / "found.json", "env.step_ms=1", "env.step_ms_std=0.5")
    said = output("plan", *small, cwd=tmp_path)
    assert said.splitlines()[-1].endswith("of 1 points within the errors that the plan allows for")
    (point,) = json.loads((tmp_path / "found.json").read_text())["points"]
    assert (point["samplers"], point["lag"]) == (2, 1)
    assert 0.02 < point["planned_s"][0] < 20


@pytest.mark.slow
def test_serial(tmp_path):
    small = ("--rounds", "128", "--minibatch", "32", "--each", "1", "--warmup", "1")
    small += ("--repeats", "1", "--json", tmp_path / "found.json")
    settings = ("env=cartpole", "sampler.lanes=4", "algo.epochs=1", "algo.compile=false")
    said = output("serial", *small, *settings, cwd=tmp_path)
    assert "sum of the sections" in said
    found = json.loads((tmp_path / "found.json").read_text())["rounds"]["128"]
    assert found["shards"] == 2
    spent = {name: each["seconds"] for name, each in found["sections"].items()}
    assert {"1 x 1", "1 x 2", "2 x 1", "2 x 2"} == set(spent["values and gradients"])
    nothing = {name for name in spent if not all(spent[name].values())}
    # A learner alone hands out nothing, and without a library passes are not divided further.
    assert nothing == {"handing it to learners", "sums, norms, Adam", "waiting for a learner"}
    # Collecting has the last three.
    apart = ("whole round", "trackers", "csv rows", "logging")
    whole = sum(each["1 x 1"] for name, each in spent.items() if name not in apart)
    assert whole == pytest.approx(spent["whole round"]["1 x 1"])


def test_every_benchmark_is_tried():
    commands = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if f"python benchmarks/{path.name}" in path.read_text().split('"""')[1]
    }
    tried = {name for name in commands if f'output("{name}"' in Path(__file__).read_text()}
    assert commands == tried | ELSEWHERE
