"""One contestant of benchmarks/learn.py: makes a round of random experience, then learns on demand.

    python learn_worker.py

Reads lines. A case in JSON, {"system": "sb3", "minibatch": 64, "width": 64, ...}, is set up, warmed
up and answered with a line of JSON; any other line with one update of that case, and the seconds it
took. Every contestant has the same networks and the same rows, and walle with "same" the
hyperparameters of the others too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

import gymnasium as gym
import numpy as np

OBS, ACTIONS = 17, 6
GAMMA, GAE_LAMBDA, CLIP, RATE, VALUE_WEIGHT, MAX_NORM = 0.99, 0.95, 0.2, 3e-4, 0.25, 0.5
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
ACTION_SPACE = gym.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
LIKE_THE_PEERS = (
    f"algo.gae_lambda={GAE_LAMBDA}",
    "algo.recompute_advantages=false",
    "algo.normalize_observations=false",
    "algo.normalize_rewards=false",
)
Update = Callable[[], None]


def main() -> int:
    """Answers until the input ends."""
    answer(lambda case: SYSTEMS[case["system"]](case))
    return 0


def answer(setup: Callable[[dict[str, Any]], tuple[Update, Update]]) -> None:
    """Sets up a case, takes an update for each line of input, then closes the case."""
    update: Update = nothing
    close: Update = nothing
    for line in sys.stdin:
        begin, cpu = time.perf_counter(), time.process_time()
        if line.startswith("{"):
            close()
            update, close = setup(json.loads(line))
            update()  # compiles, if the system compiles on first use
            say(setup_s=time.perf_counter() - begin, versions=versions())
        else:
            update()
            say(update_s=time.perf_counter() - begin, cpu_s=time.process_time() - cpu)
    close()


def say(**fields: Any) -> None:
    """Prints a line and flushes it."""
    print(json.dumps(fields), flush=True)


def versions() -> dict[str, str]:
    """The versions of the installed packages."""
    wanted = {"torch", "stable-baselines3", "sbx-rl", "jax", "numpy"}
    found = {str(d.metadata["Name"]).lower().replace("_", "-"): d for d in metadata.distributions()}
    return {name: found[name].version for name in sorted(wanted & set(found))}


def nothing() -> None:
    """Does nothing."""


def walle(case: dict[str, Any]) -> tuple[Update, Update]:
    """Walle's PPO: eager, compiled, or with several learners."""
    import torch

    torch.set_num_threads(1)
    from walle.algos.base import Problem
    from walle.algos.on_policy.ppo import PPO
    from walle.config import compose
    from walle.nets.factory import NetSettings
    from walle.types import Rollout

    steps, lanes = shape(case)
    settings = compose(
        [
            f"batch_size={case['samples']}",
            f"algo.minibatch_size={case['minibatch']}",
            f"algo.epochs={case['epochs']}",
            f"algo.compile={'false' if case['system'] == 'walle-eager' else 'true'}",
            "algo.schedule=constant",
            "algo.target_kl=null",
            "algo.log_std_end=null",  # the peers learn the noise
            *(LIKE_THE_PEERS if case["same"] else ()),
        ]
    ).algo
    steps_of_run = (10**9, 10**9)  # in all, and until a falling step size is 0
    sizes = (*steps_of_run, case["samples"], 0, "cpu")
    problem = Problem(OBS_SPACE, ACTION_SPACE, lanes, *sizes, shards=case["shards"])
    width = (case["width"],) * 2
    net = NetSettings(width, width, "tanh", -0.5)
    algorithm = PPO(settings, net, problem)
    close: Update = nothing
    if case["learners"] > 1:
        from walle.learning.sharing.learners import Learners, make_learner_tasks

        make = partial(PPO, settings, net)
        learners = Learners(make_learner_tasks(case["learners"], make, problem, threads=1))
        learners.join(algorithm, "cpu")
        close = learners.close
    algorithm.warm_up()
    obs, action, reward = experience(steps + 1, lanes)
    false = np.zeros((steps, lanes), bool)
    params = algorithm.policy.layout.unflatten(algorithm.vector[: algorithm.policy.layout.size])
    dist = algorithm.policy.dist(params, torch.from_numpy(obs[:-1]).clamp(-10, 10))
    rollout = Rollout(
        obs=obs,
        final_obs=np.zeros_like(obs[:-1]),
        action=action[:-1],
        reward=reward[:-1],
        terminated=false,
        truncated=false,
        log_prob=algorithm.policy.log_prob(dist, torch.from_numpy(action[:-1])).numpy(),
        lane=np.arange(lanes),
        policy_version=np.zeros(lanes, np.int64),
    )

    return lambda: algorithm.update(rollout), close  # in lock-step: no lag to correct


def shape(case: dict[str, Any]) -> tuple[int, int]:
    """The steps and the lanes of a round: 32 lanes if they divide the rows."""
    lanes = int(np.gcd(case["samples"], 32))
    return case["samples"] // lanes, lanes


def experience(steps: int, lanes: int) -> tuple[Any, Any, Any]:
    """Random observations, actions and rewards."""
    rng = np.random.default_rng(0)
    return (
        rng.standard_normal((steps, lanes, OBS), dtype=np.float32),
        0.5 * rng.standard_normal((steps, lanes, ACTIONS), dtype=np.float32),
        rng.standard_normal((steps, lanes), dtype=np.float32),
    )


class Idle(gym.Env[Any, Any]):
    """An environment that has spaces but never steps."""

    observation_space = OBS_SPACE
    action_space = ACTION_SPACE

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Returns zeros."""
        return np.zeros(OBS, np.float32), {}


def baseline(case: dict[str, Any], ppo: Any, tanh: Any) -> tuple[Update, Update]:
    """Fills the rollout buffer of Stable-Baselines3's PPO or SBX's."""
    import torch
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    steps, lanes = shape(case)
    arguments = {
        "n_steps": steps,
        "batch_size": case["minibatch"],
        "n_epochs": case["epochs"],
        "learning_rate": RATE,
        "gamma": GAMMA,
        "gae_lambda": GAE_LAMBDA,
        "clip_range": CLIP,
        "vf_coef": VALUE_WEIGHT,
        "ent_coef": 0.0,
        "max_grad_norm": MAX_NORM,
        "normalize_advantage": False,
        "device": "cpu",
    }
    width = [case["width"]] * 2
    policy = {"net_arch": {"pi": width, "vf": width}, "activation_fn": tanh}
    envs = DummyVecEnv([Idle] * lanes)
    model = ppo("MlpPolicy", envs, policy_kwargs=policy, **arguments)
    model.set_logger(configure(format_strings=[]))
    obs, action, reward = experience(steps, lanes)

    def update() -> None:
        buffer = model.rollout_buffer
        buffer.reset()
        buffer.observations[:], buffer.actions[:], buffer.rewards[:] = obs, action, reward
        buffer.log_probs[:] = -6.0
        buffer.pos, buffer.full = steps, True
        buffer.compute_returns_and_advantage(torch.zeros(lanes), np.zeros(lanes))
        model.train()

    return update, nothing


def sb3(case: dict[str, Any]) -> tuple[Update, Update]:
    """Stable-Baselines3's PPO."""
    import torch
    from stable_baselines3 import PPO

    return baseline(case, PPO, torch.nn.Tanh)


def sbx(case: dict[str, Any]) -> tuple[Update, Update]:
    """SBX's PPO, in JAX."""
    import flax.linen as nn
    from sbx import PPO

    return baseline(case, PPO, nn.tanh)


def floor(case: dict[str, Any]) -> tuple[Update, Update]:
    """The matrix products of the gradient steps, and nothing else."""
    import torch

    torch.set_num_threads(1)
    rows, width = case["minibatch"], case["width"]
    products = []
    for out in (ACTIONS, 1):
        for index, (k, n) in enumerate([(OBS, width), (width, width), (width, out)]):
            x, w, g = torch.randn(rows, k), torch.randn(n, k), torch.randn(rows, n)
            products.append((x, w.t(), torch.empty(rows, n)))
            products.append((g.t(), x, torch.empty(n, k)))
            if index:
                products.append((g, w, torch.empty(rows, k)))
    count = case["epochs"] * -(-case["samples"] // rows)

    def update() -> None:
        for _ in range(count):
            for a, b, out in products:
                torch.mm(a, b, out=out)

    return update, nothing


SYSTEMS: dict[str, Callable[[dict[str, Any]], tuple[Update, Update]]] = {
    "walle-eager": walle,
    "walle-compiled": walle,
    "sb3": sb3,
    "sbx": sbx,
    "floor": floor,
}

if __name__ == "__main__":
    sys.exit(main())
