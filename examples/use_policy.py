"""Loads a policy, acts with it, and evaluates it.

    python examples/use_policy.py outputs/cartpole

The argument is a run's directory or a checkpoint file.
"""

from __future__ import annotations

import sys

import walle


def main(path: str) -> None:
    """Runs one episode step by step, then evaluates the policy."""
    policy = walle.load(path)
    print(policy)

    env = policy.env()
    obs, _ = env.reset(seed=0)
    state = policy.initial_state()  # empty, unless the policy has a memory
    total = 0.0
    for _ in range(10_000):  # an episode may have no end
        action, state = policy.act(obs, state)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            break
    env.close()
    print(f"one episode: return {total:.1f}")

    # The same policy on new episodes, many at once.
    print(walle.evaluate(policy, episodes=20))
    print(walle.evaluate(policy, episodes=20, deterministic=False), "(with action noise)")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/use_policy.py RUN_OR_CHECKPOINT")
    main(sys.argv[1])
