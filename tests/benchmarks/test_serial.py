"""The serial part of a round from hand-made sections."""

import json
import os
from contextlib import nullcontext

import pytest

from benchmarks import serial
from benchmarks.serial_worker import PASSES, PLACES, REST, WAITING, divided
from walle.analysis.measuring.laws import Shares

SETTINGS = [serial.Setting(n, k) for n in (1, 2) for k in (1, 2)]
SHARES = {setting: Shares(1 / setting.samplers, 1 / setting.learners) for setting in SETTINGS}


def rounds(setting):
    """Three rounds, the last of them disturbed: 8 ms / N + 1 ms of work to collect, 4 ms / L."""
    busy = 8e-3 / setting.samplers + 1e-3
    seconds = dict.fromkeys((*PLACES, REST), 0.0)
    seconds[WAITING] = busy - 0.2e-3 * setting.samplers  # 0.4 ms for the last one with one sampler
    seconds |= {"trackers": 0.3e-3, "csv rows": 0.2e-3, "logging": 0.1e-3 * setting.samplers}
    waited = 0.3e-3 * (setting.learners - 1)
    work = 4e-3 / setting.learners
    seconds[PASSES] = work + waited + 0.5e-3
    seconds["publishing"] = 0.1e-3 * setting.samplers
    found = divided(seconds, busy, (1 + work, 1 + waited), (1.0, 1.0))
    return [found, found, {name: 10 * each for name, each in found.items()}]


@pytest.fixture
def found():
    return serial.sections({setting: rounds(setting) for setting in SETTINGS}, SHARES)


def test_what_processes_divide_is_told_from_what_they_do_not(found):
    assert found["samplers' work, mean"].parts == pytest.approx((1e-3, 8e-3, 0), abs=1e-9)
    assert found["values and gradients"].parts == pytest.approx((0, 0, 4e-3), abs=1e-9)
    assert found["sums, norms, Adam"].serial_s == pytest.approx(0.5e-3)
    assert found["publishing"].serial_s == pytest.approx(0.2e-3)  # as with most processes


def test_waits_are_those_with_one_of_each(found):
    assert found["waiting for the last one"].serial_s == pytest.approx(0.4e-3)
    assert found["waiting for a learner"].seconds[max(SETTINGS)] == pytest.approx(0.3e-3)
    assert found["waiting for a learner"].serial_s == 0


def test_a_whole_round_is_its_sections(found):
    one = serial.Setting(1, 1)
    assert found["whole round"].seconds[one] == pytest.approx((9 + 0.4 + 4.5 + 0.1) * 1e-3)
    assert found["whole round"].parts.collect == pytest.approx(8e-3, rel=0.05)


def test_passes_without_a_library_count_as_divided():
    seconds = dict.fromkeys((*PLACES, REST), 0.0) | {PASSES: 3e-3, WAITING: 2e-3}
    found = divided(seconds, 1.5e-3, (0.0, 0.0), (0.0, 0.0))
    assert found["values and gradients"] == 3e-3
    assert found["sums, norms, Adam"] == found["waiting for a learner"] == 0
    assert found["waiting for the last one"] == pytest.approx(0.5e-3)
    assert not found.keys() & {PASSES, WAITING}


def test_the_sum_leaves_out_what_passes_while_samplers_collect(found):
    class Config:
        lanes, shards = 64, 2
        algo = type("Algo", (), {"minibatch_size": 1024})

    lines = serial.table(2048, Config, found, SETTINGS, [2.3e-3, 1.9e-3]).splitlines()
    said = {line[:26].strip(): line.split()[-1] for line in lines}
    total = next(line for line in lines if line.startswith("sum of the sections"))
    assert total.endswith("   2.10 (1.90 to 2.30 by turns)")  # 1 + 0.4 + 0.5 + 0.2
    assert said["csv rows*"] == "(0.20)"


def test_every_turn_has_a_sum_of_its_own(monkeypatch, tmp_path, capsys):
    quiet, disturbed = ({s: [rounds(s)[i]] * 2 for s in SETTINGS} for i in (0, -1))
    turns = [quiet, disturbed, quiet]  # the middle one takes ten times as long
    monkeypatch.setattr(serial, "measured", lambda *_: (turns, [1.0]))
    for name in ("answering", "slowdown_on"):
        monkeypatch.setattr(serial, name, lambda *_: nullcontext())
    path = tmp_path / "found.json"
    assert serial.main(["--rounds", "2048", "--json", str(path), "env=halfcheetah"]) == 0
    found = json.loads(path.read_text())["rounds"]["2048"]
    assert found["sum_of_turns_s"] == pytest.approx([2.1e-3, 21e-3, 2.1e-3])
    assert found["sum_s"] == pytest.approx(2.1e-3)  # of the medians over all rounds
    assert found["measured"]["2 x 2"] == [each for turn in turns for each in turn[SETTINGS[-1]]]
    assert " 2.10 (2.10 to 21.00 by turns)" in capsys.readouterr().out


def test_what_independent_work_loses_looks_like_a_serial_part():
    # 100 ms on 2 cores take 60 ms, not 50: as with 20 ms of serial part, 20 + 80 / 2
    said = serial.of_the_machine([1.1, 1.2, 1.4], 2, 0.1)
    assert "2 cores at once took 1.20 times as long as alone (1.10 to 1.40)" in said
    assert "serial part of 20 ms" in said
    assert "serial part of 0 ms" in serial.of_the_machine([0.9, 0.98, 1.2], 3, 0.1)


def test_one_number_of_processes_divides_nothing(capsys):
    with pytest.raises(SystemExit):
        serial.arguments(["--learners", "1", "1"])
    assert "--learners needs two different numbers" in capsys.readouterr().err


def test_settings_that_cannot_work_end_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    args = serial.arguments(["--minibatch", "33", "--learners", "1", "2"])
    with pytest.raises(SystemExit, match="minibatch_size=33"):
        serial.checked(serial.overrides(args, 2048, SETTINGS[0]))
