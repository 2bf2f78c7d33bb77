from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.analysis.synthetic import Job, keep_rows, write_sweep
from walle.analysis import speedup
from walle.analysis.drawing import style
from walle.analysis.measuring.groups import measure
from walle.analysis.measuring.scores import first_reached, with_training
from walle.analysis.runs import BadInputError, load
from walle.analysis.speedup import speedups


def linear(n: int, seed: int = 0, **changes: object) -> Job:
    return Job(n=n, seed=seed, serial=0.0, noise=0.0, **changes)  # type: ignore[arg-type]


def test_an_exactly_linear_sweep_has_speedup_exactly_n(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [linear(n, s) for n in (1, 2, 4, 8) for s in range(3)])
    table = speedup.study(load(root)).table
    assert table["sampler.n"].tolist() == [1, 2, 4, 8]
    np.testing.assert_allclose(table["speedup"], [1, 2, 4, 8], rtol=1e-12)
    np.testing.assert_allclose(table["speedup_low"], [1, 2, 4, 8], rtol=1e-12)
    np.testing.assert_allclose(table["speedup_high"], [1, 2, 4, 8], rtol=1e-12)
    np.testing.assert_allclose(table["efficiency"], 1, rtol=1e-12)


def test_known_speedup_within_its_interval(speedup_sweep: Path) -> None:
    study = speedup.study(load(speedup_sweep), end_to_end=True)
    collection = study.table[study.table["of"] == "collection"]
    truth = 1 / (0.05 + 0.95 / np.array([1, 2, 4, 8, 16]))
    np.testing.assert_allclose(collection["speedup"], truth, rtol=0.05)
    end_to_end = study.table[study.table["of"] == "end to end"]
    assert end_to_end["speedup"].iloc[-1] == pytest.approx(2.52 / (2 / truth[-1] + 0.52), rel=0.05)
    assert any("serial fraction" in text for text in study.sentences)
    assert any("bottleneck from N = 4." in text for text in study.sentences)


def test_warm_up_is_left_out_and_said(speedup_sweep: Path) -> None:
    """The first iteration of the synthetic runs takes three times as long."""
    sweep = load(speedup_sweep)
    with_it, without = (speedup.study(sweep, warmup=k) for k in (0, 1))
    assert with_it.table["seconds"].iloc[0] == pytest.approx(2 * 32 / 30, rel=0.05)
    assert without.table["seconds"].iloc[0] == pytest.approx(2, rel=0.05)
    assert "every iteration counts" in with_it.notes[0]
    assert "the first iteration of each run is left out" in without.notes[0]


def test_points_beyond_the_cores_are_marked_and_not_fitted(speedup_sweep: Path) -> None:
    sweep = load(speedup_sweep)
    study = speedup.study(sweep)
    assert study.table["oversubscribed"].tolist() == [False] * 4 + [True]
    assert any("(1 of 5; --fit-all" in text for text in study.notes)
    assert not any("fit-all" in text for text in speedup.study(sweep, fit_all=True).notes)


def test_without_n_1_the_smallest_is_the_base_and_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [linear(n, s) for n in (2, 4, 8) for s in range(2)])
    study = speedup.study(load(root))
    np.testing.assert_allclose(study.table["speedup"], [1, 2, 4])
    np.testing.assert_allclose(study.table["efficiency"], 1)
    assert any("No usable run at sampler.n=1" in text for text in study.sentences)
    assert "over sampler.n=2" in study.figure.axes[0].get_ylabel()


def test_two_points_of_one_seed_are_points_without_law_and_interval(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(n=n, serial=0.0, noise=0.0) for n in (1, 2)])
    study = speedup.study(load(root), end_to_end=True)
    assert study.sentences[0] == (
        "2 samplers collect 2 times as fast as 1; learning now takes 33% of a round."
    )
    assert "1 seed have no interval: add seed=0,1,2" in study.sentences[1]
    assert study.table[["seconds_low", "speedup_low", "speedup_high"]].isna().all(axis=None)
    assert not any("Amdahl" in t or "Whole rounds" in t for t in (*study.sentences, *study.notes))
    lines = [line for axes in study.figure.axes for line in axes.get_lines()]
    assert max(len(line.get_xdata()) for line in lines) == 2  # the ideal
    assert not [line for line in lines if line.get_gid() == style.INTERVAL]


def test_one_worker_count_only(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(n=4)])
    with pytest.raises(BadInputError, match=r"runs that differ in sampler.n, .* have sampler.n=4$"):
        speedup.study(load(root))


def test_an_axis_without_numbers(tasks_sweep: Path) -> None:
    with pytest.raises(BadInputError, match=r"needs numbers above 0, env.id is 'HalfCheetah-v5'"):
        speedup.study(load(tasks_sweep), by="env")


def test_a_warm_up_longer_than_the_runs(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=5), Job(n=2, iterations=5)])
    with pytest.raises(BadInputError, match=r"--warmup 5 leaves no iteration .* longest has 5"):
        speedup.study(load(root), warmup=5)


def test_a_run_shorter_than_the_warm_up_is_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(), Job(n=2), Job(n=2, seed=1)])
    keep_rows(root / "2", 3)
    sweep = load(root)
    speedup.study(sweep, warmup=4)
    assert sweep.notes == ["Runs without an iteration after the warm-up of 4: 2"]


def test_one_line_an_environment(tasks_sweep: Path) -> None:
    table = speedup.study(load(tasks_sweep)).table
    assert table["line"].tolist() == ["HalfCheetah-v5"] * 2 + ["Hopper-v5"] * 2


def test_points_that_not_all_runs_reach_are_not_drawn(tmp_path: Path) -> None:
    jobs = [Job(n=1), Job(n=1, seed=1), Job(n=2), Job(n=2, seed=1), Job(n=4), Job(n=4, seed=1)]
    root = write_sweep(tmp_path / "s", jobs)
    keep_rows(root / "5", 5)
    study = speedup.study(load(root), time_to_return=3000)
    reached = study.table[study.table["of"] == "to return 3000"]
    assert reached["sampler.n"].tolist() == [1, 2]
    assert any("not reached by every run (1 of 2 at sampler.n=4)" in t for t in study.sentences)


def test_a_return_that_nobody_reaches(speedup_sweep: Path) -> None:
    with pytest.raises(BadInputError, match=r"at no sampler.n did every run reach it; the highest"):
        speedup.study(load(speedup_sweep), time_to_return=1e6)


def test_the_papers_points_are_on_the_axes(speedup_sweep: Path) -> None:
    study = speedup.study(load(speedup_sweep), paper=True)
    lines = {line.get_label(): line for line in study.figure.axes[0].get_lines()}
    np.testing.assert_array_equal(lines["WALL-E 2018"].get_xdata(), [1, 2, 5, 8, 10, 20])
    np.testing.assert_array_equal(
        lines["WALL-E 2018"].get_ydata(), [1.0, 1.9, 6.2, 8.3, 12.3, 19.5]
    )
    assert lines["Frans & Hafner 2016"].get_ydata()[4] == pytest.approx(17.9 / 5.1)
    assert max(lines["ideal"].get_xdata()) == 20


def test_the_papers_have_no_speedups_over_learners(tmp_path: Path) -> None:
    jobs = [linear(1, s, learners=k, shards=2) for k in (1, 2) for s in (0, 1)]
    study = speedup.study(load(write_sweep(tmp_path / "s", jobs)), by="learner.n", paper=True)
    labels = [line.get_label() for axes in study.figure.axes for line in axes.get_lines()]
    assert "ideal" in labels
    assert "WALL-E 2018" not in labels


def test_panels_with_one_scale_show_all_points(speedup_sweep: Path) -> None:
    figure = speedup.study(load(speedup_sweep), paper=True, end_to_end=True).figure
    assert all(axes.get_ylim()[1] > 19.5 for axes in figure.axes[:2])  # the third has seconds
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()][-1] == "20"


@pytest.mark.slow
def test_what_rounds_are_made_of_has_a_panel_and_sentences(tmp_path: Path) -> None:
    jobs = [linear(n, s, learners=k, shards=2) for n in (1, 2) for k in (1, 2) for s in (0, 1)]
    study = speedup.study(load(write_sweep(tmp_path / "s", jobs)), end_to_end=True)
    *speedups, rounds = study.figure.axes
    assert len(speedups) == 2
    names = [tick.get_text().split("\u00d7") for tick in rounds.get_xticklabels()]
    assert names == [["1", "1"], ["2", "1"], ["1", "2"], ["2", "2"]]
    heights = [bar.get_y() + bar.get_height() for bar in rounds.patches]
    assert heights[2:12:3] == pytest.approx([2.52, 1.52, 2.27, 1.27])  # learning lies on top
    assert speedups[1].get_ylim() == speedups[0].get_ylim() != rounds.get_ylim()
    rows = study.table[study.table["of"] == "end to end"].set_index(["line", "sampler.n"])
    made_of = rows.loc[("learner.n 2", 2), ["serial_s", "collect_s", "learn_s"]]
    assert made_of.tolist() == pytest.approx([0.02, 1.0, 0.25])
    said = " ".join(study.sentences)
    assert "20 [20, 20] ms are serial; at most 126x." in said
    assert "`walle plan` computes" in said


def test_collection_alone_says_nothing_of_whole_rounds(speedup_sweep: Path) -> None:
    study = speedup.study(load(speedup_sweep))
    assert len(study.figure.axes) == 1
    assert not any("Whole rounds" in text for text in study.sentences)


def test_time_to_return_is_the_first_time(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=0), Job(n=2)])
    sweep = load(root)
    rows = sweep.iterations[sweep.iterations["run"] == "0"]
    means = rows["return_round_mean"].rolling(3, min_periods=1).mean()  # a tenth of 30 rounds
    by_hand = rows.loc[means >= 3000, "wall_s"].iloc[0]
    frame = with_training(sweep, sweep.iterations)
    assert first_reached(frame, 3000)["0"].tolist() == [by_hand]


def test_the_base_is_one_without_doubt(speedup_sweep: Path) -> None:
    sweep = load(speedup_sweep)
    values = {run.name: np.array([1.0 + run.config["seed"]]) for run in sweep.runs}
    points = speedups(measure(sweep, values, "sampler.n"))
    assert points[0].speedup == (1.0, 1.0, 1.0)
    assert points[1].speedup.value == 1
    assert points[1].speedup.low < 1 / 3
    assert points[1].speedup.high > 3


def test_learners_learn_faster(tmp_path: Path) -> None:
    jobs = [Job(learners=n, seed=seed) for n in (1, 2) for seed in (0, 1, 2)]
    study = speedup.study(load(write_sweep(tmp_path / "s", jobs)), end_to_end=True)
    assert study.sentences[0].startswith("2 learners learn 2")
    assert not any("collect" in said and "faster" in said for said in study.sentences)
    assert study.figure.axes[0].get_ylabel() == "learning speedup"
