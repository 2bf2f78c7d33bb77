"""Gymnasium's vector environments in a closed loop with the torch policy.

python gym_vector.py HalfCheetah-v5 --envs 8 --vector async
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import gymnasium as gym
from common import Policy, make_env, report

BLOCK = 20
KINDS = {"sync": gym.vector.SyncVectorEnv, "async": gym.vector.AsyncVectorEnv}


def main() -> None:
    """Reports blocks of steps until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--vector", choices=sorted(KINDS), required=True)
    args = parser.parse_args()
    report(loop(KINDS[args.vector]([partial(make_env, args.task)] * args.envs)))


def loop(envs: gym.vector.VectorEnv) -> Iterator[int]:
    """Steps for ever; the step that an environment takes for its reset counts too."""
    space = envs.single_action_space
    policy = Policy(envs.single_observation_space.shape[0], space.low, space.high)
    obs, _ = envs.reset(seed=0)
    while True:
        for _ in range(BLOCK):
            obs = envs.step(policy(obs))[0]
        yield BLOCK * envs.num_envs


if __name__ == "__main__":
    main()
