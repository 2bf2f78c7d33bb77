import json
import math
import sys

import pytest

from benchmarks import race
from benchmarks.programs import Need, Program
from benchmarks.race import (
    Lap,
    Log,
    Mark,
    Racer,
    best_peers,
    described,
    ranges,
    summary,
    table,
)
from benchmarks.turns import Launch

LAUNCH = Launch(2.0, 1.0, 4.0)
PEER = Need(sys.executable, ("numpy",), "--peers")


def lap(name, seed, *marks, completed=True):
    return Lap(name, seed, completed, 50.0, LAUNCH, [Mark(*mark) for mark in marks])


def test_when_a_return_was_reached():
    found = lap("walle", 0, (1.0, 10, None), (2.0, 20, 999.0), (3.0, 30, 1000.0), (4.0, 40, 900.0))
    assert found.reached(1000) == 3.0
    assert found.reached(1001) == math.inf
    assert found.stepped(25) == 3.0
    assert found.stepped(41) == math.inf


def three_seeds():
    return [
        lap("walle", 0, (5.0, 100, 1500.0)),
        lap("sb3", 0, (20.0, 100, 1100.0)),
        lap("sb3", 1, (30.0, 100, 2500.0)),
        lap("sb3", 2, (10.0, 60, 500.0), completed=False),
    ]


def test_medians_over_seeds():
    found = summary(three_seeds(), [1000, 2000], 100)
    assert found["sb3"]["to_return"]["1000"] == {"median_s": 30.0, "seconds": [20.0, 30.0, None]}
    assert found["sb3"]["to_return"]["2000"] == {"median_s": None, "seconds": [None, 30.0, None]}
    assert found["sb3"]["to_steps"]["median_s"] == 30.0
    assert found["sb3"]["whole"]["seconds"] == [50.0, 50.0, None]
    assert found["sb3"]["final_returns"] == [1100.0, 2500.0, 500.0]
    assert (found["sb3"]["startup_s"], found["sb3"]["compile_s"]) == (2.0, 1.0)
    assert json.dumps(found, allow_nan=False)


def test_the_table_and_what_it_comes_to():
    found = summary(three_seeds(), [1000, 2000], 100)
    _, walle, sb3, *sentences = table(found, [1000, 2000], 100).splitlines()
    assert walle.split()[:4] == ["walle", "5.0", "s", "(1.00)"]
    assert sb3.split()[:5] == ["sb3", "30.0", "s", "(6.00)", "-"]
    assert sentences == [
        "return 1,000: walle 5.0 s; the quickest peer, sb3, 30.0 s, 6.00 times that"
    ]
    slow = {"walle": found["walle"], "sb3": {"to_return": {"1000": {"median_s": None}}}}
    assert best_peers(slow, [1000]) == ["return 1,000: walle 5.0 s; no peer reached it"]
    assert best_peers({"walle": found["walle"]}, [1000]) == []
    assert "-" in table({"sb3": found["sb3"]}, [1000, 2000], 100)


def test_the_ranges_over_the_seeds():
    _, walle, sb3 = ranges(summary(three_seeds(), [1000, 2000], 100), [1000, 2000], 100).split("\n")
    assert walle.split() == [
        "walle",
        *("5.0-5.0", "s"),
        "-",
        *("5.0-5.0", "s"),
        *("50.0-50.0", "s"),
    ]
    assert sb3.split()[1:7] == ["from", "20.0", "s", "from", "30.0", "s"]


def test_a_log_is_read_line_by_line_as_it_grows(tmp_path):
    file = tmp_path / "log"
    log = Log(file)
    assert log.news() == []
    file.write_text("iteration,env_steps,return_mean\n1,2048,\n2,40")
    assert log.news() == [(2048, None)]
    with file.open("a") as more:
        more.write("96,-3.5\n")
    assert log.news() == [(4096, -3.5)]
    assert log.news() == []


def printing(*lines, then=""):
    code = "".join(f"print({json.dumps(line)!r}, flush=True)\n" for line in lines) + then
    return Racer("peer", lambda *_: Program([sys.executable, "-c", code], [0]), PEER)


def test_a_lap_to_the_end():
    rows = [8, 10.0, 14.0, 8, None], [8, 14.0, 15.0, 16, 3.5]
    found = race.lap(printing(*rows), seed=3, limit_s=30)
    assert (found.name, found.seed, found.completed) == ("peer", 3, True)
    assert [mark[1:] for mark in found.marks] == [(8, None), (16, 3.5)]
    assert 0 < found.marks[0].at_s <= found.total_s < 30
    assert found.launch.compile_s == pytest.approx(4.0, abs=0.5)  # all but a round's share
    assert json.dumps(found.plain())
    assert "peer seed 3: 16 steps, return 4, " in described(found)


def test_a_lap_is_cut_off_at_the_limit():
    row = [8, 10.0, 11.0, 8, None]
    found = race.lap(printing(row, then="import time\ntime.sleep(60)"), seed=0, limit_s=1.0)
    assert not found.completed
    assert 1.0 <= found.total_s < 20
    assert "not to the end" in described(found)


def test_a_lap_that_fails_says_why(capsys):
    found = race.lap(printing(then="raise SystemExit('no legs')"), seed=0, limit_s=30)
    assert (found.completed, found.launch, found.marks) == (False, None, [])
    assert "peer failed:\nno legs" in capsys.readouterr().out
    summary([found], [1000], 100)
