"""Stable-Baselines3's or SBX's PPO as their users run it: VecNormalize, collecting, learning.

    python ppo_training.py '{"library": "sbx", "task": "HalfCheetah-v5", "steps": 1000000, ...}'

The settings are those of benchmarks/lineup.py, and library (sb3 or sbx), task, steps, seed, threads
(torch's), vector (dummy: environments in this process; subproc: a process each). After every round,
learning included, it prints a line: steps, when it began and ended on the monotonic clock, steps in
all, mean return of the last 100 episodes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize


class Rounds(BaseCallback):
    """Reports a round when the next one begins, or training ends."""

    def __init__(self) -> None:
        """Begins before the first round."""
        super().__init__()
        self._steps, self._start_s = 0, 0.0

    def _on_rollout_start(self) -> None:
        self._report()
        self._steps, self._start_s = self.model.num_timesteps, time.monotonic()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._report()

    def _report(self) -> None:
        steps = self.model.num_timesteps
        if steps == self._steps:
            return
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        mean = float(np.mean(returns)) if returns else None
        line = [steps - self._steps, self._start_s, time.monotonic(), steps, mean]
        print(json.dumps(line), flush=True)


def main() -> int:
    """Trains with the settings of the command line."""
    case: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_num_threads(case["threads"])
    vector = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[case["vector"]]
    envs = vector([partial(monitored, case["task"])] * case["envs"])
    normalized = VecNormalize(envs, gamma=case["ppo"]["gamma"])
    ppo = dict(case["ppo"])
    if case["linear_schedule"]:
        ppo["learning_rate"] = partial(scaled, ppo["learning_rate"])
    make = {"sb3": sb3, "sbx": sbx}[case["library"]]
    model = make(case["net"])(env=normalized, seed=case["seed"], device="cpu", **ppo)
    model.learn(case["steps"], callback=Rounds())
    return 0


def monitored(task: str) -> Monitor:
    """Makes an environment like Stable-Baselines3's make_vec_env."""
    return Monitor(gym.make(task))


def scaled(rate: float, remaining: float) -> float:
    """A step size that falls to 0; `remaining` goes from 1 to 0."""
    return rate * remaining


def policy(net: dict[str, Any], activations: Any) -> dict[str, Any]:
    """The libraries' arguments for the networks."""
    width = [net["width"]] * 2
    names = {"tanh": ("Tanh", "tanh"), "relu": ("ReLU", "relu")}[net["activation"]]
    found = next(name for name in names if hasattr(activations, name))
    rest = {key: net[key] for key in ("log_std_init", "ortho_init") if key in net}
    arch = {"pi": width, "vf": width}
    return {"net_arch": arch, "activation_fn": getattr(activations, found), **rest}


def sb3(net: dict[str, Any]) -> Callable[..., Any]:
    """Stable-Baselines3's PPO with these networks."""
    from stable_baselines3 import PPO

    return partial(PPO, "MlpPolicy", policy_kwargs=policy(net, torch.nn))


def sbx(net: dict[str, Any]) -> Callable[..., Any]:
    """SBX's PPO, in JAX, with these networks."""
    import flax.linen
    from sbx import PPO

    return partial(PPO, "MlpPolicy", policy_kwargs=policy(net, flax.linen))


if __name__ == "__main__":
    sys.exit(main())
