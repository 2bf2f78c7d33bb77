import pytest

from benchmarks import collect
from benchmarks.ratios import compared, shown


def test_the_ratio_of_each_turn_and_of_as_many_turns_as_both_took():
    found = compared({"walle": [1.0, 2.0, 4.0], "sb3": [3.0, 4.0]}, "walle", "times")
    assert found["walle"]["times"] == [1.0, 1.0, 1.0]
    assert found["sb3"]["times"] == [3.0, 2.0]
    assert shown(found["sb3"], "times") == "2.50 (2.00-3.00)"


def test_nothing_is_compared_where_the_baseline_did_not_take_part():
    assert compared({"sb3": [3.0]}, "walle", "times") == {}
    assert shown({}, "times") == ""


def test_the_table_of_collecting():
    """By hand: walle makes 100 and 90 steps where the limit makes 100, and EnvPool 50 and 60."""
    rates = {"limit": [100.0, 100.0], "walle": [100.0, 90.0], "envpool": [50.0, 60.0]}
    _, limit, walle, envpool = collect.table("Hopper-v5", rates).splitlines()
    assert limit.split()[1:4] == ["100", "100", "100"]
    assert "0.95 (0.90-1.00)" in walle
    assert "0.55 (0.50-0.60)" in envpool
    assert envpool.endswith("1.75 (1.50-2.00)")
    assert compared(rates, "limit", "share")["envpool"]["share"] == pytest.approx([0.5, 0.6])
