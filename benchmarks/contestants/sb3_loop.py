"""Stable-Baselines3's PPO collecting rollouts: its own loop, policy and buffer, no learning.

python sb3_loop.py HalfCheetah-v5 --envs 8 --vector subproc
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from common import LOG_STD, make_env, report
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

STEPS = 32
KINDS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}


def main() -> None:
    """Reports rollouts until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--vector", choices=sorted(KINDS), required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    report(rollouts(KINDS[args.vector]([partial(monitored, args.task)] * args.envs)))


def monitored(task: str) -> Monitor:
    """Makes an environment like Stable-Baselines3's make_vec_env."""
    return Monitor(make_env(task))


def rollouts(envs: VecEnv) -> Iterator[int]:
    """Collects for ever, with the same spread of actions as the other contestants."""
    half = float(np.mean(envs.action_space.high - envs.action_space.low)) / 2
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=STEPS,
        batch_size=STEPS,
        seed=0,
        device="cpu",
        policy_kwargs={"log_std_init": LOG_STD + math.log(half)},
    )
    _, callback = model._setup_learn(1, None)
    while True:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, STEPS)
        yield STEPS * envs.num_envs


if __name__ == "__main__":
    main()
