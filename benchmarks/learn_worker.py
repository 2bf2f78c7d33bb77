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
from typing import Any

import gymnasium as gym
import numpy as np

OBS, ACTIONS = 17, 6
GAMMA, GAE_LAMBDA, CLIP, RATE, VALUE_WEIGHT, MAX_NORM = 0.99, 0.95, 0.2, 3e-4, 0.25, 0.5
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
ACTION_SPACE = gym.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
LIKE_THE_PEERS = (
    f"algo.gae_lambda={GAE_LAMBDA}",
    f"algo.learning_rate={RATE}",
    "algo.adam_beta2=0.999",  # Adam's epsilon stays another one: 1e-8 instead of SB3's 1e-5
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
            say(setup_s=time.perf_counter() - begin)
        else:
            update()
            say(update_s=time.perf_counter() - begin, cpu_s=time.process_time() - cpu)
    close()


def say(**fields: Any) -> None:
    """Prints a line and flushes it."""
    print(json.dumps(fields), flush=True)


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


def jax_scan(case: dict[str, Any]) -> tuple[Update, Update]:
    """PPO's whole update in one compiled JAX function: lax.scan over minibatches and epochs."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.lax import scan

    steps, lanes = shape(case)
    rows, size = steps * lanes, case["minibatch"]
    whole = rows // size * size  # the last minibatch of an epoch can be smaller
    sizes = (OBS, case["width"], case["width"])

    def net(out: int, key: Any) -> list[Any]:
        shapes = zip(sizes, (*sizes[1:], out), jax.random.split(key, 3), strict=True)
        make = jax.nn.initializers.orthogonal()
        return [(make(k, (n, m)), jnp.zeros(m)) for n, m, k in shapes]

    def apply(layers: list[Any], x: Any) -> Any:
        for w, b in layers[:-1]:
            x = jnp.tanh(x @ w + b)
        return x @ layers[-1][0] + layers[-1][1]

    def log_prob(params: Any, obs: Any, action: Any) -> Any:
        deviations = (action - apply(params["pi"], obs)) / jnp.exp(params["log_std"])
        constant = 0.5 * ACTIONS * np.log(2 * np.pi)
        return -0.5 * (deviations**2).sum(-1) - params["log_std"].sum() - constant

    def loss(params: Any, batch: Any) -> Any:
        obs, action, before, advantage, target = batch
        ratio = jnp.exp(log_prob(params, obs, action) - before)
        clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
        error = apply(params["v"], obs)[:, 0] - target
        policy = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        return policy + VALUE_WEIGHT * (error**2).mean()

    adam = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(RATE, eps=1e-5))

    def step(state: Any, batch: Any) -> Any:
        params, moments = state
        moves, moments = adam.update(jax.grad(loss)(params, batch), moments)
        return (optax.apply_updates(params, moves), moments), None

    @jax.jit
    def whole_update(state: Any, key: Any, obs: Any, action: Any, reward: Any) -> Any:
        params = state[0]
        values = apply(params["v"], obs)[..., 0]

        def backwards(advantage: Any, at: Any) -> Any:
            reward, value, after = at
            advantage = reward + GAMMA * after - value + GAMMA * GAE_LAMBDA * advantage
            return advantage, advantage

        rewards = reward[:-1], values[:-1], values[1:]
        advantages = scan(backwards, jnp.zeros(lanes), rewards, reverse=True)[1]
        before = log_prob(params, obs[:-1], action[:-1])
        columns = obs[:-1], action[:-1], before, advantages, advantages + values[:-1]
        data = [x.reshape(rows, *x.shape[2:]) for x in columns]

        def epoch(state: Any, key: Any) -> Any:
            order = jax.random.permutation(key, rows)
            minibatches = order[:whole].reshape(-1, size)
            state, _ = scan(lambda s, m: step(s, [x[m] for x in data]), state, minibatches)
            if whole < rows:
                state, _ = step(state, [x[order[whole:]] for x in data])
            return state, None

        return scan(epoch, state, jax.random.split(key, case["epochs"]))[0]

    keys = jax.random.split(jax.random.key(0))
    params = {"pi": net(ACTIONS, keys[0]), "v": net(1, keys[1]), "log_std": jnp.zeros(ACTIONS)}
    state = params, adam.init(params)
    round_ = experience(steps + 1, lanes)

    def update() -> None:
        jax.block_until_ready(whole_update(state, keys[0], *round_))

    return update, nothing


def mkl(case: dict[str, Any]) -> tuple[Update, Update]:
    """The matrix products of the gradient steps by torch, and nothing else."""
    import torch

    torch.set_num_threads(1)
    return products(case, torch.randn, torch.empty, torch.mm)


def openblas(case: dict[str, Any]) -> tuple[Update, Update]:
    """The same products by NumPy."""
    draw = np.random.default_rng(0).standard_normal

    def randn(*shape: int) -> Any:
        return draw(shape, dtype=np.float32)

    def empty(*shape: int) -> Any:
        return np.empty(shape, np.float32)

    return products(case, randn, empty, np.matmul)


def products(case: dict[str, Any], randn: Any, empty: Any, multiply: Any) -> tuple[Update, Update]:
    """All products of an update's gradient steps, by `multiply(a, b, out=...)`."""
    rows, width = case["minibatch"], case["width"]
    of_a_step = []
    for out in (ACTIONS, 1):
        for index, (k, n) in enumerate([(OBS, width), (width, width), (width, out)]):
            x, w, g = randn(rows, k), randn(n, k), randn(rows, n)
            of_a_step.append((x, w.T, empty(rows, n)))
            of_a_step.append((g.T, x, empty(n, k)))
            if index:
                of_a_step.append((g, w, empty(rows, k)))
    count = case["epochs"] * -(-case["samples"] // rows)

    def update() -> None:
        for _ in range(count):
            for a, b, out in of_a_step:
                multiply(a, b, out=out)

    return update, nothing


SYSTEMS: dict[str, Callable[[dict[str, Any]], tuple[Update, Update]]] = {
    "walle-eager": walle,
    "walle-compiled": walle,
    "sb3": sb3,
    "sbx": sbx,
    "jax-scan": jax_scan,
    "mkl": mkl,
    "openblas": openblas,
}

if __name__ == "__main__":
    sys.exit(main())
