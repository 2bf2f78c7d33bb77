"""Hashes of seeded runs, which show whether a change of the code changed any number.

    python benchmarks/seeded_runs.py --save before.json      # on the code before
    python benchmarks/seeded_runs.py --compare before.json   # on the changed code

A hash covers iterations.csv, episodes.csv and eval.csv, without times. Processors round
differently, so hashes of two machines cannot be compared.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPLAY = ("env=pendulum", "total_steps=1500", "algo.learning_starts=500", "algo.compile=true")
CASES: dict[str, tuple[str, ...]] = {
    "ppo": ("env=halfcheetah", "sampler.n=2", "algo.compile=false"),
    "ppo-compiled": ("env=halfcheetah", "sampler.n=2", "algo.compile=true"),
    "ppo-serial": ("env=hopper", "sampler=serial"),
    "ppo-overlapped": ("env=halfcheetah", "sampler.n=2", "sampler.max_lag=1"),
    "ppo-truncated": ("env=hopper", "sampler.max_lag=2", "algo.correction=truncated"),
    "ppo-learners": ("env=hopper", "learner.n=2", "learner.shards=2", "algo.compile=false"),
    "ppo-ant": ("env=ant", "sampler.n=2"),
    "ppo-lunar-lander": ("env=lunar_lander", "sampler.n=2"),
    "ppo-state-scale": ("env=pendulum", "net.scale=state", "env.time_feature=true"),
    "ppo-gru": ("env=cartpole", "net=gru", "sampler.n=2"),
    "ppo-gru-overlapped": ("env=pendulum", "net=gru", "sampler.max_lag=1"),
    "ppo-episodes": ("env=cartpole", "sampler.collect=episodes", "sampler.lanes=4"),
    "ppo-kl": ("algo=ppo_kl", "env=hopper", "batch_size=2048"),
    "ppo-kl-overlapped": ("algo=ppo_kl", "env=hopper", "batch_size=2048", "sampler.max_lag=1"),
    "trpo": ("algo=trpo", "env=hopper", "batch_size=2048"),
    "trpo-overlapped": ("algo=trpo", "env=cartpole", "batch_size=2048", "sampler.max_lag=1"),
    "trpo-adaptive": (
        f"hydra.searchpath=[file://{ROOT / 'examples' / 'parallel_trpo_2016' / 'conf'}]",
        "algo=parallel_trpo_2016",
        "env=cartpole",
        "batch_size=2048",
        "algo.max_kl=0.01",
        "algo.cg_damping=0.1",
        "algo.normalize_rewards=true",
        "algo.adapt=adaptive",
        "sampler.collect=episodes",
        "sampler.lanes=2",
    ),
    "a2c": ("algo=a2c", "env=cartpole"),
    "a2c-overlapped": ("algo=a2c", "env=hopper", "sampler.max_lag=1"),
    "ddpg": ("algo=ddpg", *REPLAY),
    "td3": ("algo=td3", *REPLAY),
    "sac": ("algo=sac", *REPLAY),
    "sac-overlapped": ("algo=sac", *REPLAY, "sampler.max_lag=1"),
    "xqc": ("algo=xqc", *REPLAY),
    "dqn": ("algo=dqn", "env=cartpole"),
    "pqn": ("algo=pqn", "env=cartpole"),
}
COMMON = ("algo.compile=false", "total_steps=12288", "seed=3", "eval.every=6000", "eval.episodes=3")
FILES = ("iterations.csv", "episodes.csv", "eval.csv")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; returns 1 if a hash differs from the one saved before."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", type=Path, metavar="FILE", help="where to write the hashes")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="hashes of an earlier run")
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), help="these cases alone")
    asked = parser.parse_args(arguments)
    before: dict[str, str] = json.loads(asked.compare.read_text()) if asked.compare else {}
    hashes, changed = {}, []
    for name in asked.only or CASES:
        hashes[name] = run_case(CASES[name])
        verdict = ""
        if name in before:
            verdict = "identical" if before[name] == hashes[name] else "CHANGED"
            changed += [name] * (verdict == "CHANGED")
        print(f"{name:20} {hashes[name]}  {verdict}", flush=True)
    if asked.save:
        asked.save.write_text(json.dumps(hashes, indent=2) + "\n")
    if changed:
        print(f"{len(changed)} changed: {', '.join(changed)}")
    return 1 if changed else 0


def run_case(overrides: Sequence[str]) -> str:
    """Runs one configuration in a temporary directory; returns the hash of its learning columns."""
    with tempfile.TemporaryDirectory() as directory:
        own = {override.partition("=")[0] for override in overrides}
        common = [override for override in COMMON if override.partition("=")[0] not in own]
        if "sampler=serial" not in overrides:  # else the column `sampler` would depend on speeds
            common.append("sampler.balance=false")
        command = [sys.executable, "-m", "walle.run", *overrides, *common]
        command += ["logger.progress=quiet", f"hydra.run.dir={directory}"]
        subprocess.run(command, check=True)
        return learning_hash(Path(directory))


def _name(key: str, row: Mapping[str, str]) -> str:
    """The name of a column in hashes, which keep the names before version 0.3."""
    if key != "gradient_steps":
        return key
    return "minibatches" if "clip_fraction" in row else "epochs" if "beta" in row else "updates"


def learning_hash(run: Path) -> str:
    """A hash of sixteen digits of all columns of the run's files except times."""
    digest = hashlib.sha256()
    for name in FILES:
        path = run / name
        if not path.exists():
            continue
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                timed = ("_s", "_share")  # seconds, or computed from seconds
                row.pop("faults", None)  # which earlier versions lacked
                kept = {_name(k, row): value for k, value in row.items() if not k.endswith(timed)}
                digest.update(json.dumps([name, kept]).encode())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
