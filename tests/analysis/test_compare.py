"""`walle compare`: two sweeps, or two values of a key."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, keep_rows, set_columns, write_run, write_sweep
from walle.analysis import compare, speedup
from walle.analysis.drawing import style
from walle.analysis.measuring.comparisons import match, question, restricted
from walle.analysis.measuring.stats import Interval
from walle.analysis.runs import BadInputError, load

HEADER = "iteration,env_steps,wall_s,iteration_s,collect_s,learn_s,return_mean\n"


def write_rows(run: Path, returns: list[float], seconds: float = 1.0) -> None:
    """A run of iterations of 100 steps; without evaluations."""
    rows = [
        f"{i + 1},{100 * (i + 1)},{seconds * (i + 1)},{seconds},{seconds / 4},{seconds / 2},{value}"
        for i, value in enumerate(returns)
    ]
    (run / "iterations.csv").write_text(HEADER + "\n".join(rows) + "\n")
    episodes = [f"{100 * (i + 1)},{k},{value}" for i, value in enumerate(returns) for k in (0, 1)]
    (run / "episodes.csv").write_text("\n".join(["env_steps,lane,return", *episodes, ""]))
    provenance = json.loads((run / "run.json").read_text())
    provenance["config"]["total_steps"] = 100 * len(returns)
    (run / "run.json").write_text(json.dumps(provenance))
    (run / "eval.csv").unlink(missing_ok=True)


def rows_of(study: compare.cli.Study, of: str) -> pd.DataFrame:
    table = study.table[study.table["of"] == of]
    return table.set_index("line") if "line" in table else table


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """Two algorithms with two seeds: returns go to 30 and 50, and to 60 and 80."""
    ends = {("a2c", 0): 30.0, ("a2c", 1): 50.0, ("ppo", 0): 60.0, ("ppo", 1): 80.0}
    root = write_sweep(tmp_path / "s", [Job(algo=algo, seed=seed) for algo, seed in ends])
    for number, ((algo, _), end) in enumerate(ends.items()):
        values = [10.0, 20.0, *[end] * 8]
        write_rows(root / str(number), values, seconds=1.0 if algo == "a2c" else 2.0)
    return root


def test_scores_times_and_speeds_by_hand(four: Path) -> None:
    study = compare.study(load(four))
    (score,) = rows_of(study, "final score").to_dict("records")
    assert (score["algo.name=a2c"], score["algo.name=ppo"]) == (40, 70)
    assert score["difference"] == 30
    assert score["scaled_difference"] == pytest.approx(30 / (70 - 10))
    assert score["ratio"] == pytest.approx(70 / 40)
    assert score["p_better"] == 1.0
    assert score["runs"] == "2 and 2"  # another algorithm starts from other networks
    (time,) = rows_of(study, "seconds to return").to_dict("records")
    assert (time["algo.name=a2c"], time["algo.name=ppo"]) == (3, 6)  # 90% from 10 to 30 is 28
    assert time["ratio"] == pytest.approx(2)
    assert time["p_better"] == 0.0
    (speed,) = rows_of(study, "steps per second").to_dict("records")
    assert (speed["algo.name=a2c"], speed["algo.name=ppo"]) == (100, 50)
    assert speed["runs"] == "2 and 2"  # no blocks are known
    assert (speed["difference"], speed["ratio"]) == pytest.approx((-50, 0.5))
    (collect,) = rows_of(study, "steps per second of collecting").to_dict("records")
    assert collect["algo.name=a2c"] == 400
    said = " ".join(study.sentences)
    assert "A is algo.name=a2c (2 runs), B is algo.name=ppo (2 runs)." in said
    assert "Final score: ppo - a2c = 30 [-30.8, 90.8]; no difference is shown;" in said
    assert "until the return in training is 28, 90% of the way that every run went." in said
    assert "Steps per second: ppo / a2c = 0.5 [0.5, 0.5]; ppo is worse;" in said


def test_speeds_are_compared_as_speedups_are(tmp_path: Path) -> None:
    """Three blocks, one of them twice as slow: 8 / 4, 8 / 5 and 16 / 8 have the median 2.

    The means of the rates are 0.104 and 0.192, and their ratio is 1.84.
    """
    seconds = {1: [8.0, 8.0, 16.0], 2: [4.0, 5.0, 8.0]}
    jobs = [(n, block) for n in seconds for block in range(3)]
    root = write_sweep(tmp_path / "s", [Job(n=n, seed=block, iterations=4) for n, block in jobs])
    for number, (n, block) in enumerate(jobs):
        set_columns(root / str(number), collect_s=seconds[n][block])
    entries = [{"directory": str(i), "block": block} for i, (_, block) in enumerate(jobs)]
    (root / "manifest.json").write_text(json.dumps({"jobs": entries}))
    (speed,) = rows_of(compare.study(load(root)), "steps per second of collecting").to_dict(
        "records"
    )
    assert speed["ratio"] == pytest.approx(2)
    assert speed["sampler.n=2"] / speed["sampler.n=1"] == pytest.approx(2)
    assert speed["runs"] == "3 and 3, paired"
    point = speedup.study(load(root)).table.iloc[1]
    assert speed["ratio"] == pytest.approx(point["speedup"])
    for end in ("low", "high"):
        assert speed[f"ratio_{end}"] == pytest.approx(point[f"speedup_{end}"])


def test_without_blocks_the_ratio_is_that_of_mean_seconds_too(tmp_path: Path) -> None:
    jobs = [Job(n=n, seed=seed, iterations=4) for n in (1, 2) for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, took in enumerate((6.0, 10.0, 3.0, 1.0)):
        set_columns(root / str(number), collect_s=took)
    (speed,) = rows_of(compare.study(load(root)), "steps per second of collecting").to_dict(
        "records"
    )
    assert speed["ratio"] == pytest.approx(8 / 2)
    assert speedup.study(load(root)).table["speedup"].iloc[1] == pytest.approx(8 / 2)


def test_neither_time_nor_speed_counts_the_compiler(four: Path) -> None:
    for run in "01":
        frame = pd.read_csv(four / run / "iterations.csv").assign(compile_s=0.0)
        frame.loc[0, ["compile_s", "iteration_s"]] = 50.0
        frame["wall_s"] += 50.0
        frame.to_csv(four / run / "iterations.csv", index=False)
    study = compare.study(load(four), warmup=0)
    (time,) = rows_of(study, "seconds to return").to_dict("records")
    assert (time["algo.name=a2c"], time["algo.name=ppo"]) == (3, 6)


def test_the_return_can_be_chosen_and_who_did_not_reach_it_is_said(four: Path) -> None:
    study = compare.study(load(four), time_to_return=20.0)
    (time,) = rows_of(study, "seconds to return").to_dict("records")
    assert time["algo.name=a2c"] == 2
    study = compare.study(load(four), time_to_return=45.0)
    assert rows_of(study, "seconds to return").empty
    said = "Not every run reached return 45, so no time: 3 of 4 runs."
    assert said in study.sentences


def test_two_sweeps_with_the_same_settings_are_paired_by_seed(tmp_path: Path) -> None:
    old = write_sweep(tmp_path / "old", [Job(seed=seed) for seed in range(3)])
    new = write_sweep(tmp_path / "new", [Job(seed=seed) for seed in range(3)])
    for seed in range(3):
        write_rows(old / str(seed), [10.0 * seed] * 4)
        write_rows(new / str(seed), [10.0 * seed + 1] * 4)
    study = compare.study(load(old, new))
    (score,) = rows_of(study, "final score").to_dict("records")
    assert (score["sweep=old"], score["sweep=new"]) == pytest.approx((10, 11))
    assert (score["difference_low"], score["difference_high"]) == pytest.approx((1, 1))
    assert score["runs"] == "3 and 3, paired"
    (speed,) = rows_of(study, "steps per second").to_dict("records")
    assert speed["runs"] == "3 and 3"  # the sweeps ran at different times
    assert "Final score: new - old = 1 [1, 1]; new is better;" in " ".join(study.sentences)
    backwards = compare.study(load(new, old))
    assert rows_of(backwards, "final score")["difference"].tolist() == pytest.approx([-1])


def test_identical_learning_counts_once_and_is_called_identical(tmp_path: Path) -> None:
    jobs = [Job(n=n, seed=seed, algo=algo) for algo in "ab" for n in (1, 2) for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        high = 10.0 * (job.algo == "b") + job.seed
        write_rows(root / str(number), [0.0, *[20.0 + high] * 9], seconds=1 + 0.1 * number)
    by_n = compare.study(load(root), by="sampler.n")
    assert "Final score: n=1 and n=2 are identical in every run." in by_n.sentences
    labels = [axes.get_xlabel() for axes in by_n.figure.axes]
    assert labels == ["seconds to return, n=2 / n=1", "speed, n=2 / n=1"]  # no panel of zeros
    study = compare.study(load(root))
    score = rows_of(study, "final score")
    assert score["runs"].tolist() == ["2 and 2"]  # not 4 and 4
    times = rows_of(study, "seconds to return")
    assert times.index.tolist() == ["n 1", "n 2", "overall"]
    assert times.loc["overall", "runs"] == "2 and 2, paired"
    assert rows_of(study, "steps per second").loc["overall", "runs"] == "4 and 4"


def test_one_side_that_learnt_the_same_counts_once(tmp_path: Path) -> None:
    jobs = [Job(n=n, seed=seed, algo=algo) for algo in "ab" for n in (1, 2) for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        high = 10.0 + job.n if job.algo == "b" else 0.0  # a alone does not depend on n
        write_rows(root / str(number), [0.0, *[20.0 + high + job.seed] * 9], 1.0 + number)
    study = compare.study(load(root))
    (score,) = rows_of(study, "final score").to_dict("records")
    assert score["runs"] == "2 and 4"
    assert (score["algo.name=a"], score["algo.name=b"]) == pytest.approx((20.5, 32.0))
    said = " ".join(study.sentences)
    assert "over 2 groups" in said  # speeds at both values of n
    assert "tasks" not in said


def test_a_task_without_a_range_is_left_out_and_said(tmp_path: Path) -> None:
    jobs = [
        Job(algo=algo, seed=seed, env=env)
        for env in ("A-v0", "Bb-v0", "Ccc-v0")
        for algo in "ab"
        for seed in (0, 1)
    ]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        end = 20.0 + 10 * (job.algo == "b") + job.seed
        write_rows(root / str(number), [10.0, *[end if job.env != "A-v0" else 10.0] * 9])
    study = compare.study(load(root))
    score = rows_of(study, "final score")
    assert score.loc["overall", "scaled_difference"] == pytest.approx(10 / 20.5)
    said = " ".join(study.sentences)
    assert "of a task's range over 2 tasks;" in said
    assert "start to the better side's mean: Bb-v0: 10 to 30.5; Ccc-v0: 10 to 30.5." in said
    assert "No range, so not in the overall final score: A-v0; the returns of neither" in said
    assert "No seconds to return: A-v0: a run's returns never rose above the mean start." in said


@pytest.mark.parametrize("rises", [1, 0])
def test_a_verdict_follows_from_the_tasks_with_a_range(tmp_path: Path, rises: int) -> None:
    jobs = [Job(algo=algo, seed=s, env=env) for env in "xy" for algo in "ab" for s in range(3)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        gain = 10 * (1 + (job.algo == "b")) * (1 if rises and job.env == "x" else -1)
        write_rows(root / str(number), [10.0, *[10.0 + gain + 0.1 * job.seed] * 9])
    first = compare.study(load(root), time_to_return=-100.0).sentences[1]
    if rises:
        assert first.startswith("Final score: b - a = 0.49")
        assert "of a task's range over 1 task; b is better; P(a run of b is better) = 1 " in first
    else:
        assert first.startswith("Final score: no number for all tasks; P(a run of b is better) = 0")
        assert "difference is shown" not in first


def test_the_range_starts_with_the_first_episodes(four: Path) -> None:
    for run in range(4):
        frame = pd.read_csv(four / str(run) / "iterations.csv").assign(episodes=2)
        frame["return_mean"] += 100
        columns = ["env_steps", "wall_s", "episodes", "return_mean"]
        frame[columns].to_csv(four / str(run) / "eval.csv", index=False)
    study = compare.study(load(four))
    assert rows_of(study, "final score")["scaled_difference"].tolist() == [30 / 160]
    assert "Range, from the start to the better side's mean: 10 to 170." in study.sentences


def test_the_overall_time_is_of_each_seeds_mean_over_numbers_of_samplers(tmp_path: Path) -> None:
    jobs = [Job(n=n, seed=seed, algo=algo) for algo in "ab" for n in (1, 2) for seed in range(3)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        slower = 1 + 0.1 * job.n * job.seed if job.algo == "a" else 1
        write_rows(root / str(number), [0.0, *[20.0] * 9], seconds=slower)
    time = rows_of(compare.study(load(root)), "seconds to return").loc["overall"]
    means = np.array([1, 1.15, 1.3])  # of seeds: 1 and 2 samplers take 1, 1.1 and 1.2; 1, 1.2, 1.4
    reach = 4.30265 * (means / means.mean()).std(ddof=1) / math.sqrt(3)
    assert time["ratio"] == pytest.approx(1 / means.mean())
    assert time["ratio_high"] == pytest.approx(math.exp(reach) / means.mean(), rel=1e-4)


def test_several_tasks_and_their_mean(tasks_sweep: Path) -> None:
    study = compare.study(load(tasks_sweep))
    assert rows_of(study, "steps per second").index.tolist() == [
        "HalfCheetah-v5",
        "Hopper-v5",
        "overall",
    ]
    ratios = rows_of(study, "steps per second")["ratio"]
    assert ratios["overall"] == pytest.approx(math.sqrt(ratios.iloc[0] * ratios.iloc[1]))
    said = "For Hopper-v5: final score: evaluation without noise after 40,960 steps."
    assert said in study.sentences
    overall = rows_of(study, "final score").loc["overall"]
    assert math.isnan(overall["difference"])  # tasks have different units
    each = rows_of(study, "final score")["scaled_difference"]
    assert each["overall"] == pytest.approx(each.iloc[:2].mean())


def test_where_the_scores_come_from_can_be_chosen(tasks_sweep: Path, four: Path) -> None:
    study = compare.study(load(tasks_sweep), returns="training")
    assert "mean return in training from" in " ".join(study.sentences)
    with pytest.raises(BadInputError, match="4 runs without an evaluation"):
        compare.study(load(four), returns="evaluations")


def test_shorter_runs_are_said(four: Path) -> None:
    keep_rows(four / "0", 5)
    study = compare.study(load(four))
    assert "Final score: mean return in training from 400 to 500 steps." in study.sentences


def test_an_interrupted_run_has_no_score_and_cuts_no_other(four: Path) -> None:
    keep_rows(four / "1", 3)
    status = json.loads((four / "1" / "status.json").read_text())
    (four / "1" / "status.json").write_text(json.dumps(status | {"state": "interrupted"}))
    study = compare.study(load(four))
    (score,) = rows_of(study, "final score").to_dict("records")
    assert (score["algo.name=a2c"], score["algo.name=ppo"]) == (30, 70)
    assert score["runs"] == "1 and 2"
    assert "Final score: mean return in training from 900 to 1,000 steps." in study.sentences


def test_single_runs_have_no_interval(tmp_path: Path) -> None:
    for name, end in (("a", 30.0), ("b", 60.0)):
        write_rows(write_run(tmp_path / name, Job()), [10.0, *[end] * 9])
    study = compare.study(load(tmp_path / "a", tmp_path / "b"))
    assert "Final score: b - a = 30; too few runs for an interval." in study.sentences


def test_which_two_values() -> None:
    sweep = load_fake({"algo.name": ["c", "a", "b"], "sampler.n": [1, 1, 1]})
    assert question(sweep, None) == ("algo.name", "a", "c")
    assert question(sweep, "algo=b,a") == ("algo.name", "b", "a")
    for by in ("algo=a", "algo=a,d", "algo=a,b,c", "algo=a,a"):
        with pytest.raises(BadInputError, match=r"two different values of algo.name.* a, b, c"):
            question(sweep, by)
    rates = load_fake({"rate": [0.001, 0.0001]})
    assert question(rates, "rate=1e-4,1e-3") == ("rate", 0.0001, 0.001)
    nets = load_fake({"hidden": ["[64, 64]", "[8]", "null"]})
    assert question(nets, "hidden=[8],[64,64]") == ("hidden", "[8]", "[64, 64]")
    assert question(nets, "hidden=[64, 64],null") == ("hidden", "[64, 64]", "null")
    names = load_fake({"name": ["a,b", "c", "{[", "${x"]})
    assert question(names, "name=a,b,c") == ("name", "a,b", "c")
    assert question(names, "name={[,${x") == ("name", "{[", "${x")
    with pytest.raises(BadInputError, match=r"two different values of name"):
        question(names, "name=c,${y")
    with pytest.raises(BadInputError, match=r"two values of sampler.n; all runs have sampler.n=1"):
        question(sweep, "n")
    assert question(load_fake({"env.id": ["x", "y"] * 2, "sampler.n": [1, 1, 4, 4]}), None) == (
        "sampler.n",
        1,
        4,
    )


def test_runs_without_a_partner_are_said() -> None:
    sweep = load_fake({"algo.name": ["a", "b", "a"], "env.id": ["x", "x", "y"]})
    asked = question(sweep, None)
    assert [group.label for group in match(sweep, asked)] == ["x"]
    assert sweep.notes[-1] == "Not compared, as the other side has no such run: 2"
    apart = load_fake({"algo.name": ["a", "b", "c"], "env.id": ["x", "y", "x"]})
    asked = question(apart, "algo=a,b")
    chosen = restricted(apart, asked)
    assert [run.name for run in chosen.runs] == ["0", "1"]


def test_a_setting_of_one_side_alone_makes_a_group_for_each_of_its_values() -> None:
    """PPO with two values of clip beside A2C, which has none: both are compared with its run."""
    sweep = load_fake(
        {"algo.name": ["ppo", "ppo", "a2c"], "algo.clip": [0.1, 0.2, ABSENT], "env.id": ["x"] * 3}
    )
    groups = match(sweep, question(sweep, "algo.name=ppo,a2c"))
    assert [group.label for group in groups] == ["clip 0.1", "clip 0.2"]
    assert [list(group.a.values()) for group in groups] == [["0"], ["1"]]
    assert [list(group.b.values()) for group in groups] == [["2"], ["2"]]
    assert sweep.notes == [
        "A run that lacks algo.clip is compared with the other side's runs of every value; "
        "overall results therefore have no interval"
    ]


def test_no_interval_takes_one_run_for_two(tmp_path: Path) -> None:
    """Both values of PPO's clip are compared with the same runs of A2C."""
    clips = (0.1, 0.2, None)
    jobs = [Job(algo="ppo" if clip else "a2c", seed=seed) for clip in clips for seed in range(3)]
    root = write_sweep(tmp_path / "s", jobs)
    for number in range(9):
        write_rows(root / str(number), [10.0, *[30.0 + 3 * number] * 9], seconds=1 + number / 9)
        path = root / str(number) / "run.json"
        provenance = json.loads(path.read_text())
        provenance["config"]["algo"] = {"name": jobs[number].algo}
        if clip := clips[number // 3]:
            provenance["config"]["algo"]["clip"] = clip
        path.write_text(json.dumps(provenance))
    study = compare.study(load(root), by="algo.name=a2c,ppo")
    overall = study.table[study.table["line"] == "overall"].set_index("of")
    assert overall["p_better"].notna().all()
    ends = overall.filter(regex="_(low|high)$")
    assert len(ends) == 5
    assert ends.isna().all(axis=None)
    rows = study.table[study.table["line"] == "clip 0.1"].set_index("of")
    assert rows.loc["steps per second", "ratio_low"] > 0
    assert "over 2 groups; no interval, as a run is compared with several." in study.sentences[1]


ABSENT = object()


def load_fake(values: dict[str, list[object]]) -> compare.Sweep:
    """A sweep in memory with these configurations."""
    from walle.analysis.runs import Run

    count = len(next(iter(values.values())))
    configs = [
        {key: column[i] for key, column in values.items() if column[i] is not ABSENT}
        for i in range(count)
    ]
    runs = [
        Run(Path(str(i)), str(i), json.loads(json.dumps(config)), {}, {"state": "completed"})
        for i, config in enumerate(configs)
    ]
    return compare.Sweep([], runs, [])


def test_the_command(four: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.svg"
    assert compare.main([str(four), "--by", "algo=ppo,a2c", "-o", str(path)]) == 0
    assert path.with_suffix(".csv").read_text().startswith("of,runs,algo.name=ppo,algo.name=a2c")
    assert "Steps per second: a2c / ppo = 2 " in capsys.readouterr().out
    assert path.read_text().startswith("<?xml")


def drawn(field: str) -> style.Axes:
    _, (axes,) = style.panels(1, height=2.5)
    of = {"a": Interval(2.0, 1.5, 900.0), "b": Interval(1.0), "overall": Interval(1.5, 1.4, 1.6)}
    compare.draw_forest(axes, {"x": (style.look(0), of)}, field)
    return axes


def test_a_wide_interval_does_not_set_the_axis_and_its_bar_ends_in_an_arrow() -> None:
    axes = drawn("difference")
    assert axes.get_xlim()[1] < 6
    markers = [line.get_marker() for line in axes.get_lines()]
    assert markers.count(">") == 1
    assert markers.count("<") == 0
    assert markers.count("|") == 3  # both ends of `overall`, the lower one of `a`
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b", "overall"]


def test_ratios_have_a_logarithmic_axis_with_round_ticks() -> None:
    axes = drawn("ratio")
    assert axes.get_xscale() == "log"
    ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    assert "1" in ticks
    assert len(ticks) <= 6


def test_a_probability_has_the_whole_axis() -> None:
    assert drawn("improvement").get_xlim() == (0.0, 1.0)


def test_a_panel_with_a_single_line_has_room_beside_its_labels(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(n=n, seed=seed) for n in (1, 2) for seed in (0, 1)])
    assert compare.study(load(root), by="sampler.n").figure.get_figheight() >= 2 * 1.6  # two rows


def test_an_axis_has_a_width_where_everything_is_neutral() -> None:
    low, high = compare._limits([Interval(1.0)], "ratio")
    assert low < 1 < high


def test_runs_too_short_for_speeds_have_scores(tmp_path: Path) -> None:
    jobs = [Job(algo=algo, seed=seed) for algo in ("a2c", "ppo") for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for i, job in enumerate(jobs):
        write_run(root / str(i), replace(job, iterations=1))
    sweep = load(root)
    study = compare.study(sweep, returns="training", warmup=1)
    assert study.table["of"].tolist() == ["final score"]
    assert any(note.startswith("No speeds are compared: --warmup 1") for note in sweep.notes)


def test_sides_that_are_no_names_say_their_key(tmp_path: Path) -> None:
    jobs = [Job(max_lag=lag, seed=seed) for lag in (0, None) for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    said = " ".join(compare.study(load(root), by="sampler.max_lag").sentences)
    assert "max_lag=null" in said
    assert "null - " not in said.replace("max_lag=null - ", "")
