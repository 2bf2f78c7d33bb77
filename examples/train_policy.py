"""Trains a policy from Python: compose a configuration, train, look at the result.

    python examples/train_policy.py outputs/cartpole total_steps=20000

Everything after the directory is an override, as on the command line of `walle run`.
"""

from __future__ import annotations

import sys

import walle


def main(directory: str, *overrides: str) -> None:
    """Trains PPO on CartPole, or what the overrides ask for."""
    config = walle.compose(["env=cartpole", "total_steps=20000", *overrides])
    print(f"{config.algo.name} on {config.env.id} with {config.n} samplers")
    result = walle.train(config, directory)
    print(f"{result.env_steps:,} steps in {result.wall_s:.1f} s")


if __name__ == "__main__":  # sampler processes import this file, and must not train again
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/train_policy.py DIRECTORY [SETTING=VALUE ...]")
    main(*sys.argv[1:])
