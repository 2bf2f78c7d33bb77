from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pandas as pd
import pytest

from tests.analysis.synthetic import REPLACED, Job, collect_seconds, write_run, write_sweep
from walle.analysis.drawing.labels import of_runs
from walle.analysis.runs import BadInputError, fingerprint, load


def test_three_lines_in_a_notebook(speedup_sweep: Path) -> None:
    sweep = load(speedup_sweep)
    means = sweep.iterations.groupby("sampler.n")["collect_s"].mean()
    assert means.index.tolist() == [1, 2, 4, 8, 16]
    assert means[1] > means[2] > means[16]


def test_every_frame_has_the_run_the_seed_and_what_varies(speedup_sweep: Path) -> None:
    sweep = load(speedup_sweep)
    assert sweep.varying == ["sampler.n"]
    for frame in (sweep.iterations, sweep.episodes, sweep.timing, sweep.evaluations):
        assert frame.columns[:3].tolist() == ["run", "seed", "sampler.n"]
    assert len(sweep.iterations) == 15 * 30
    assert len(sweep.episodes) == 15 * 30 * 2
    assert len(sweep.timing) == 30 * 3 * sum(n + 1 for n in (1, 2, 4, 8, 16))
    assert len(sweep.evaluations) == 15 * 3
    assert len(sweep.trace) == 0
    seeds = sweep.iterations.groupby("run", observed=True)["seed"].first()
    assert [seeds[str(i)] for i in range(4)] == [0, 1, 2, 0]


def test_runs_are_in_natural_order(speedup_sweep: Path) -> None:
    assert [run.name for run in load(speedup_sweep).runs] == [str(i) for i in range(15)]


def test_a_single_run_is_a_sweep_of_one(tmp_path: Path) -> None:
    sweep = load(write_run(tmp_path / "alone", Job()))
    assert [run.name for run in sweep.runs] == ["alone"]
    assert len(sweep.iterations) == 30


def test_two_sweeps_differ_in_the_key_sweep(tmp_path: Path) -> None:
    a = write_sweep(tmp_path / "a", [Job(seed=0)])
    b = write_sweep(tmp_path / "b", [Job(seed=0), Job(seed=1)])
    sweep = load(a, b)
    assert sweep.varying == ["sweep"]
    assert sweep.iterations.groupby("sweep")["run"].nunique().to_dict() == {"a": 1, "b": 2}
    assert sweep.name == "a + b"


def test_a_run_of_a_sweep_counts_once(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "a", [Job(seed=0), Job(seed=1)])
    for paths in ((sweep, sweep / "1"), (sweep / "1", sweep), (sweep, sweep)):
        assert len(load(*paths).runs) == 2
    assert load(sweep, sweep / "1").iterations["run"].nunique() == 2


def test_an_evaluation_without_a_return_is_left_out(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "a", [Job(seed=0), Job(seed=1)])
    for run, last in (("0", "5.0"), ("1", "")):
        text = f"env_steps,wall_s,episodes,return_mean\n100,1.0,2,3.0\n200,2.0,2,{last}\n"
        (sweep / run / "eval.csv").write_text(text)
    loaded = load(sweep)
    assert loaded.evaluations["return_mean"].tolist() == [3.0, 5.0, 3.0]
    assert "1 evaluation left out: a reward in it was no finite number" in loaded.notes


def test_columns_named_as_settings_or_files_are_kept(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(n=n) for n in (1, 2)])
    for run in ("0", "1"):
        file = root / run / "episodes.csv"
        frame = pd.read_csv(file).assign(**{"seed": 7, "file": 8, "sampler.n": 9})
        frame.to_csv(file, index=False)
    episodes = load(root).episodes
    assert set(episodes["seed"]) == {0}
    assert set(episodes["sampler.n"]) == {1, 2}
    mine = episodes[["seed in episodes.csv", "file", "sampler.n in episodes.csv"]]
    assert (mine == [7, 8, 9]).all(axis=None)


def test_no_sweep_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=r"no sweep under .*multirun: start one with"):
        load()


def test_a_directory_that_does_not_exist_or_has_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such directory"):
        load(tmp_path / "none")
    (tmp_path / "empty" / "0").mkdir(parents=True)
    with pytest.raises(BadInputError, match="no run in this directory"):
        load(tmp_path / "empty")


def test_failed_runs_are_left_out_with_their_reason(tmp_path: Path) -> None:
    killed = {"signal": "SIGKILL", "exit_code": None}
    raised = {
        "error": 'Error: at\nTraceback ...\n  File "a.py"\nValueError: too hot',
        "exit_code": 1,
    }
    left = {"exit_code": 3}
    jobs = [
        Job(),
        Job(state="failed", status=killed),
        Job(state="failed", status=raised),
        Job(state="failed", status=left),
    ]
    sweep = load(write_sweep(tmp_path / "sweep", jobs))
    assert [run.name for run in sweep.runs] == ["0"]
    assert sweep.left_out == [
        ("1", "failed: signal SIGKILL"),
        ("2", "failed: Error: at ValueError: too hot"),
        ("3", "failed: exit code 3"),
    ]
    summary = sweep.summary()
    assert summary["state"].tolist()[0] == "completed"
    assert len(summary) == 4


def test_runs_that_cannot_be_read_are_left_out_with_their_reason(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "sweep", [Job(seed=i) for i in range(5)])
    (root / "1" / "run.json").unlink()
    (root / "2" / "run.json").write_text('{"config": ')
    (root / "3" / "iterations.csv").write_text("iteration,collect_s\n1,0.")
    (root / "4" / "iterations.csv").unlink()
    sweep = load(root)
    reasons = dict(sweep.left_out)
    assert [run.name for run in sweep.runs] == ["0"]
    assert "run.json is missing" in reasons["1"]
    assert "is not JSON" in reasons["2"]
    assert "no complete iteration" in reasons["3"]
    assert "no complete iteration" in reasons["4"]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "sweep", [Job(seed=i) for i in range(5)])
    (root / "1" / "status.json").write_bytes(b'{"error": "caf\xe9"}')
    (root / "2" / "status.json").write_text("[1]")
    (root / "3" / "run.json").write_bytes(b"\xff\xfe")
    damaged = {"attempts": "many", "cores": 3, "physical_cores": "two"}
    (root / "4" / "status.json").write_text(json.dumps(damaged))
    (root / "manifest.json").write_bytes(b'{"jobs": "caf\xe9"}')
    sweep = load(root)
    assert [run.name for run in sweep.runs] == ["0", "4"]
    reasons = [reason.partition(": ")[0] for _, reason in sweep.left_out]
    assert reasons == [
        "status.json is not UTF-8",
        "status.json holds no object but list",
        "run.json is not UTF-8",
    ]
    assert sweep.summary()["attempts"].tolist()[:2] == [1, 1]
    assert "manifest.json, as manifest.json is not UTF-8" in "\n".join(sweep.notes)
    (root / "manifest.json").write_text('{"jobs": [3, "x"]}')
    assert not any("manifest" in note for note in load(root).notes)


def test_nothing_usable_says_why(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "sweep", [Job(state="failed", status={"signal": "SIGSEGV"})])
    with pytest.raises(BadInputError, match=r"none of 1 runs can be used .*signal SIGSEGV"):
        load(root)


def test_running_and_interrupted_runs_are_used_and_said(tmp_path: Path) -> None:
    jobs = [Job(), Job(seed=1, state="running"), Job(seed=2, state="interrupted")]
    root = write_sweep(tmp_path / "sweep", jobs)
    (root / "0" / "status.json").unlink()
    notes = load(root).notes
    assert len(notes) == 3
    assert "1 of 3 runs still running" in notes[0]
    assert "interrupted" in notes[1]
    assert "without status.json" in notes[2]


def test_own_classes_have_the_names_of_the_yaml_files_that_chose_them(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "sweep", [Job(), Job(algo="mine:Fast"), Job(algo="mine:Slow")])
    typed = (["algo=ppo"], ["algo=fast", "env=hard"], ["algo=own", "+experiment=slow"])
    for number, overrides in enumerate(typed):
        file = root / str(number) / "run.json"
        content = json.loads(file.read_text()) | {"overrides": overrides}
        if number == 1:
            content["config"]["env"]["id"] = "mine:Env"
        file.write_text(json.dumps(content))
    sweep = load(root)
    assert sweep.values("algo.name") == ["ppo", "fast", "mine:Slow"]
    assert sweep.values("env.id") == ["HalfCheetah-v5", "hard", "HalfCheetah-v5"]
    assert [text.text for text in of_runs(sweep, "algo.name").values()][:1] == ["fast"]


def test_attempts_and_replaced_samplers_are_said(tmp_path: Path) -> None:
    jobs = [Job(), Job(seed=1, status={"attempts": 3, "replacements": [REPLACED, REPLACED]})]
    other_bits = REPLACED | {"exact": False}
    jobs += [Job(seed=2, status={"attempts": None, "replacements": "damaged"})]
    jobs += [Job(seed=3, status={"replacements": [other_bits]})]
    sweep = load(write_sweep(tmp_path / "sweep", jobs))
    assert sweep.notes == [
        "2 of 4 runs replaced a dead sampler or learner (1, 3), 3 times in all: a repeated round "
        "takes longer",
        "1 of these runs continued with other numbers than without a death (3)",
    ]
    summary = sweep.summary()
    assert summary["attempts"].tolist() == [1, 3, 1, 1]
    assert summary["replacements"].tolist() == [0, 2, 0, 1]
    names = ["sampler-1", 12, "2026-01-02T03:04:06+00:00", "was killed by <SIGKILL>"]
    found = sweep.replacements().to_numpy().tolist()
    assert found == [["1", *names, True], ["1", *names, True], ["3", *names, False]]


def test_jobs_that_have_not_started_are_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "sweep", [Job()])
    jobs = [{"directory": str(i)} for i in range(4)]
    (root / "manifest.json").write_text(json.dumps({"jobs": jobs}))
    assert load(root).notes == ["3 of 4 jobs not started yet: 1, 2, 3"]
    (root / "manifest.json").write_text('{"jobs')
    assert "is not JSON" in load(root).notes[0]


def test_a_table_cut_in_mid_row_is_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "sweep", [Job(), Job(seed=1)])
    path = root / "1" / "iterations.csv"
    path.write_bytes(path.read_bytes()[:-9])
    sweep = load(root)
    counts = sweep.iterations.groupby("run", observed=True).size()
    assert counts.to_dict() == {"0": 30, "1": 29}
    assert "1 broken row of iterations.csv left out (runs 1)" in sweep.notes[0]


def test_two_rollouts_of_a_sampler_in_a_round_are_two_rows(tmp_path: Path) -> None:
    """So it is with free-running samplers."""
    root = write_sweep(tmp_path / "sweep", [Job(iterations=3)])
    path = root / "0" / "timing.csv"
    lines = path.read_text().splitlines(keepends=True)
    twice = [line for line in lines for _ in range(1 + line.startswith("sampler-0"))]
    path.write_text("".join(twice))
    assert len(load(root).timing) == len(twice) - 1


def test_different_algorithms_have_different_columns(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "sweep", [Job(algo="ppo"), Job(algo="ppo_kl")]))
    assert sweep.varying == ["algo.name"]
    there = sweep.iterations.groupby("algo.name")[["kl", "beta"]].count()
    assert there.loc["ppo"].tolist() == [30, 0]
    assert there.loc["ppo_kl"].tolist() == [0, 30]


def test_cores_of_pinned_runs(tmp_path: Path) -> None:
    """Runs pinned to what they need say nothing about the machine's cores; starved ones do."""
    pinned = [Job(n=n, cores=8, status={"cores": list(range(n))}) for n in (1, 2, 4)]
    assert load(write_sweep(tmp_path / "pinned", pinned)).cores == 8
    starved = [*pinned, Job(n=16, cores=8, status={"cores": list(range(6))})]
    sweep = load(write_sweep(tmp_path / "starved", starved))
    assert [run.oversubscribed for run in sweep.runs] == [False, False, False, True]
    assert sweep.cores == 6


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (Job(n=2, learners=2, cores=2), False),  # they take turns
        (Job(n=3, learners=1, cores=2), True),
        (Job(n=1, learners=4, cores=2), True),
        (Job(n=1, learners=1, cores=2, max_lag=1), False),
        (Job(n=1, learners=2, cores=2, max_lag=None), True),
    ],
)
def test_oversubscribed_runs_have_more_busy_processes_than_cores(
    tmp_path: Path, job: Job, expected: bool
) -> None:
    (run,) = load(write_sweep(tmp_path / "s", [job])).runs
    assert run.oversubscribed is expected


def test_the_synthetic_time_is_amdahls() -> None:
    assert collect_seconds(Job(n=4, collect_1_s=2.0, serial=0.1)) == pytest.approx(2 * 0.325)


def test_the_fingerprint_is_that_of_the_run_files(tmp_path: Path) -> None:
    """Of all runs that are used, in their order; another run.json gives another one."""
    root = write_sweep(tmp_path / "s", [Job(seed=seed, iterations=2) for seed in (0, 1)])
    files = [root / str(number) / "run.json" for number in (0, 1)]
    whole = b"".join(file.read_bytes() for file in files)
    assert fingerprint(load(root).runs) == hashlib.sha256(whole).hexdigest()[:12]
    files[1].write_bytes(files[1].read_bytes() + b"\n")
    assert fingerprint(load(root).runs) == hashlib.sha256(whole + b"\n").hexdigest()[:12]


def test_blocks_of_another_launch_are_others(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(n=n) for n in (1, 2, 4)])
    manifest = {
        "jobs": [{"num": i, "directory": str(i), "block": 0} for i in range(3)],
        "launches": [{"order": [0, 1]}, {"order": [1, 2]}, {"order": None}, "damaged"],
    }
    (root / "manifest.json").write_text(json.dumps(manifest))
    first, again, last = (run.block for run in load(root).runs)
    assert first != again
    assert again == last
