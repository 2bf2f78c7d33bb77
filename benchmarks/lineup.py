"""The programs that benchmarks/end_to_end.py starts, and what each of them needs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.programs import Need, Program, loop

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
    """Walle's overrides for `hyperparameters.same`; most of its values are defaults."""
    return {
        "env": "gym",
        "env.id": task,
        "sampler.n": samplers,
        "sampler.max_lag": max_lag,
        "batch_size": samples,
        "total_steps": 10**12,
        "algo.epochs": 10,
        "algo.minibatch_size": 64,
        "algo.schedule": "constant",
        "algo.target_kl": "null",  # all take all their steps
        "eval.every": "null",
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
) -> Program:
    """Stable-Baselines3 or SBX with settings of benchmarks/hyperparameters.py."""
    case = {
        "library": library,
        "task": options.task,
        "steps": steps,
        "seed": seed,
        "threads": options.threads,
        **settings,
    }
    command = loop(options.peers, "ppo_training.py", json.dumps(case))
    return Program(command, cores, threads=options.threads)


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
