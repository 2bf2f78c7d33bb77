"""`env.on_error=reset`: a fault in one lane cuts its episode and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from contextlib import suppress

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from tests import toy, toy_robot
from tests.conftest import read
from tests.sampling.test_collect import gaussian, make_sampler, make_slot, snapshot
from walle.agent import checkpoint
from walle.agent.agent import Agent
from walle.agent.evaluation import run_episodes
from walle.config import compose
from walle.config.loading import resumed_config, stored_config
from walle.envs import EnvSpec, make_lanes
from walle.errors import ConfigError, RolloutError, WorkerDeathError, WorkerError
from walle.nets.policies import GaussianPolicy
from walle.system.run_files import read_status
from walle.timing import SAMPLER_SECTIONS, Timer
from walle.training import train

COUNTER = "tests.toy:Counter-v0"
FAULTS = {
    "nan": {"nan_at": 5},
    "an exception": {"raise_at": 5},
    "a blind sensor": {"blind_at": 5},
    "another shape": {"grow_at": 5},
}
SMALL = (
    *("env=gym", "env.id=tests.toy:Fragile", "env.on_error=reset", "batch_size=64"),
    *("sampler.lanes=4", "total_steps=384", "eval.episodes=0", "checkpoint.every=null"),
    *("logger.progress=quiet", "algo.compile=false"),
)
ALGOS = {
    "ppo": ("algo=ppo", "algo.epochs=1"),
    "gru": ("algo=ppo", "algo.epochs=1", "net=gru", "net.hidden=8", "net.sequence=8"),
    "sac": (
        *("algo=sac", "algo.learning_starts=64", "algo.updates_per_step=0.1", "batch_size=4"),
        *("algo.minibatch_size=16", "net.policy_hidden=[8]", "net.critic_hidden=[8]"),
    ),
    "episodes": ("algo=ppo", "algo.epochs=1", "sampler.collect=episodes", "env.episode_limit=8"),
}


def rollouts(kwargs, rounds=1, numbers=(0, 1)):
    policy = gaussian()
    spec = EnvSpec(COUNTER, kwargs, on_error="reset")
    sampler = make_sampler(policy, list(numbers), spec)
    slots, counts = [make_slot(len(numbers)) for _ in range(rounds)], []
    for round_, slot in enumerate(slots):
        timer = Timer(SAMPLER_SECTIONS)
        filled = sampler.fill(slot.rollout, snapshot(policy), round_, timer)
        counts.append(filled.faults)
    return [slot.rollout for slot in slots], counts


@pytest.mark.parametrize("kind", FAULTS)
def test_the_episode_ends_before_the_bad_step_and_the_next_one_begins_there(kind):
    """Episodes last 3 steps; step 4, the second of the second episode, fails in both lanes."""
    (rollout,), counts = rollouts(FAULTS[kind])
    assert counts == [2]
    assert rollout.terminated[:, 0].tolist() == [False, False, True, False, False]
    assert rollout.truncated[:, 0].tolist() == [False, False, False, True, False]
    assert rollout.obs[:, 0, 0].tolist() == [0, 1, 2, 0, 0, 1]
    second, third = rollout.obs[3, 0, 1], rollout.obs[4, 0, 1]
    assert second != third
    assert rollout.final_obs[3, 0].tolist() == [1, second]
    assert rollout.obs[5, 0].tolist() == [1, third]
    applied = np.clip(rollout.action[:, :, 0], -1, 1) * 3 + 1  # the bounds are -2 and 4
    np.testing.assert_allclose(rollout.reward, applied, rtol=1e-6)


def test_actions_after_a_fault_are_the_policys_own():
    """The log-probability is that of the new action at the new episode's first observation."""
    (rollout,), _ = rollouts({"raise_at": 5})
    policy = gaussian()
    params = policy.layout.unflatten(torch.from_numpy(snapshot(policy).vector[:-4]))
    obs = ((torch.from_numpy(rollout.obs[:-1]) - 0.1) * 2.0).clamp(-10, 10)
    log_prob = policy.log_prob(policy.dist(params, obs), torch.from_numpy(rollout.action))
    np.testing.assert_allclose(rollout.log_prob, log_prob, atol=1e-5)


def test_a_fault_in_the_first_step_of_a_rollout():
    (before, after), counts = rollouts({"raise_at": 6}, rounds=2)
    assert counts == [0, 2]
    assert not before.ended[-1].any()  # step 5, the last of the second episode, is in `after`
    assert before.obs[-1, 0, 0] == 2
    assert after.begins.tolist() == [True, True]
    assert after.obs[:2, 0, 0].tolist() == [0, 1]


def test_a_lane_does_not_depend_on_the_faults_of_others():
    (together,), _ = rollouts({"raise_at": 5}, numbers=(0, 1, 2))
    (alone,), _ = rollouts({"raise_at": 5}, numbers=(1,))
    for name in ("obs", "action", "reward", "log_prob", "truncated"):
        whole, part = getattr(together, name), getattr(alone, name)
        assert whole[:, 1:2].tobytes() == part.tobytes(), name


def test_a_policy_that_has_diverged_is_no_fault_of_the_environment():
    sampler, broken = (
        make_sampler(gaussian(), [0], EnvSpec(COUNTER, on_error="reset")),
        snapshot(gaussian()),
    )
    broken.vector[:] = np.nan
    with pytest.raises(RolloutError, match="the policy has diverged"):
        sampler.fill(make_slot(1).rollout, broken, 0, Timer(SAMPLER_SECTIONS))


def die(*_):
    """What a signal handler of walle's may do in the middle of a step."""
    raise WorkerDeathError("learner-1 died")


def test_a_death_within_a_step_is_no_fault_of_the_environment(monkeypatch):
    lanes = make_lanes(EnvSpec(COUNTER, on_error="reset"), [0, 1], 0)
    monkeypatch.setattr(toy.Counter, "step", die)
    lanes.reset()
    with pytest.raises(WorkerDeathError):
        lanes.step(np.zeros((2, 1)))


def test_an_environment_that_cannot_be_closed_replaces_no_error(monkeypatch, capsys):
    lanes, closed = make_lanes(EnvSpec(COUNTER), [0, 1], 0), []

    def close(self):
        closed.append(self)
        raise OSError("the simulator has gone")

    monkeypatch.setattr(toy.Counter, "close", close)
    lanes.close()
    assert len(closed) == 2
    assert capsys.readouterr().err.count("close(): OSError: the simulator has gone") == 2


def test_an_environment_that_always_fails_ends_the_run():
    spec = EnvSpec("tests.toy:Fragile", {"how": "raise", "chance": 1.0}, on_error="reset")
    sampler = make_sampler(gaussian(), [0, 1], spec)
    with pytest.raises(RolloutError, match="fails in the first step of every episode"):
        sampler.fill(make_slot(2).rollout, snapshot(gaussian()), 0, Timer(SAMPLER_SECTIONS))


@pytest.mark.parametrize("kind", [*FAULTS, "reset"])
def test_an_evaluation_ends_its_episode_before_the_bad_step(kind):
    spec = EnvSpec(COUNTER, {"limit": 9, **FAULTS.get(kind, {})}, on_error="reset")
    expected = 9 if kind == "reset" else 4
    lanes = make_lanes(spec, [0, 1], 0, "evaluate")
    if kind == "reset":  # the first reset of lane 1 fails
        envs, fail = lanes._inner._envs, [True]
        begin = envs[1].unwrapped.reset

        def reset(**kwargs):
            if fail and fail.pop():
                raise RuntimeError("no free place was found")
            return begin(**kwargs)

        envs[1].unwrapped.reset = reset
    found = run_episodes(lanes, [7, 8], lambda obs: np.zeros((2, 1), np.float32))
    assert found.lengths == [expected, expected]
    assert found.returns == [float(expected)] * 2  # an action of 0 earns the middle of the bounds


def result_of(directory):
    """All columns but times and names of samplers, and what the lanes and the policy are."""
    tables = {}
    for name in ("iterations", "episodes"):
        tables[name] = [
            {k: v for k, v in row.items() if not k.endswith(("_s", "_share")) and k != "sampler"}
            for row in read(directory / f"{name}.csv")
        ]
    vector = checkpoint.load(directory / "checkpoints" / "last.pt")["snapshot"]["vector"]
    return tables, vector.numpy().tobytes()


def faults_of(directory):
    return sum(int(row["faults"]) for row in read(directory / "iterations.csv"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "how"),
    [("ppo", "blind"), ("ppo", "reset"), ("gru", "huge"), ("sac", "raise"), ("episodes", "reward")],
)
def test_every_number_of_samplers_gives_the_same_bits(algo, how, tmp_path):
    small = (*SMALL, *ALGOS[algo], f"+env.kwargs.how={how}", "+env.kwargs.chance=0.015")
    results = []
    for n in (1, 2, 3):
        train(compose([*small, f"sampler.n={n}"]), tmp_path / str(n))
        results.append(result_of(tmp_path / str(n)))
        assert 1 <= faults_of(tmp_path / str(n)) <= 10
    assert results[0] == results[1] == results[2]
    assert read_status(tmp_path / "1")["faults"] == faults_of(tmp_path / "1")


@pytest.mark.slow
def test_a_fault_that_depends_on_the_life_of_an_environment_survives_kills(tmp_path, monkeypatch):
    """Every 60th step of a lane's life; a sampler is killed after the first faults."""
    small = (*SMALL, *ALGOS["ppo"], "+env.kwargs.every=60", "+env.kwargs.how=raise")
    train(compose([*small, "sampler.n=1"]), tmp_path / "whole")
    assert faults_of(tmp_path / "whole") == 4
    iterate = Agent._iterate

    def killing(agent, *arguments):
        iterate(agent, *arguments)
        if agent.iteration in (3, 4):  # before the faults, and after them
            with suppress(ProcessLookupError):
                os.kill(agent.sampling._workers[0].pid, signal.SIGKILL)

    monkeypatch.setattr(Agent, "_iterate", killing)
    train(compose([*small, "sampler.n=2"]), tmp_path / "killed")
    # The second signal may reach the process that the first one has already killed.
    assert len(read_status(tmp_path / "killed")["replacements"]) in (1, 2)
    assert result_of(tmp_path / "killed") == result_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_stopped_at_a_fault_is_resumed(tmp_path):
    """Its bits are those of a run that had `env.on_error=reset` from the start."""
    small = [w for w in SMALL if w != "env.on_error=reset"] + [*ALGOS["ppo"], "sampler.n=2"]
    small += ["+env.kwargs.every=60", "+env.kwargs.how=raise"]
    with pytest.raises(WorkerError, match="the simulation is unstable"):
        train(compose(small), tmp_path / "stopped")
    state = checkpoint.earlier_state(tmp_path / "stopped", print)
    assert state["iteration"] == 3  # the fourth round has the 60th step
    words = ["env.on_error=reset"]
    stored = stored_config(tmp_path / "stopped")
    composed = OmegaConf.from_dotlist([*words, f"resume={tmp_path / 'stopped'}"])
    config = resumed_config(stored, composed, words)
    result = train(config, tmp_path / "stopped", resumed=state)
    assert result.faults == faults_of(tmp_path / "stopped") == 4
    assert str(result).endswith(", 4 faults of the environment")
    train(compose([*small, "env.on_error=reset"]), tmp_path / "whole")
    assert result_of(tmp_path / "stopped") == result_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_whose_lanes_were_not_saved_starts_new_episodes(tmp_path, capsys):
    """The trial of the first run meets the fault, and finds no way to save states."""
    small = [*SMALL, *ALGOS["ppo"], "sampler.n=2", "+env.kwargs.every=40", "+env.kwargs.how=raise"]
    with pytest.raises(WorkerError, match="the simulation is unstable"):
        train(compose([*small, "env.on_error=stop"]), tmp_path)
    config = compose([*small, "logger.progress=lines"])
    train(config, tmp_path, resumed=checkpoint.earlier_state(tmp_path, print))
    assert "sampler-0 starts new episodes" in capsys.readouterr().out
    assert faults_of(tmp_path) == 4


def test_a_run_stops_after_too_many_faults_and_keeps_its_checkpoint(tmp_path):
    small = (*SMALL, *ALGOS["ppo"], "sampler=serial", "+env.kwargs.every=20")
    with pytest.raises(RolloutError, match=r"12 faults of the environment in \d+ episodes"):
        train(compose(small), tmp_path)
    state = checkpoint.earlier_state(tmp_path, print)
    assert state["recorder"]["tracker"]["faults"] == 12
    assert json.loads((tmp_path / "status.json").read_text())["faults"] == 12


def blind(now):
    """No observation of a robot that has driven far; MuJoCo's own state stays finite."""
    return np.where(now.qpos[:, :1] > 0.02, np.nan, toy_robot.observe(now))


def strict_reward(before, action, now):
    assert (now.qpos[:, 0] < 0.02).all(), "off the road"
    return toy_robot.travelled(before, action, now)


def strict_observe(now):
    if (now.qpos[:, 0] > 0.02).any():
        raise ValueError("the sensor is out of reach")
    return toy_robot.observe(now)


def unlucky(random, qpos, qvel):
    if random.random() < 0.2:
        raise RuntimeError("no free place was found")
    return qpos + random.uniform(-0.1, 0.1, qpos.shape), qvel


FRAIL = dataclasses.replace(toy_robot.ROBOT, observe=blind)
FRAIL_LOOPED = dataclasses.replace(toy_robot.LOOPED, observe=blind)
# Their functions see all lanes at once, and an exception names none of them.
STRICT = dataclasses.replace(toy_robot.ROBOT, reward=strict_reward)
STRICT_LOOPED = dataclasses.replace(toy_robot.LOOPED, observe=strict_observe)
UNLUCKY = dataclasses.replace(
    toy_robot.ROBOT, begin=unlucky, reset_noise_scale=0.0, episode_limit=10
)


@pytest.mark.parametrize("robot", ["FRAIL", "FRAIL_LOOPED", "STRICT", "STRICT_LOOPED", "UNLUCKY"])
def test_lanes_of_mujoco(robot):
    spec = EnvSpec(f"tests.test_faults:{robot}", on_error="reset", time_feature=True, frame_skip=2)
    width = make_lanes(spec, [0], 0).observation_space.shape[0]
    policy = GaussianPolicy(width, 1, (16,), torch.tanh, 0.0)

    def collected(numbers):
        sampler = make_sampler(policy, numbers, spec, width)
        found = []
        for round_ in range(4):
            slot = make_slot(len(numbers), obs_dim=width, steps=16)
            filled = sampler.fill(
                slot.rollout, snapshot(policy, width), round_, Timer(SAMPLER_SECTIONS)
            )
            found.append((slot.rollout, filled.faults))
        return found

    together, apart = collected([0, 1, 2]), [collected([0]), collected([1, 2])]
    assert sum(faults for _, faults in together) > 0
    for (whole, faults), (a, fa), (b, fb) in zip(together, *apart, strict=True):
        assert faults == fa + fb
        for name in ("obs", "action", "reward", "truncated", "log_prob"):
            parts = np.concatenate([getattr(a, name), getattr(b, name)], 1)
            assert getattr(whole, name).tobytes() == parts.tobytes(), name
        clock = whole.obs[1:, :, -1]
        assert (clock[whole.ended] == 0).all()
        assert (clock[~whole.ended] > 0).all()


def test_envpool_is_refused():
    words = ["env=gym", "env.id=Pendulum-v1", "env.backend=envpool", "env.on_error=reset"]
    with pytest.raises(ConfigError, match=r"on_error=reset with env\.backend=envpool"):
        compose(["algo=ppo", *words])
