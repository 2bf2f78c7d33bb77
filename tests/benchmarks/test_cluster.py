import json

import pytest

from benchmarks.cluster import described, in_turns
from tests.benchmarks.test_tiny import output


@pytest.mark.parametrize(("seconds", "said"), [(0.0149, "kept"), (0.0151, "not kept")])
def test_the_promise_is_a_ratio_and_two_milliseconds(seconds, said, capsys):
    found = described(3, 350_000, [seconds] * 3, [0.01] * 3)
    assert found["allowed_s"] == pytest.approx(0.015)
    line = capsys.readouterr().out
    assert line.endswith(f": {said}\n")
    assert "350 kB" in line


def test_two_functions_take_turns_and_the_first_ones_do_not_count():
    called = []
    first, second = in_turns(lambda: called.append("a"), lambda: called.append("b"), 3)
    assert len(first) == len(second) == 3
    assert "".join(called) == "ab" * 8


@pytest.mark.ray
def test_a_cluster(tmp_path):
    small = ("--nodes", "2", "--batch-sizes", "256", "--repetitions", "2", "--rounds", "1")
    slow = ("--per-node", "2", "--steps", "2", "--step-ms", "1")
    said = output("cluster", *small, *slow, "--json", tmp_path / "found.json", cwd=tmp_path)
    assert "2 nodes" in said
    assert "with one sampler" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["provenance"]["written"]
    assert len(found["exchange"][0]["walle_s"]) == 2
    assert len(found["slow"]["many_step_s"]) == 1


@pytest.mark.ray
def test_a_plan_of_a_cluster(tmp_path):
    small = ("--nodes", "2", "--per-node", "1", "--steps", "4", "--step-ms", "5", "--rounds", "1")
    file = tmp_path / "found.json"
    output("plan_cluster", *small, "--delays-ms", "0", "300", "--json", file, cwd=tmp_path)
    quick, slow = json.loads(file.read_text())["points"]
    for kind in ("planned_s", "measured_s"):
        assert slow[kind][0] - quick[kind][0] > 0.15  # seconds; the delay is 0.3
