"""EnvPool, Gymnasium's vector environments or Stable-Baselines3 collecting, without learning.

    python collect_loop.py envpool HalfCheetah-v5 --envs 64 --threads 2 [--asynchronous]
    python collect_loop.py gymnasium HalfCheetah-v5 --envs 8 --vector async
    python collect_loop.py sb3 HalfCheetah-v5 --envs 8 --vector subproc

The first two act with the torch policy. EnvPool, synchronous: all environments step, then the
policy acts for all; asynchronous: it acts for the half that finished first while EnvPool's threads
step the other half. Stable-Baselines3 has its own loop, policy and buffer.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from common import LOG_STD, Policy, make_env, report

BLOCK = 20  # steps of all environments between two lines
STEPS = 32  # of a rollout of Stable-Baselines3


def main() -> None:
    """Reports blocks of steps until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=sorted(SYSTEMS))
    parser.add_argument("task")
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of EnvPool")
    parser.add_argument("--asynchronous", action="store_true", help="of EnvPool")
    parser.add_argument("--vector", choices=("sync", "async", "dummy", "subproc"))
    args = parser.parse_args()
    report(SYSTEMS[args.system](args))


def envpool(args: argparse.Namespace) -> Iterator[int]:
    """Steps that EnvPool took, without the step that it takes for each reset."""
    import envpool

    pool: Any = envpool.make(
        args.task,
        env_type="gymnasium",
        num_envs=args.envs,
        batch_size=args.envs // 2 if args.asynchronous else args.envs,
        num_threads=args.threads,
        seed=0,
    )
    space = pool.action_space
    policy = Policy(pool.observation_space.shape[0], space.low, space.high)
    obs = pool.async_reset() if args.asynchronous else pool.reset()[0]
    while True:
        steps = 0
        for _ in range(2 * BLOCK if args.asynchronous else BLOCK):
            if args.asynchronous:
                obs, _, _, _, info = pool.recv()
                pool.send(policy(obs).astype(np.float64), info["env_id"])
            else:
                obs, _, _, _, info = pool.step(policy(obs).astype(np.float64))
            steps += int(np.count_nonzero(info["elapsed_step"]))
        yield steps


def gymnasium(args: argparse.Namespace) -> Iterator[int]:
    """Steps of Gymnasium's vector; the one that an environment takes for its reset counts too."""
    import gymnasium as gym

    kinds = {"sync": gym.vector.SyncVectorEnv, "async": gym.vector.AsyncVectorEnv}
    envs = kinds[args.vector]([partial(make_env, args.task)] * args.envs)
    space: Any = envs.single_action_space
    policy = Policy(envs.single_observation_space.shape[0], space.low, space.high)
    obs, _ = envs.reset(seed=0)
    while True:
        for _ in range(BLOCK):
            obs = envs.step(policy(obs))[0]
        yield BLOCK * envs.num_envs


def sb3(args: argparse.Namespace) -> Iterator[int]:
    """Steps of rollouts of PPO, with the same spread of actions as the other contestants."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(1)
    kind = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[args.vector]
    envs = kind([lambda: Monitor(make_env(args.task))] * args.envs)  # as its make_vec_env
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


SYSTEMS = {"envpool": envpool, "gymnasium": gymnasium, "sb3": sb3}

if __name__ == "__main__":
    main()
