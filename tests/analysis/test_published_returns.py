from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, keep_rows, set_columns, write_sweep
from walle.analysis.published_returns import (
    BEST,
    END,
    TRAINED,
    Entry,
    best_evaluation,
    main,
    study,
    theirs,
)
from walle.analysis.runs import load


def test_the_best_evaluation_is_the_top_of_the_mean_curve_not_the_mean_of_the_tops() -> None:
    evaluations = pd.DataFrame(
        {
            "run": ["a", "a", "a", "b", "b", "b"],
            "env_steps": [100, 200, 300] * 2,
            "return_mean": [9.0, 4.0, 1.0, 0.0, 8.0, 2.0],
        }
    )
    found = best_evaluation(evaluations, ["a", "b"])
    assert found is not None
    assert (found.mean, found.env_steps) == (6.0, 200)
    assert found.spread == pytest.approx(8**0.5)


def test_runs_that_share_no_evaluation_have_no_best_one() -> None:
    evaluations = pd.DataFrame({"run": ["a"], "env_steps": [100], "return_mean": [1.0]})
    assert best_evaluation(evaluations, ["a", "b"]) is None
    assert best_evaluation(evaluations.iloc[:0], ["a"]) is None


def test_published_returns_are_of_the_same_algorithm() -> None:
    labels = [entry.label for entry in theirs("HalfCheetah-v5", "ppo")]
    assert "Tianshou (max of average return over training)" in labels
    assert theirs("HalfCheetah-v5", "sac") != theirs("HalfCheetah-v5", "ppo")
    assert theirs("NoSuchTask-v0", "ppo") == []


def test_the_probability_of_improvement_stands_beside_each_number(tmp_path: Path) -> None:
    """Tianshou's PPO on HalfCheetah is 5784 with a spread of 1244 over ten seeds."""
    jobs = [Job(seed=seed, batch_size=33_333) for seed in range(3)]  # 30 iterations: 1M steps
    root = write_sweep(tmp_path / "s", jobs)
    for seed in range(3):
        set_columns(root / str(seed), "eval", return_mean=5784.0 + 1244)
    found = study(load(root))
    table = found.table.set_index("label")["above Tianshou"]
    assert table["walle, best evaluation"] == pytest.approx(0.8413, abs=1e-4)  # of the normal
    assert np.isnan(table["walle, end of training"])
    said = next(text for text in found.sentences if "Tianshou" in text)
    assert said.startswith(
        "Probability that a seed of walle (best evaluation) is above one of Tianshou (max of "
        "average return over training, taken as normal), ppo: 84% ["
    )
    assert said.endswith("eval.stochastic=true makes such evaluations too.")
    for seed in range(3):
        set_columns(root / str(seed), "eval", stochastic_return_mean=5784.0)
    found = study(load(root))
    table = found.table.set_index("label")["above Tianshou"]
    assert table["walle, best stochastic evaluation"] == pytest.approx(0.5)
    assert np.isnan(table["walle, best evaluation"])  # theirs drew actions too
    said = next(text for text in found.sentences if "Tianshou" in text)
    assert "(best stochastic evaluation)" in said
    assert said.endswith("wholly above 50% on none, wholly below on none.")
    assert any(
        text.startswith("Not compared with SB3 zoo (one tuned run), ppo, as nothing here")
        for text in found.sentences
    )


@pytest.mark.slow
def test_a_sweep_of_tasks(tasks_sweep: Path, tmp_path: Path) -> None:
    found = study(load(tasks_sweep)).table
    mine = found[(found["task"] == "Hopper-v5") & found["label"].str.startswith("walle")]
    assert mine["label"].tolist() == [
        f"walle, n = {n}, {kind}" for n in (1, 4) for kind in (TRAINED, END, BEST)
    ]
    assert mine["seeds"].tolist() == [3] * 6  # two numbers of samplers are no repeats
    assert main([str(tasks_sweep), "-o", str(tmp_path / "out.png")]) == 0
    assert (tmp_path / "out.png").stat().st_size > 0
    assert (tmp_path / "out.csv").read_text().startswith("task,algorithm,label,mean")


def test_all_intervals_are_of_the_mean_and_of_95_per_cent() -> None:
    entry = Entry("x", "", 10.0, 3.0, 9, 1000)
    assert entry.interval == pytest.approx((10.0, 10 - 2.306004, 10 + 2.306004))  # t with 8, s / 3
    for seeds in (1, float("nan")):
        assert np.isnan(Entry("x", "", 10.0, 3.0, seeds, 1000).interval.low)


def test_seeds_are_dots_and_other_steps_are_hollow(tmp_path: Path) -> None:
    jobs = [Job(seed=seed, batch_size=33_333) for seed in (0, 1)]  # 30 iterations: 1M steps
    found = study(load(write_sweep(tmp_path / "s", jobs)))
    table = found.table.set_index("label")
    assert not table.loc["Tianshou (max of average return over training)", "other_steps"]
    assert table.loc["PFRL (final, stochastic policy)", "other_steps"]  # 2M steps
    (axes,) = found.figure.axes
    assert axes.get_ylabel() == "return"
    names = [text.get_text() for text in found.figure.legends[0].get_texts()]
    assert {"walle, end of training (2 seeds)", "CleanRL (3 seeds)", "other env steps"} <= set(
        names
    )
    dots = [line for line in axes.get_lines() if line.get_marker() == "."]
    assert len(dots) == 6  # two seeds of each number of ours


def test_no_episode_yet_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_sweep(tmp_path / "sweep", [Job()])
    keep_rows(root / "0", 0)
    assert main([str(root)]) == 2
    assert capsys.readouterr().err.startswith("published_returns: ")


def test_a_source_at_other_steps_is_not_counted(tmp_path: Path) -> None:
    """The runs ended long before the published million: they did not fail to reach it."""
    jobs = [Job(env="InvertedPendulum-v5", seed=seed) for seed in (0, 1)]
    found = study(load(write_sweep(tmp_path / "s", jobs)))
    assert not any(text.startswith("Probability") for text in found.sentences)
    said = "Not compared with CleanRL (end of training), ppo, as the runs did not end at its "
    assert f"{said}1,000,000 steps: InvertedPendulum-v5." in found.sentences


def test_runs_are_compared_at_the_end_of_the_shortest(tmp_path: Path) -> None:
    jobs = [Job(seed=seed, batch_size=33_333) for seed in range(3)]  # 30 iterations: 1M steps
    root = write_sweep(tmp_path / "s", jobs)
    keep_rows(root / "2", 6)
    found = study(load(root))
    assert found.table["env_steps"].iloc[0] == 6 * 33_333
    assert not any(text.startswith("Probability") for text in found.sentences)


def test_no_interval_reaches_beyond_possible_returns(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(env="CartPole-v1", seed=seed) for seed in range(3)])
    for seed, end in enumerate((490.0, 100.0, 10.0)):
        set_columns(root / str(seed), return_mean=end)
        set_columns(root / str(seed), "eval", return_mean=end)
    for row in study(load(root)).table.itertuples():
        assert (row.mean_low, row.mean_high) == (0, 500)
