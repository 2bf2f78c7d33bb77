import json

import pytest

from benchmarks import off_policy, off_policy_worker
from benchmarks.answers import contestants
from benchmarks.ratios import add_ratios
from walle.learning.sharing.shared_team import SharedTeam

SMALL = ("--minibatch", "8", "--width", "8", "--updates", "12", "--at-once", "4", "--repeats", "3")


def test_summary_and_ratios():
    def turns(*seconds):
        return [{"update_s": s, "cpu_s": s} for s in seconds]

    results = {
        "walle-compiled": off_policy.summary(turns(0.5, 1.0, 0.25), 100),
        "sb3": off_policy.summary(turns(2.0, 2.0, 2.0), 100),
    }
    add_ratios(results, {off_policy.BASELINE: off_policy.UNIT})
    ours, sb3 = results.values()
    assert (ours["per_s"], ours["slowest_per_s"], ours["fastest_per_s"]) == (200, 100, 400)
    assert (ours["times_walle"], sb3["times_walle"]) == ([1.0, 1.0, 1.0], [4.0, 2.0, 8.0])
    assert [sb3[f"{which}_times_walle"] for which in ("median", "min", "max")] == [4.0, 2.0, 8.0]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sac", "td3", "xqc"])
def test_a_case_is_measured_printed_and_written(tmp_path, capsys, algorithm):
    path = tmp_path / "found.json"
    only = ("--algorithms", algorithm, "--only", "mkl", "walle-eager", "--json", str(path))
    assert off_policy.main([*SMALL, *only]) == 0
    said = capsys.readouterr().out
    assert "sb3: left out, it needs --peers, a python that has stable-baselines3" in said
    assert f"{algorithm}, minibatch 8, nets 8x8, 1 thread(s): updates a second" in said
    (case,) = json.loads(path.read_text())["cases"]
    assert set(case["results"]) == {"mkl", "walle-eager"}
    assert all(len(result["seconds"]) == 3 for result in case["results"].values())


@pytest.mark.slow
def test_a_whole_run_is_timed_from_start_to_end(tmp_path, capsys):
    path = tmp_path / "found.json"
    assert off_policy.main(["--end-to-end", "5120", "--json", str(path)]) == 0
    found = json.loads(path.read_text())["end_to_end"]
    assert found["steps"] == 5120
    assert found["seconds"]["walle"] > 0
    assert "SAC, HalfCheetah-v5, 5,120 steps" in capsys.readouterr().out


def test_a_turn_has_whole_calls_and_whole_blocks(capsys):
    with pytest.raises(SystemExit):
        off_policy.arguments(["--updates", "128", "--algorithms", "sac", "xqc"])
    assert "--updates 128 must be a multiple of 192: whole calls only" in capsys.readouterr().err
    assert off_policy.arguments(["--updates", "128", "--algorithms", "sac", "td3"]).updates == 128


def test_learners_and_shards_are_contestants_by_name():
    args = off_policy.arguments(["--learners", "2", "4", "--only", "walle-4", "walle-2-l"])
    found = contestants(args, off_policy.OWN, off_policy.BASELINE)
    assert [(each.name, each.learners, each.shards) for each in found] == [
        ("walle-2-learners", 2, 2),
        ("walle-4-shards", 1, 4),
        ("walle-4-learners", 4, 4),
    ]


@pytest.mark.slow
def test_a_contestant_with_two_learners_takes_its_updates(monkeypatch):
    gather, exchanges = SharedTeam.gather, []

    def counted(self, *arguments):
        exchanges.append(self.size)
        return gather(self, *arguments)

    monkeypatch.setattr(SharedTeam, "gather", counted)
    size = {"minibatch": 8, "width": 8, "updates": 4, "threads": 1}
    case = {"algorithm": "sac", "system": "walle-eager", **size, "learners": 2, "shards": 2}
    update, close = off_policy_worker.walle(case)
    update()
    close()
    # Two for each of 4 updates, and one before, to find out whether all learners have compiled.
    assert exchanges == [2] * 9
