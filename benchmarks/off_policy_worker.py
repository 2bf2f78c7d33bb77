"""One contestant of benchmarks/off_policy.py: fills a replay buffer, then takes updates on demand.

    python off_policy_worker.py
    python off_policy_worker.py '{"algorithm": "sac", "steps": 100000, ...}'

It reads lines like learn_worker.py. With a case as an argument it trains Stable-Baselines3 from
start to end instead.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.learn_worker import (
    ACTION_SPACE,
    ACTIONS,
    GAMMA,
    OBS,
    OBS_SPACE,
    Idle,
    Update,
    answer,
    nothing,
    say,
)

STORED = 20_000  # transitions in the buffer
TAU = 0.005
RATES = {"sac": 3e-4, "td3": 1e-3, "xqc": 1e-3}
CLASSES = {"sac": "SAC", "td3": "TD3", "xqc": "CrossQ"}  # no peer has XQC


def main() -> int:
    """Answers lines of input, or trains."""
    if len(sys.argv) > 1:
        return sb3_run(json.loads(sys.argv[1]))
    answer(lambda case: SYSTEMS[case["system"]](case))
    return 0


def transitions() -> tuple[Any, Any, Any, Any]:
    """Random observations, successors, actions and rewards: [STORED, ...]."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((2, STORED, OBS), dtype=np.float32)
    action = rng.uniform(-1, 1, (STORED, ACTIONS)).astype(np.float32)
    return obs[0], obs[1], action, rng.standard_normal(STORED, dtype=np.float32)


def walle(case: dict[str, Any]) -> tuple[Update, Update]:
    """Walle's updates: eager, compiled, or with several learners."""
    import torch

    torch.set_num_threads(case["threads"])
    from walle import algos
    from walle.algos.base import Problem
    from walle.config import compose
    from walle.nets.factory import NetSettings
    from walle.types import Rollout

    name = case["algorithm"]
    settings = compose(
        [
            f"algo={name}",
            f"algo.minibatch_size={case['minibatch']}",
            f"algo.compile={'false' if case['system'] == 'walle-eager' else 'true'}",
            f"learner.shards={case['shards']}",  # refused if it does not divide a minibatch
        ]
    ).algo
    width = (case["width"],) * 2
    net = NetSettings(width, width, "relu", 0.0)
    sizes = (STORED, STORED, STORED, 0, "cpu")
    problem = Problem(OBS_SPACE, ACTION_SPACE, 1, *sizes, shards=case["shards"])
    algorithm: Any = algos.load(name)(settings, net, problem)
    close: Update = nothing
    if case["learners"] > 1:
        from walle.learning.sharing.learners import Learners, make_learner_tasks

        make, threads = partial(algos.make, settings, net), case["threads"]
        learners = Learners(make_learner_tasks(case["learners"], make, problem, threads))
        learners.join(algorithm, "cpu")
        close = learners.close
    algorithm.warm_up()
    obs, successor, action, reward = transitions()
    false = np.zeros((1, STORED), bool)
    algorithm.replay.add(
        Rollout(
            obs=np.stack((obs, successor)),
            final_obs=np.zeros_like(obs)[None],
            action=action[None],
            reward=reward[None],
            terminated=false,
            truncated=false,
            log_prob=np.zeros_like(reward)[None],
            lane=np.arange(STORED),
            policy_version=np.zeros(STORED, np.int64),
        )
    )
    blocks = case["updates"] // getattr(settings, "policy_delay", 1)
    return lambda: algorithm.improve(blocks), close


def baseline(case: dict[str, Any], library: Any) -> tuple[Update, Update]:
    """The training call of Stable-Baselines3 and SBX, as many updates a call as walle's rounds."""
    from stable_baselines3.common.logger import configure

    name = case["algorithm"]
    tau = {} if name == "xqc" else {"tau": TAU}  # CrossQ has no slow copies
    model = getattr(library, CLASSES[name])(
        "MlpPolicy",
        Idle(),
        policy_kwargs={"net_arch": [case["width"]] * 2},
        learning_rate=RATES[name],
        batch_size=case["minibatch"],
        buffer_size=STORED,
        gamma=GAMMA,
        device="cpu",
        **tau,
    )
    model.set_logger(configure(format_strings=[]))
    for obs, successor, action, reward in zip(*transitions(), strict=True):
        model.replay_buffer.add(obs, successor, action, reward, np.zeros(1), [{}])

    def updates() -> None:
        for _ in range(case["updates"] // case["at_once"]):
            model.train(gradient_steps=case["at_once"], batch_size=case["minibatch"])

    return updates, nothing


def sb3(case: dict[str, Any]) -> tuple[Update, Update]:
    """Stable-Baselines3's updates."""
    import stable_baselines3
    import torch

    torch.set_num_threads(case["threads"])
    return baseline(case, stable_baselines3)


def sbx(case: dict[str, Any]) -> tuple[Update, Update]:
    """SBX's updates, in JAX."""
    import sbx

    return baseline(case, sbx)


def mkl(case: dict[str, Any]) -> tuple[Update, Update]:
    """The matrix products between hidden layers, and nothing else."""
    import torch

    torch.set_num_threads(case["threads"])
    rows, width = case["minibatch"], case["width"]
    x, w, out = torch.randn(rows, width), torch.randn(width, width), torch.empty(rows, width)
    # Critics: forward through policy, targets and critics; two products backward for each critic.
    # Policy: forward and two products backward; forward and back through the critics (TD3: one).
    # XQC's critics and targets see both halves of a batch.
    critics, policy = 1 + 2 + 2 + 4, 1 + 2
    shared = {"sac": policy + 4, "td3": (policy + 2) / 2, "xqc": 2 + 2 + (policy + 4) / 3}
    products = critics + shared[case["algorithm"]]

    def updates() -> None:
        for _ in range(int(case["updates"] * products)):
            torch.mm(x, w.t(), out=out)

    return updates, nothing


def sb3_run(case: dict[str, Any]) -> int:
    """Trains with Stable-Baselines3's defaults, except for walle's number of random steps."""
    import stable_baselines3
    import torch

    torch.set_num_threads(case["threads"])
    algorithm = getattr(stable_baselines3, case["algorithm"].upper())
    env = gym.make(case["env"])
    begins = {"learning_starts": case["learning_starts"]}
    model = algorithm("MlpPolicy", env, device="cpu", **begins)
    model.learn(case["steps"])
    returns = [episode["r"] for episode in model.ep_info_buffer]
    say(return_mean=float(np.mean(returns)) if returns else None, pid=os.getpid())
    return 0


SYSTEMS: dict[str, Callable[[dict[str, Any]], tuple[Update, Update]]] = {
    "mkl": mkl,
    "walle-eager": walle,
    "walle-compiled": walle,
    "sb3": sb3,
    "sbx": sbx,
}

if __name__ == "__main__":
    sys.exit(main())
