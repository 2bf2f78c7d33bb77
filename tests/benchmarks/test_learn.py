import json

import pytest

from benchmarks import learn
from benchmarks.ratios import add_ratios


def turns(*seconds):
    return [{"update_s": s, "cpu_s": 2 * s} for s in seconds]


def test_two_turns_at_least_then_until_the_time_is_spent():
    assert learn.has_turn(turns(9.0), 5.0)
    assert not learn.has_turn(turns(9.0, 9.0), 5.0)
    assert learn.has_turn(turns(1.0, 1.0, 1.0), 5.0)


def test_summary_and_ratios():
    results = {
        "walle-compiled": learn.summary(turns(0.4, 0.6, 0.5), 1000),
        "walle-same": learn.summary(turns(0.25), 1000),
        "sb3": learn.summary(turns(3.0, 4.0), 1000),
    }
    add_ratios(results, learn.RATIOS)
    ours, _, sb3 = results.values()
    assert (ours["median_s"], ours["min_s"], ours["max_s"]) == (0.5, 0.4, 0.6)
    assert ours["us_a_step"] == pytest.approx(500)
    assert ours["cpu_median_s"] == 1.0
    assert sb3["times_walle_compiled"] == pytest.approx([3 / 0.4, 4 / 0.6])
    assert sb3["times_walle_same"] == pytest.approx([12.0])
    case = {"minibatch": 64, "width": 64, "samples": 20, "epochs": 1, "steps": 1}
    for result in results.values():
        result["setup_s"] = 0.1
    line = learn.table({**case, "results": results}).splitlines()[-1]
    assert "7.08 (6.67-7.50)  12.00 (12.00-12.00)" in line


@pytest.mark.slow
def test_every_case_is_measured_printed_and_written(tmp_path, capsys):
    path = tmp_path / "found.json"
    small = ("--samples", "64", "--epochs", "2", "--repeats", "3")
    where = ("--minibatches", "16", "32", "--widths", "8", "128", "--json", str(path))
    assert learn.main(["--only", "mkl", "openblas", *small, *where]) == 0
    said = capsys.readouterr().out
    assert "sb3: left out, it needs --peers, a python that has stable-baselines3" in said
    assert "minibatch 32, nets 128x128: 64 samples, 2 epochs, 4 steps" in said
    cases = json.loads(path.read_text())["cases"]
    assert [(c["width"], c["minibatch"], c["steps"]) for c in cases] == [
        *((8, 16, 8), (8, 32, 4)),
        *((128, 16, 8), (128, 32, 4)),
    ]
    for case in cases:
        assert set(case["results"]) == {"mkl", "openblas"}
        assert len(case["results"]["mkl"]["seconds"]) == 3


@pytest.mark.slow
def test_two_learners_are_measured_too(tmp_path):
    path = tmp_path / "found.json"
    small = ("--samples", "64", "--epochs", "1", "--repeats", "2")
    where = ("--minibatches", "32", "--widths", "8", "--json", str(path))
    assert learn.main(["--only", "walle-2", "walle-same", *small, *where]) == 0
    (case,) = json.loads(path.read_text())["cases"]
    assert len(case["results"]["walle-same"]["seconds"]) == 2
    assert len(case["results"]["walle-2-learners"]["seconds"]) == 2
