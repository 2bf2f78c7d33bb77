"""Sample Factory's APPO end to end: it has no way to collect without learning.

    python sample_factory_loop.py HalfCheetah-v4 --workers 2

Its learner gets as little to do as it allows: one epoch, one minibatch a round. A v5 task becomes
v4, the newest in the Gymnasium that Sample Factory takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from typing import Any

from common import make_env
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

EVERY_S = 0.5


class Reporter(AlgoObserver):
    """Prints a line with what was collected since the last one."""

    def __init__(self) -> None:
        """Nothing was collected yet."""
        self._steps, self._at_s = 0, time.monotonic()

    def on_training_step(self, runner: Any, *_: Any) -> None:
        """Sample Factory calls this with every training step."""
        now = time.monotonic()
        if now - self._at_s < EVERY_S:
            return
        steps = sum(runner.env_steps.values())
        print(json.dumps([steps - self._steps, self._at_s, now]), flush=True)
        self._steps, self._at_s = steps, now


def env_of(name: str, *_: Any, **__: Any) -> Any:
    """As Sample Factory wants to make one."""
    return make_env(name)


def main() -> None:
    """Trains for ever."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args()
    task = args.task.replace("-v5", "-v4")
    register_env(task, env_of)
    settings = {
        "env": task,
        "device": "cpu",
        "num_workers": args.workers,
        "num_envs_per_worker": 16,
        "worker_num_splits": 2,
        "rollout": 32,
        "batch_size": 1024,
        "num_batches_per_epoch": 1,
        "num_epochs": 1,
        "use_rnn": False,
        "nonlinearity": "tanh",
        "adaptive_stddev": False,
        "decorrelate_envs_on_one_worker": False,
        "train_for_env_steps": 10**12,
        "train_dir": tempfile.mkdtemp(),
        "experiment": "collect",
    }
    words = [f"--{key}={value}" for key, value in settings.items()]
    words += ["--encoder_mlp_layers", "64", "64"]
    parsed, _ = parse_sf_args(words)
    _, runner = make_runner(parse_full_cfg(parsed, words))
    runner.register_observer(Reporter())
    runner.init()
    sys.exit(runner.run())


if __name__ == "__main__":
    main()
