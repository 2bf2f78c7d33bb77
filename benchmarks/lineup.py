"""The programs that benchmarks/end_to_end.py starts, their settings, and what each of them needs.

A set of PPO's settings for HalfCheetah is plain data, as Stable-Baselines3 and SBX take it, so that
it can be passed to a program and stored with a result.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.answers import limits
from benchmarks.programs import Need, Program, loop

TASKS = (
    *("HalfCheetah", "Hopper", "Walker2d", "Swimmer", "Reacher", "Pusher", "Ant"),
    *("Humanoid", "HumanoidStandup", "InvertedPendulum", "InvertedDoublePendulum"),
)
_PACKAGES = {
    "sb3": ("stable-baselines3", "mujoco"),
    "sbx": ("sbx-rl", "mujoco"),
    "sample-factory": ("sample-factory", "mujoco"),
}


def needed(options: argparse.Namespace, whom: str) -> Need:
    """The packages that sb3, sbx or sample-factory need."""
    if whom == "sample-factory":
        return Need(options.sample_factory, _PACKAGES[whom], "--sample-factory")
    return Need(options.peers, _PACKAGES[whom], "--peers")


def same_in_walle(task: str, samples: int, samplers: int, max_lag: int) -> dict[str, object]:
    """Walle's overrides for `same`; most of its values are those of its experiment."""
    return {
        **default_walle(task, 10**12, samplers, max_lag, seed=0),
        "+experiment": "small_minibatches",
        "batch_size": samples,
        "algo.epochs": 10,
        "algo.schedule": "constant",
        "algo.target_kl": "null",  # all take all their steps
        "eval.episodes": "0",
        "checkpoint.every": "null",
    }


def default_walle(
    task: str, steps: int, samplers: int, max_lag: int, seed: int
) -> dict[str, object]:
    """The default configuration of walle, including evaluations and checkpoints."""
    return {
        "env": "gym",
        "env.id": task,
        "sampler.n": samplers,
        "sampler.max_lag": max_lag,
        "total_steps": steps,
        "seed": seed,
    }


def peer(
    options: argparse.Namespace,
    library: str,
    settings: Mapping[str, Any],
    cores: Sequence[int],
    *,
    seed: int,
    steps: int,
    threads: int = 1,
    vector: str = "dummy",
) -> Program:
    """Stable-Baselines3 or SBX with `settings`, one of the sets below."""
    case = {"library": library, "task": options.task, "steps": steps, "seed": seed}
    words = json.dumps({**case, "threads": threads, "vector": vector, **settings})
    command = loop(options.peers, "ppo_training.py", words)
    return Program(command, cores, threads, environ=limits(threads))


def sample_factory(
    options: argparse.Namespace,
    settings: Mapping[str, Any],
    cores: Sequence[int],
    directory: Path,
    *,
    seed: int,
    steps: int,
) -> Program:
    """Sample Factory with a worker a core and 64 environments in all; it writes scratch files."""
    command = loop(
        options.sample_factory,
        "sample_factory_loop.py",
        options.task,
        workers=len(cores),
        envs=64 // len(cores),
        every=0,
        seed=seed,
        steps=steps,
        settings=json.dumps(settings),
    )
    return Program(command, cores, environ={"TMPDIR": str(directory)})


TANH_64 = {"width": 64, "activation": "tanh", "log_std_init": -0.5}


def same(samples: int, envs: int) -> dict[str, Any]:
    """Walle's experiment=small_minibatches with rounds of `samples` and a constant step size.

    Only walle recomputes the advantages before each epoch; the peers cannot.
    """
    return {
        "envs": envs,
        "net": TANH_64,
        "linear_schedule": False,
        "ppo": {
            "n_steps": samples // envs,
            "batch_size": 64,
            "n_epochs": 10,
            "learning_rate": 3e-4,
            "gamma": 0.99,
            "gae_lambda": 0.9,
            "clip_range": 0.2,
            "normalize_advantage": False,
            "ent_coef": 0.0,
            "vf_coef": 0.25,
            "max_grad_norm": 0.5,
        },
    }


def ours() -> dict[str, Any]:
    """`+experiment=small_minibatches` of walle, but for its KL bound and repeated advantages."""
    return {**same(2048, 64), "linear_schedule": True}


def zoo() -> dict[str, Any]:
    """RL Baselines3 Zoo, hyperparams/ppo.yml, HalfCheetah-v4: tuned.

    SBX has no list of settings; its documentation refers to the Zoo.
    """
    return {
        "envs": 1,
        "net": {"width": 256, "activation": "relu", "log_std_init": -2.0, "ortho_init": False},
        "linear_schedule": False,
        "ppo": {
            "n_steps": 512,
            "batch_size": 64,
            "n_epochs": 20,
            "learning_rate": 2.0633e-05,
            "gamma": 0.98,
            "gae_lambda": 0.92,
            "clip_range": 0.1,
            "ent_coef": 0.000401762,
            "vf_coef": 0.58096,
            "max_grad_norm": 0.8,
        },
    }


def cleanrl() -> dict[str, Any]:
    """CleanRL's ppo_continuous_action.py: 1 environment, 2,048 steps, 32 minibatches, 10 epochs.

    Its value loss is half the squared error with a weight of 0.5: 0.25 here. Its value clipping
    takes the larger of both errors, Stable-Baselines3's only the clipped one.
    """
    return {
        "envs": 1,
        "net": {**TANH_64, "log_std_init": 0.0},
        "linear_schedule": True,
        "ppo": {
            **same(2048, envs=1)["ppo"],
            "gae_lambda": 0.95,
            "clip_range_vf": 0.2,
            "normalize_advantage": True,
        },
    }


def sample_factory_same(samples: int) -> dict[str, Any]:
    """The settings nearest to `same` in Sample Factory: whole minibatches only, its own losses."""
    return {
        "rollout": 32,
        "batch_size": 64,
        "num_batches_per_epoch": samples // 64,
        "num_epochs": 10,
        "learning_rate": 3e-4,
        "gamma": 0.99,
        "gae_lambda": 0.9,
        "ppo_clip_ratio": 0.2,
        "value_loss_coeff": 0.25,
        "exploration_loss_coeff": 0.0,
        "max_grad_norm": 0.5,
        "normalize_input": True,
        "normalize_returns": True,
        "initial_stddev": 0.6065306597126334,
        "async_rl": True,
    }


def sample_factory_mujoco() -> dict[str, Any]:
    """Sample Factory's sf_examples/mujoco/mujoco_params.py."""
    return {
        "rollout": 64,
        "batch_size": 1024,
        "num_batches_per_epoch": 4,
        "num_epochs": 2,
        "learning_rate": 0.00295,
        "lr_schedule": "linear_decay",
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "ppo_clip_ratio": 0.2,
        "value_loss_coeff": 1.3,
        "exploration_loss_coeff": 0.0,
        "kl_loss_coeff": 0.1,
        "max_grad_norm": 3.5,
        "normalize_input": True,
        "normalize_returns": True,
        "value_bootstrap": True,
        "policy_initialization": "torch_default",
        "shuffle_minibatches": False,
        "async_rl": False,
    }
