from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis import plan
from walle.analysis.runs import BadInputError, load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = Job(serial=0.0, iterations=12, batch_size=65536)
    return write_sweep(tmp_path_factory.mktemp("multirun") / "short", [job])


def test_a_short_run_is_planned_for_more_samplers(run: Path) -> None:
    study = plan.study(load(run), samplers=[1, 2, 8, 64], lag=[0, 1], cores=72)
    assert study.points is not None
    table = study.points.set_index(["mode", "samplers"])
    assert table.loc[("lock-step", 1), "iteration_s"] == pytest.approx(2.0 + 0.5 + 0.02, rel=0.1)
    assert table.loc[("lock-step", 1), "speedup"] == 1
    # Of 1.9 s 60% steps lanes, 35% acts, 3% is other; a call is worth 1.9 and 44 lanes.
    collect_s = 1.9 * (0.6 * 9.9 / 65.9 + 0.35 * 52 / 108 + 0.03 * 68 / 124)
    assert table.loc[("lock-step", 8), "iteration_s"] == pytest.approx(collect_s + 0.52, rel=0.03)
    assert table.loc[("lag 1", 8), "iteration_s"] == pytest.approx(collect_s, rel=0.1)
    assert (table["iteration_s_low"] <= table["iteration_s"]).all()
    assert (table["iteration_s"] <= table["iteration_s_high"]).all()
    rates = table["steps_per_s"] * table["iteration_s"]
    assert rates.tolist() == pytest.approx([65536] * len(table))
    assert any("lock-step the table ends at 64" in said for said in study.sentences)


def test_the_table_tells_beyond_which_samplers_nothing_is_gained_only_if_it_has_more(
    run: Path,
) -> None:
    study = plan.study(load(run), samplers=[1, 8, 512], lag=[0, 1], cores=1024)
    assert any("lag 1 nothing is gained beyond 8 samplers" in said for said in study.sentences)
    assert not any("more may gain" in said for said in study.sentences if "lag 1" in said)
    few = plan.study(load(run), samplers=[1, 2], lag=[0], cores=1024)
    assert any(
        "lock-step the table ends at 2 samplers, and more may gain" in said
        for said in few.sentences
    )
    rings = [line for line in few.figure.axes[1].get_lines() if line.get_markersize() == 9]
    assert all(len(ring.get_xdata()) == 0 for ring in rings)


def test_measured_runs_are_drawn_where_they_ran_on_the_planned_machine(
    speedup_sweep: Path,
) -> None:
    left, _ = plan.study(load(speedup_sweep), samplers=[1, 16], lag=[0]).figure.axes
    drawn = [
        line for line in left.get_lines() if line.get_marker() == "o" and len(line.get_xdata())
    ]
    assert sorted({float(line.get_xdata()[0]) for line in drawn}) == [1, 2, 4, 8, 16]
    other = plan.study(load(speedup_sweep), samplers=[1, 16], lag=[0], cores=64).figure.axes[0]
    assert [line for line in other.get_lines() if line.get_marker() == "o"] == []


def test_the_command_writes_a_figure_and_its_numbers(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--samplers", "1", "100000", "--lag", "0", "--machines", "2000"]
    flags += ["--cores", "64", "--learners", "2", "-o", str(tmp_path / "plan.png")]
    assert plan.main([str(run), *flags]) == 0
    said = capsys.readouterr().out
    assert "Planned: 2 learners, 2000 machines of 64 cores." in said
    assert "Next: " in said
    numbers = pd.read_csv(tmp_path / "plan.csv")
    assert numbers["samplers"].tolist() == [1, 100_000]
    assert (tmp_path / "plan.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--samplers", "0"], "'0' is not a whole number of at least 1"),
        (["--bandwidth", "0"], "0 is not above 0"),
        (["--lag", "x"], "'x' is neither a whole number nor null"),
    ],
)
def test_what_cannot_be_planned(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        plan.main(flags)
    assert message in capsys.readouterr().err


def test_a_run_without_timing_is_refused(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=3)])
    (root / "0" / "timing.csv").unlink()
    with pytest.raises(BadInputError, match=r"needs iterations.csv and timing.csv"):
        plan.study(load(root))


def test_one_setup_has_one_number_with_its_interval(run: Path) -> None:
    study = plan.study(load(run), samplers=[4], learners=2, lag=[0], machines=2, cores=8)
    (row,) = study.table.itertuples()
    assert not any("Learning takes" in text for text in study.sentences)
    assert row.speedup_low < row.speedup < row.speedup_high
    said = next(text for text in study.sentences if text.startswith("In lock-step"))
    assert (
        f"{row.speedup:.3g} [{row.speedup_low:.3g}, {row.speedup_high:.3g}] times as fast" in said
    )


def test_the_best_change_is_named_first(run: Path) -> None:
    changes = [t for t in plan.study(load(run), samplers=[8], lag=[0]).sentences if "Next" in t]
    assert changes[0].startswith("  Next: sampler.max_lag=1 (")


def test_where_learning_takes_most_of_a_round_it_is_named(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(serial=0.0, iterations=6, learn_s=9.0)])
    said = plan.study(load(root), samplers=[1, 2], lag=[0]).sentences
    assert any("of a round: fewer algo.epochs or a larger algo.minibatch_size" in t for t in said)


def printed() -> list[str]:
    """The commands of the section about plans."""
    text = (ROOT / "docs" / "planning.md").read_text()
    section = text.partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.+?)```", section, re.DOTALL)
    lines = [line for block in blocks for line in block.strip().splitlines()]
    return [line for line in lines if line.startswith("walle ")]


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    small = {"env.step_ms=20": "env.step_ms=1", "env.step_ms_std=10": "env.step_ms_std=0.5"}
    quick = ["algo.epochs=1", "algo.compile=false", "logger.progress=quiet"]
    for line in printed():
        walle, name, *rest = (small.get(word, word) for word in shlex.split(line))
        assert walle == "walle"
        words = [name, *rest, *(quick if name == "run" else [])]
        ended = subprocess.run(
            [sys.executable, "-m", "walle", *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert ended.returncode == 0, (line, ended.stderr)
    assert (tmp_path / "outputs" / "short" / "figures" / "plan.png").exists()
    assert "Planned: 1 learner, 2000 machines of 64 cores." in ended.stdout


@pytest.mark.parametrize("samplers", [[1, 2], [1, 2, 4], [1, 1024]])
def test_every_range_of_speedups_can_be_read_from_the_axis(run: Path, samplers: list[int]) -> None:
    for axes in plan.study(load(run), samplers=samplers, lag=[0], cores=2048).figure.axes:
        low, high = axes.get_ylim()
        assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2


def test_jobs_pinned_to_what_they_need_do_not_make_a_small_machine(tmp_path: Path) -> None:
    jobs = [Job(n=n, cores=n, seed=seed) for n in (1, 2) for seed in (0, 1)]
    study = plan.study(load(write_sweep(tmp_path / "s", jobs)), samplers=[1, 2], lag=[0])
    assert any("1 machine of 2 cores" in said for said in study.sentences)
    left = study.figure.axes[0]
    places = [line.get_xdata() for line in left.get_lines() if line.get_marker() == "o"]
    assert {float(x[0]) for x in places if len(x)} == {1, 2}


def test_only_settings_that_the_algorithm_has_are_advised(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(serial=0.0, iterations=6, learn_s=9.0)])
    file = root / "0" / "run.json"
    content = json.loads(file.read_text())
    algo = content["config"]["algo"]
    content["config"]["algo"] = {"name": "sac", "updates_per_step": 1.0}
    assert "epochs" in algo
    file.write_text(json.dumps(content))
    said = [t for t in plan.study(load(root), samplers=[1, 2], lag=[0]).sentences if "takes" in t]
    assert any("of a round: fewer algo.updates_per_step shorten it" in text for text in said)
    assert not any("epochs" in text for text in said)
