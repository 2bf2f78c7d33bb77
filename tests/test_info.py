"""Numbers of the environment's info as columns, from the lanes to the tables, and reset's options.

`tests.toy:Parking-v0` ends after 2 + floor(4 x) steps, where x is its random draw, which it
observes. It parks if x is below `room`, and its step t has a fuel of t / 2 if x < 0.75.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import walle
from tests.conftest import read
from walle.agent.evaluation import run_episodes
from walle.agent.recorder import EpisodeTracker
from walle.agent.sinks import section
from walle.analysis.runs import load
from walle.analysis.writing import panel
from walle.config import compose
from walle.envs import EnvSpec, make_lanes
from walle.envs.lanes import numbers_in
from walle.envs.probe import probe
from walle.envs.single import make_single
from walle.errors import ConfigError, RolloutError
from walle.launcher.records import _info_means
from walle.training import make_problem, train
from walle.types import InfoColumn, Rollout

PARKING = "tests.toy:Parking-v0"
RUN = (
    *("env=gym", f"env.id={PARKING}", "batch_size=48", "sampler.lanes=6", "total_steps=144"),
    *("eval.every=48", "eval.episodes=3", "eval.stochastic=true", "algo.compile=false"),
    *(
        "algo.epochs=1",
        "learner.n=1",
        "net.policy_hidden=[8]",
        "net.critic_hidden=[8]",
        "logger.progress=quiet",
    ),
)
FUEL = "logger.info=[fuel:mean,fuel:sum,fuel]"
TIMES = ("sampler", "_s", "_share")


def numbers(directory):
    """The cells of a run that do not depend on time or on the samplers."""
    return {
        name: [
            {k: x for k, x in row.items() if not k.endswith(TIMES)}
            for row in read(directory / f"{name}.csv")
        ]
        for name in ("episodes", "iterations", "eval")
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with one sampler, in this process."""
    directory = tmp_path_factory.mktemp("serial")
    train(compose([*RUN, FUEL, "sampler=serial"]), directory)
    return directory


def test_an_episode_has_its_last_number_their_mean_and_their_sum(run):
    episodes = numbers(run)["episodes"]
    assert len(episodes) > 20
    for row in episodes:
        length = int(row["length"])
        cells = [row[name] for name in ("fuel_mean", "fuel_sum", "fuel")]
        if length == 5:
            assert (cells, row["is_success"]) == (["", "", ""], "0.0")
        else:
            expected = [(length + 1) / 4, length * (length + 1) / 4, length / 2]
            assert [float(cell) for cell in cells] == expected
            assert row["is_success"] == str(float(length < 4))  # x < 0.5
    last = numbers(run)["iterations"][-1]
    recent = [row for row in episodes if row["fuel"]]
    assert float(last["fuel_mean"]) == pytest.approx(np.mean([float(r["fuel"]) for r in recent]))
    parked = [float(row["is_success"]) for row in episodes]
    assert float(last["is_success_mean"]) == pytest.approx(np.mean(parked[-100:]))


def test_evaluations_have_means_over_their_episodes(run):
    row = numbers(run)["eval"][-1]
    assert row["is_success_mean"] == row["stochastic_is_success_mean"]  # equal seeds, equal draws
    assert float(row["is_success_mean"]) in (0, 1 / 3, 2 / 3, 1)
    result = walle.evaluate(run, episodes=60, trust=True)
    expected = [float(length < 4) for length in result.lengths]
    assert result.info["is_success"] == expected
    assert result.row()["is_success_mean"] == np.mean(expected)
    assert f"is_success_mean {np.mean(expected):.3g}" in str(result)


@pytest.mark.slow
@pytest.mark.parametrize("collect", ["fixed", "episodes"])
def test_the_columns_do_not_depend_on_samplers_or_interruptions(tmp_path, collect):
    settings = [*RUN, FUEL, f"sampler.collect={collect}", "env.episode_limit=9"]
    train(compose([*settings, "sampler=serial"]), tmp_path / "serial")
    config = partial(compose, [*settings, "sampler.n=2", "schedule_steps=144"])
    two = tmp_path / "two"
    train(replace(config(), total_steps=48), two)
    from walle.agent import checkpoint

    resumed = checkpoint.load(two / "checkpoints" / "last.pt")
    train(compose([*settings, "sampler=serial", "schedule_steps=144"]), two, resumed=resumed)
    assert numbers(two) == numbers(tmp_path / "serial")
    assert "fuel_sum" in numbers(two)["episodes"][0]


def test_learning_does_not_depend_on_the_columns(run, tmp_path):
    train(compose([*RUN, "sampler=serial"]), tmp_path)
    assert list(read(tmp_path / "episodes.csv")[0])[-2:] == ["end", "is_success"]
    for name, rows in numbers(tmp_path).items():
        kept = [{k: x for k, x in row.items() if k in rows[0]} for row in numbers(run)[name]]
        assert kept == rows


def test_a_run_without_info_has_no_column_and_no_array(tmp_path):
    config = compose(["env=pendulum"])
    env = make_problem(config)[1].env
    assert env.info == ()
    step = make_lanes(env, [0], 0)
    step.reset()
    assert step.step(np.zeros((1, 1))).info is None


def test_numbers_of_every_kind_are_read():
    info = {
        "a": True,
        "b": np.float32(0.5),
        "c": np.array([3]),
        "d": np.array(4),
        "e": None,
        "f": 7,
    }
    found = numbers_in(info, ("a", "b", "c", "d", "f", "e", "none"))
    assert found[:5] == [1, 0.5, 3, 4, 7]
    assert np.isnan(found[5:]).all()
    assert np.isnan(numbers_in(None, ("a",))).all()
    assert np.isnan(numbers_in({"success": np.array([True, False])}, ("success",))).all()


@pytest.mark.parametrize("value", ["3", [1, 2], np.zeros(0), 1j, {"x": 1}])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(
        RolloutError, match=r"logger.info: 'x' in the environment's info is .*, not a"
    ):
        numbers_in({"x": value}, ("x",))


def test_means_and_sums_go_on_across_rollouts_and_resumes():
    def rollout(info, ended):
        info, ended = np.array(info, np.float64)[:, None, None], np.array(ended, bool)[:, None]
        zeros = np.zeros(ended.shape)
        arrays = (zeros, zeros, zeros, zeros, ended, ended & False, zeros)
        return Rollout(*arrays, np.array([0]), np.array([0]), info=np.repeat(info, 3, axis=2))

    entries = ("x", "x:mean", "x:sum")
    tracker, other = (EpisodeTracker([0], 9, entries) for _ in range(2))
    assert tracker.add(rollout([1, 2], [0, 0]), 0, 0.0) == []
    other.load_state_dict(tracker.state_dict())
    nan = float("nan")
    found = other.add(rollout([6, 5, nan, 4], [1, 0, 0, 1]), 0, 0.0)
    assert found[0].info == (6.0, 3.0, 9.0)
    assert found[1].info[0] == 4.0
    assert np.isnan(found[1].info[1:]).all()  # a step without the number
    assert {k: x[0] for k, x in other.recent_info.items()} == {
        "x": 6.0,
        "x_mean": 3.0,
        "x_sum": 9.0,
    }


def test_an_evaluation_counts_each_lane_until_its_episode_ends():
    entries = ("fuel", "fuel:sum", "is_success")
    spec = EnvSpec(PARKING, info=entries, frame_skip=2, reset_options={"room": 0.3})
    lanes = make_lanes(spec, range(8), 0)
    found = run_episodes(lanes, None, lambda obs: np.zeros((8, 1)), info=entries)
    values = dict(found.info)
    for i, actions in enumerate(found.lengths):
        if not np.isnan(values["fuel"][i]):
            last = values["fuel"][i]
            sums = {1.0: 1.0, 1.5: 1 + 1.5, 2.0: 1 + 2.0}  # by the last step: of 2, 3 and 4
            assert (values["fuel_sum"][i], actions) == (sums[last], int(last + 0.5))


def test_the_trial_finds_success_and_what_is_missing():
    found = probe(EnvSpec(PARKING, info=("speed", "fuel:sum")), seed=0)
    assert found.env.info == ("speed", "fuel:sum", "is_success")
    assert found.unseen == ("speed",)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            EnvSpec(PARKING, info=("place",)),
            r"info: 'place' .* is .*\[1, 2\].*, not a number: leave",
        ),
        (
            EnvSpec("Hopper-v5", info=("x_velocity",)),
            r"info=\['x_velocity'\]: .* no info; .*gymnas",
        ),
        (EnvSpec("tests.toy_robot:ROBOT", info=("x",)), r"info=\['x'\]: .*Robots have no info"),
        (
            EnvSpec("tests.toy_robot:ROBOT", reset_options={"a": 1}),
            r"reset_options=\{'a': 1\}: .*kw",
        ),
        (EnvSpec("Hopper-v5", reset_options={"a": 1}), r"reset_options=\{'a': 1\}: .*backend=gymn"),
        (
            EnvSpec(PARKING, reset_options={"a": 1}),
            r"env.reset_options=\{'a': 1\}: KeyError: 'room'",
        ),
    ],
)
def test_what_cannot_be_a_column_or_an_option_is_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        probe(spec, seed=0)


def test_wrong_settings_are_refused_before_the_environment_is_made():
    for entry in ("", "a,b", 'a"b', "return", "lag", "section"):
        with pytest.raises(ConfigError, match=r"logger.info: .* is the name of another column"):
            compose([f"logger.info=['{entry}']"])
    with pytest.raises(ConfigError, match=r"logger.info: 'x:mean' .* the name of another column"):
        compose(["logger.info=[x:mean,x_mean]"])
    with pytest.raises(ConfigError, match=r"add it: \+env.reset_options.room="):
        compose(["env.reset_options.room=1"])


def test_names_with_colons_and_slashes_are_names():
    assert InfoColumn.of("custom/height") == ("custom/height", "last", "custom/height")
    assert InfoColumn.of("a:b") == ("a:b", "last", "a:b")
    assert InfoColumn.of("a:b:mean") == ("a:b", "mean", "a:b_mean")


def test_gymnasiums_own_numbers_are_columns_with_its_backend():
    env = probe(EnvSpec("Hopper-v5", backend="gymnasium", info=("x_velocity",)), seed=0).env
    lanes = make_lanes(env, [0, 1], 0)
    lanes.reset()
    assert np.isfinite(lanes.step(np.zeros((2, 3), np.float32)).info).all()


def test_sinks_report_and_index_have_the_columns(run):
    assert section("fuel_mean", ["fuel_mean"]) == "info"
    assert section("fuel_mean") == "loss"
    sweep = load(run)
    assert sweep.info == ["fuel_mean", "fuel_sum", "fuel", "is_success"]
    last = read(run / "iterations.csv")[-1]["is_success_mean"]
    assert sweep.summary()["is_success_mean"].tolist() == [float(last)]
    assert '"is_success_mean"' in panel.panel(sweep, "sampler.n", "return_mean")
    means = _info_means(run, sweep.info)
    assert means["is_success_mean"] == float(last)
    assert means["eval_fuel_sum_mean"] == float(read(run / "eval.csv")[-1]["fuel_sum_mean"])
    assert _info_means(run, []) == {}


@pytest.mark.parametrize("saving", ["pickle", "replay"])
def test_every_reset_has_the_options(saving):
    spec = EnvSpec(PARKING, reset_options={"room": 2.0}, info=("is_success",), saving=saving)
    lanes = make_lanes(spec, range(3), 0)
    lanes.reset()
    parked = []
    for t in range(30):
        if t == 15:
            state, lanes = lanes.state(), make_lanes(spec, range(3), 5)
            lanes.reset()
            lanes.restore(state)
        step = lanes.step(np.zeros((3, 1)))
        parked += step.info[step.terminated, 0].tolist()
    assert len(parked) > 9
    assert all(parked)
    assert not make_single(spec).reset()[1]
    env = make_single(spec)
    env.reset(options={"room": -1.0})  # options of a single reset take precedence
    assert env.unwrapped._room == -1.0


def test_a_policy_acts_with_the_options_of_its_run(tmp_path):
    config = compose([*RUN, "sampler=serial", "total_steps=48", "+env.reset_options.room=2.0"])
    train(config, tmp_path)
    assert {row["is_success"] for row in read(tmp_path / "episodes.csv")} == {"1.0"}
    policy = walle.load(tmp_path, trust=True)
    policy.env().reset()
    assert walle.evaluate(policy, episodes=4).info == {"is_success": [1.0] * 4}
