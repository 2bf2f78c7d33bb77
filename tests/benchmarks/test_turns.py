import json
import signal
import sys
import time

import psutil
import pytest

from benchmarks.programs import Need, Program
from benchmarks.turns import (
    Block,
    Contestant,
    Entry,
    WalleRounds,
    WalleRun,
    in_turn,
    lined_up,
    present,
    rate,
    rotated,
    turn,
)

WORK = """
import json, time
while True:
    start = time.monotonic()
    time.sleep(0.005)
    print(json.dumps([10, start, time.monotonic()]), flush=True)
"""


def program(code):
    return Program([sys.executable, "-c", code], [0])


def test_rate_is_the_sum_over_workers():
    blocks = [Block(0, 100, 2.0), Block(0, 100, 2.0), Block(1, 300, 3.0)]
    assert rate(blocks) == pytest.approx(50 + 100)


def test_rotated():
    assert rotated([1, 2, 3], 4) == [2, 3, 1]
    assert rotated([], 1) == []


def test_contestants_take_turns_and_stand_still_between_them(tmp_path):
    entries = [Entry("a", [program(WORK)] * 2), Entry("b", [program(WORK)])]
    with lined_up(entries, tmp_path) as (a, b):
        turns = in_turn([a, b], 2, steps=40)
        assert [len(mine) for mine in turns.values()] == [2, 2]
        for blocks in turns["a"]:
            assert {block.worker for block in blocks} == {0, 1}
            assert sum(block.steps for block in blocks) >= 40
            assert all(0.005 <= block.seconds < 5 for block in blocks)
        before = a.all_blocks(), b.all_blocks()
        time.sleep(0.1)
        assert (a.all_blocks(), b.all_blocks()) == before
        assert a.launch(step_s=0.0).first_s > 0


def test_one_that_ends_is_told_with_its_own_words(tmp_path):
    entry = Entry("lame", [program("raise SystemExit('a broken leg')")])
    with (
        pytest.raises(SystemExit, match=r"lame ended with 1:\na broken leg"),
        lined_up([entry], tmp_path),
    ):
        pass


def test_one_that_ends_in_its_turn_is_told_too(tmp_path):
    once = "import json, time; print(json.dumps([1, time.monotonic(), 1e9]), flush=True)"
    contestant = Contestant("short", [program(once)], tmp_path / "short")
    try:
        with pytest.raises(SystemExit, match="short ended"):
            turn(contestant, steps=10)
    finally:
        contestant.end()


def written(directory, rounds):
    run = directory / "run"
    run.mkdir(exist_ok=True)
    rows = "".join(f"{steps},{collect},{whole}\n" for steps, collect, whole in rounds)
    (run / "iterations.csv").write_text(f"env_steps,collect_s,iteration_s\n{rows}12")
    (run / "timing.csv").write_text(
        "process,iteration,compile_s\nagent,1,2.5\nsampler-0,1,\nagent,2,0.5\n"
    )


@pytest.mark.parametrize(("kind", "seconds"), [(WalleRun, 1.0), (WalleRounds, 3.0)])
def test_a_run_is_read_from_its_files(tmp_path, kind, seconds):
    contestant = kind("walle", [], tmp_path / "walle")
    rounds = [(10, 9.0, 9.0), (20, 8.0, 8.0), (30, 8.0, 8.0), (45, 1.0, 3.0)]
    written(tmp_path / "walle", rounds[:1])
    contestant.resume()
    written(tmp_path / "walle", rounds)  # the second or the third one stood still for a while
    assert contestant.blocks() == [Block(0, 15, seconds)]
    contestant.first_s = 14.0
    assert contestant.launch(step_s=0.2) == pytest.approx((14.0 - 10 * 0.2 - 3.0, 3.0, 14.0))


def test_compiling_is_what_the_first_stretch_took_too_long(tmp_path):
    lines = [[10, 100.0, 105.0], [10, 105.0, 106.0]]
    contestant = Contestant(
        "peer", [program(f"print({lines[0]!r})\nprint({lines[1]!r})")], tmp_path / "p"
    )
    for process in contestant._running:
        assert process.wait(timeout=30) == 0
    contestant.first_s = 7.0
    assert contestant.launch(step_s=0.1) == pytest.approx((2.0, 4.0, 7.0))


def test_whoever_lacks_a_package_is_left_out_in_a_line(capsys):
    entries = [
        Entry("here", []),
        Entry("asked-for", [], need=Need(None, ("envpool",), "--peers")),
        Entry("nowhere", [], need=Need("/no/such/python", ("envpool",), "--peers")),
        Entry("bare", [], need=Need(sys.executable, ("no-such-package", "torch"), "--peers")),
    ]
    assert [entry.name for entry in present(entries)] == ["here"]
    assert capsys.readouterr().out.splitlines() == [
        "asked-for: left out, it needs --peers, a python that has envpool",
        "nowhere: left out, --peers /no/such/python is no program",
        f"bare: left out, {sys.executable} has no no-such-package",
    ]
    assert [entry.name for entry in present(entries, only=["he"])] == ["here"]
    assert capsys.readouterr().out == ""


def test_a_turn_takes_its_least_time_and_not_more_than_its_most(tmp_path):
    with lined_up([Entry("a", [program(WORK)])], tmp_path) as (a,):
        begin = time.monotonic()
        turn(a, steps=1, least_s=1.2)
        assert time.monotonic() - begin >= 1.2
        blocks = turn(a, steps=10**9, least_s=10**9, most_s=0.1)
        assert 0 < sum(block.steps for block in blocks) < 10**9


def test_the_programs_of_a_contestant_end_with_it(tmp_path):
    contestant = Contestant("a", [program(WORK)], tmp_path / "a")
    contestant.pause()
    contestant.end()
    assert [process.returncode for process in contestant._running] == [-signal.SIGKILL]


CHILD_WITH_ITS_OWN_SESSION = f"""
import os, subprocess, sys
subprocess.run([sys.executable, "-c", {WORK!r}], start_new_session=True)
"""


def test_children_with_sessions_of_their_own_stand_still_too(tmp_path):
    with lined_up([Entry("a", [program(CHILD_WITH_ITS_OWN_SESSION)])], tmp_path) as (a,):
        time.sleep(0.05)  # a line that is on its way
        before = a.all_blocks()
        time.sleep(0.2)
        assert a.all_blocks() == before
        assert turn(a, steps=40)
        child = psutil.Process(a._running[0].pid).children()[0]
    child.wait(timeout=30)


def test_blocks_may_say_more(tmp_path):
    line = json.dumps([5, 0.0, 2.0, 1000, None])
    contestant = Contestant("a", [program(f"print({line!r})")], tmp_path / "a")
    assert contestant._running[0].wait(timeout=30) == 0
    assert contestant.all_blocks() == [Block(0, 5, 2.0)]
