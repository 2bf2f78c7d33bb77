"""EnvPool in a closed loop with the torch policy.

    python envpool_loop.py HalfCheetah-v5 --envs 64 --threads 2 [--asynchronous]

Synchronous: all environments step, then the policy acts for all. Asynchronous: the policy acts for
the half that finished first while EnvPool's threads step the other half.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import envpool
import numpy as np
from common import Policy, report

BLOCK = 20


def main() -> None:
    """Reports blocks of steps until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--asynchronous", action="store_true")
    args = parser.parse_args()
    batch = args.envs // 2 if args.asynchronous else args.envs
    pool = envpool.make(
        args.task,
        env_type="gymnasium",
        num_envs=args.envs,
        batch_size=batch,
        num_threads=args.threads,
        seed=0,
    )
    space = pool.action_space
    policy = Policy(pool.observation_space.shape[0], space.low, space.high)
    report(asynchronous(pool, policy) if args.asynchronous else synchronous(pool, policy))


def synchronous(pool: Any, policy: Policy) -> Iterator[int]:
    """Steps all environments, then runs the policy for all."""
    obs, _ = pool.reset()
    while True:
        steps = 0
        for _ in range(BLOCK):
            obs, _, _, _, info = pool.step(policy(obs).astype(np.float64))
            steps += taken(info)
        yield steps


def asynchronous(pool: Any, policy: Policy) -> Iterator[int]:
    """Runs the policy for the half of the environments that is ready."""
    pool.async_reset()
    while True:
        steps = 0
        for _ in range(2 * BLOCK):
            obs, _, _, _, info = pool.recv()
            pool.send(policy(obs).astype(np.float64), info["env_id"])
            steps += taken(info)
        yield steps


def taken(info: dict[str, Any]) -> int:
    """The number of real steps, without the step that EnvPool takes for each reset."""
    return int(np.count_nonzero(info["elapsed_step"]))


if __name__ == "__main__":
    main()
