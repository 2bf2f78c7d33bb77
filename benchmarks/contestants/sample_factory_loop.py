"""Sample Factory's APPO end to end: it has no way to collect without learning.

    python sample_factory_loop.py HalfCheetah-v4 --workers 2 [--settings '{"num_epochs": 10, ...}']

Without `--settings` its learner does as little as possible: one epoch with one minibatch a round. A
v5 task becomes v4, the newest in the Gymnasium that Sample Factory takes. Prints lines: steps, when
they began and ended, steps in all, mean return of the last 100 episodes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from typing import Any

import numpy as np
from common import make_env
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

COLLECTING = {"rollout": 32, "batch_size": 1024, "num_batches_per_epoch": 1, "num_epochs": 1}


class Reporter(AlgoObserver):
    """An observer that prints a line about the steps since the last line."""

    def __init__(self, every_s: float) -> None:
        """Lines are `every_s` seconds apart, or more."""
        self._every_s = every_s
        self._steps = 0
        self._at_s: float | None = None  # the first training step ends the start-up

    def on_training_step(self, runner: Any, *_: Any) -> None:
        """Sample Factory calls this with every training step."""
        now = time.monotonic()
        steps = sum(runner.env_steps.values())
        if self._at_s is None:
            self._steps, self._at_s = steps, now
        if now - self._at_s < self._every_s or steps == self._steps:
            return
        returns = [r for policy in runner.policy_avg_stats.get("reward", ()) for r in policy]
        mean = float(np.mean(returns)) if returns else None
        print(json.dumps([steps - self._steps, self._at_s, now, steps, mean]), flush=True)
        self._steps, self._at_s = steps, now


def env_of(name: str, *_: Any, **__: Any) -> Any:
    """Makes an environment with the arguments that Sample Factory passes."""
    return make_env(name)


def main() -> None:
    """Trains for the steps of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--envs", type=int, default=16, help="of a worker")
    parser.add_argument("--steps", type=int, default=10**12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=0.5, help="seconds between lines")
    parser.add_argument("--settings", type=json.loads, default=COLLECTING, help="JSON")
    args = parser.parse_args()
    task = args.task.replace("-v5", "-v4")
    register_env(task, env_of)
    words = ["--env", task, "--experiment", "benchmark"]
    factory, _ = parse_sf_args(words)
    factory.set_defaults(**settings(args))  # its own examples do this: not all values are choices
    _, runner = make_runner(parse_full_cfg(factory, words))
    runner.register_observer(Reporter(args.every))
    runner.init()
    sys.exit(runner.run())


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that differ from Sample Factory's defaults."""
    return {
        "seed": args.seed,
        "device": "cpu",
        "num_workers": args.workers,
        "num_envs_per_worker": args.envs,
        "worker_num_splits": 2,
        "use_rnn": False,
        "nonlinearity": "tanh",
        "adaptive_stddev": False,
        "decorrelate_envs_on_one_worker": False,
        "train_for_env_steps": args.steps,
        "train_dir": tempfile.mkdtemp(),
        "encoder_mlp_layers": [64, 64],
        "heartbeat_reporting_interval": 10**6,  # the program is paused during the turns of others
        **args.settings,
    }


if __name__ == "__main__":
    main()
