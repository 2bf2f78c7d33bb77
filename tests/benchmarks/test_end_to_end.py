import json

import pytest

from benchmarks import end_to_end, lineup
from benchmarks.turns import Block
from walle.config import compose

HALF, WHOLE = Block(0, 10_000, 2.0), Block(0, 20_000, 1.0)


def test_seconds_for_a_round_and_ratios_of_each_repetition():
    turns = {
        "walle": [[WHOLE], [WHOLE, Block(0, 20_000, 3.0)]],  # 1 s, then 2 s on average
        "sb3": [[HALF, HALF], [Block(0, 2_000, 1.2)]],  # 4 s, then 12 s
    }
    found = end_to_end.summary(turns, 20_000)
    assert found["walle"]["seconds"] == pytest.approx([1.0, 2.0])
    assert found["sb3"]["seconds"] == pytest.approx([4.0, 12.0])
    assert found["sb3"]["times_walle"] == pytest.approx([4.0, 6.0])
    spread = [found["sb3"][f"{name}_times_walle"] for name in ("median", "min", "max")]
    assert spread == pytest.approx([5.0, 4.0, 6.0])


def test_without_walle_there_is_no_ratio():
    found = end_to_end.summary({"sb3": [[HALF]]}, 20_000)
    assert "times_walle" not in found["sb3"]


def test_the_table():
    found = end_to_end.summary({"walle": [[WHOLE]], "sb3": [[HALF]]}, 20_000)
    for row in found.values():
        row |= {"startup_s": 2.0, "compile_s": 0.5}
    text = end_to_end.table(found, "title").splitlines()
    assert text[0] == "title"
    assert "4.00 s" in text[3]
    assert "4.00 (4.00-4.00)" in text[3]
    assert text[3].endswith("2.0 s      0.5 s")


@pytest.mark.parametrize("what", [["rounds"], ["race", "--seeds", "2"]])
def test_nobody_is_there(tmp_path, capsys, what):
    path = tmp_path / "found.json"
    assert end_to_end.main([*what, "--only", "sb", "sample", "--json", str(path)]) == 0
    said = capsys.readouterr().out
    assert "sbx" in said
    assert "left out, it needs --peers, a python that has stable-baselines3 and mujoco" in said
    assert (
        "left out, it needs --sample-factory, a python that has sample-factory and mujoco" in said
    )
    report = json.loads(path.read_text())
    assert report[what[0]] == {}
    assert report["settings"]["what"] == what[0]
    assert report["provenance"]["versions"]["walle"]


@pytest.mark.parametrize("words", [[], ["rounds", "--seeds", "1"], ["race", "--steps", "many"]])
def test_bad_command_lines(words, capsys):
    with pytest.raises(SystemExit) as stop:
        end_to_end.main(words)
    assert stop.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_same_for_all_is_what_walle_does_in_small_minibatches():
    config = compose(["+experiment=small_minibatches", "sampler.lanes=64"])
    told, net = lineup.same(20_000, 8), lineup.same(20_000, 8)["net"]
    mine = config.algo
    assert told["ppo"] == {
        "n_steps": 2500,
        "batch_size": mine.minibatch_size,
        "n_epochs": mine.epochs,
        "learning_rate": mine.learning_rate,
        "gamma": mine.gamma,
        "gae_lambda": mine.gae_lambda,
        "clip_range": mine.clip,
        "normalize_advantage": mine.normalize_advantages,
        "ent_coef": mine.entropy_weight,
        "vf_coef": mine.value_weight,
        "max_grad_norm": mine.max_grad_norm,
    }
    assert [net["width"]] * 2 == list(config.net.policy_hidden) == list(config.net.critic_hidden)
    assert (net["activation"], net["log_std_init"]) == (config.net.activation, config.net.log_std)
    ours = lineup.ours()
    assert ours["envs"] == config.lanes
    assert ours["envs"] * ours["ppo"]["n_steps"] == config.batch_size
    assert ours["linear_schedule"] == (mine.schedule == "linear")
