"""Tiny runs of every algorithm, trained once for all tests of policies."""

import pytest

import walle
from walle.algos import REGISTRY

TINY = (
    "sampler=serial",
    "logger.progress=quiet",
    "batch_size=64",
    "sampler.lanes=4",
    "total_steps=256",
    "eval.every=128",
    "eval.episodes=2",
)
OFF_POLICY = ("ddpg", "dqn", "sac", "td3", "xqc")
SMALL_NET = ("net.policy_hidden=[16,16]", "net.critic_hidden=[16,16]")


def settings(algorithm):
    """Few epochs and small minibatches for on-policy algorithms, early learning for the others."""
    if algorithm in OFF_POLICY:
        return [f"algo={algorithm}", "algo.learning_starts=64", "algo.updates_per_step=0.1"]
    epochs = ["algo.epochs=2"] if algorithm in ("ppo", "ppo_kl", "pqn") else []
    epochs += ["+experiment=small_minibatches"] if algorithm == "ppo" else []
    modes = ["sampler=process", "sampler.n=1", "sampler.max_lag=null"] if algorithm == "a3c" else []
    return [f"algo={algorithm}", *epochs, *modes]


# By name: what is trained.
RUNS = {
    name: [*settings(name), "env=cartpole" if name in ("dqn", "pqn") else "env=pendulum"]
    for name in REGISTRY
}
RUNS |= {
    "dqn": [*settings("dqn"), "env=cartpole"],
    "discrete": [*settings("ppo"), "env=cartpole"],
    "clip": [*settings("ppo"), "env=pendulum", "env.action=clip", "net.log_std=1"],
    "raw": [*settings("ppo"), "env=pendulum", "env.action=raw"],
    "state_scale": [*settings("a2c"), "env=pendulum", "net.scale=state"],
    "memory": [
        *settings("ppo"),
        "net=gru",
        "net.hidden=8",
        "net.sequence=8",
        "env=gym",
        "env.id=tests.toy:Recall-v0",
    ],
    "own_net": [
        *settings("sac"),
        "env=pendulum",
        "net=own",
        "net.name=tests.algos.test_own_nets:Module",
    ],
    "mujoco": [
        *settings("ppo"),
        "env=hopper",
        "env.frame_skip=2",
        "env.time_feature=true",
        "env.episode_limit=50",
    ],
    "robot": [
        *settings("ppo"),
        "env=gym",
        "env.id=examples.scooter:SCOOTER",
        "env.frame_skip=2",
        "env.time_feature=true",
        "env.episode_limit=40",
    ],
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A function that gives the directory of the run with that name in `RUNS`."""
    found = {}

    def _trained(name):
        if name not in found:
            found[name] = tmp_path_factory.mktemp(name)
            overrides = [*TINY, *SMALL_NET, *RUNS[name]]
            walle.train(walle.compose(overrides), found[name])
        return found[name]

    return _trained
