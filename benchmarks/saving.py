"""The cost of states that survive: handing them over, saving them, going on from them.

    python benchmarks/saving.py [--env halfcheetah ...] [--steps 400000] [--json saving.json]

`hand over`: the time in which a sampler writes its lanes' states into a slot, over the time of the
rollout before it; a sampler of this process, 32 lanes, 32 steps. `save`: the agent's section
`checkpoint` over the whole time of a default run after its first iteration, with `checkpoint.every`
at its default. `resume`: seconds from the command `resume=DIR` to the first new line of
iterations.csv, on warm caches.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.provenance import provenance, write_json
from walle.config import compose
from walle.nets.factory import NetSettings
from walle.sampling.sampler_process import SamplerTask
from walle.sampling.slots import Slot
from walle.timing import SAMPLER_SECTIONS, Timer
from walle.training import make_problem, rollout_shape
from walle.types import Lag, PolicySnapshot

RUN = [sys.executable, "-m", "walle.run"]
LANES, STEPS, ROUNDS = 32, 32, 60
QUIET = ("logger.progress=quiet",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the three costs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    envs = ["halfcheetah", "ant", "humanoid", "cartpole", "lunar_lander"]
    parser.add_argument("--env", nargs="+", default=envs, help="tasks for `hand over`")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of `hand over`")
    parser.add_argument("--steps", type=int, default=400_000, help="environment steps of the run")
    parser.add_argument("--every", type=int, default=100_000, help="checkpoint.every of the run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"provenance": provenance({})}
    torch.set_num_threads(1)
    report["hand_over"] = {env: hand_over_share(env, options.rounds) for env in options.env}
    for env, share in report["hand_over"].items():
        print(f"hand over {env:<14}{share:.3%} of collecting", flush=True)
    with tempfile.TemporaryDirectory() as name:
        report |= save_and_resume(Path(name) / "run", options.steps, options.every)
    print(f"save      {report['save_share']:.3%} of a run of {options.steps:,} steps")
    print(f"resume    {report['resume_s']:.2f} s to the first line")
    write_json(options.json, report)
    return 0


def hand_over_share(env: str, rounds: int) -> float:
    """Seconds of handing over for a second of collecting, over `rounds` rounds."""
    config = compose([f"env={env}", f"batch_size={LANES * STEPS}", f"sampler.lanes={LANES}"])
    problem, probed = make_problem(config)
    net = NetSettings.of(config.net)
    task = SamplerTask(
        index=0,
        env=probed.env,
        lanes=tuple(range(LANES)),
        policy=net.policy_factory(problem),
        obs_dim=problem.obs_dim,
        clip=10.0,
        seed=0,
        lag=Lag(0),
        rounds=None,
        core=None,
        trace=None,
    )
    sampler, room = task.build(anew=False), 4 * probed.state_bytes
    shape = rollout_shape(config, problem, probed, LANES)._replace(lane_state=room)
    slot, timer = Slot.empty(shape), Timer(SAMPLER_SECTIONS)
    vector = task.policy().init(torch.Generator().manual_seed(0)).numpy()
    norm = np.repeat(np.float32([0, 1]), problem.obs_dim)
    snapshot = PolicySnapshot(0, np.concatenate((vector, norm)))
    spent = [0.0, 0.0]
    for round_ in range(rounds):
        began = time.perf_counter()
        sampler.fill(slot.rollout, snapshot, round_, timer)
        filled = time.perf_counter()
        sampler.export_states(slot.lane_states, slot.memory)
        if round_:
            spent[0] += filled - began
            spent[1] += time.perf_counter() - filled
    sampler.lanes.close()
    return spent[1] / spent[0]


def save_and_resume(directory: Path, steps: int, every: int) -> dict[str, float]:
    """Runs the default task, then goes on for another round."""
    settings = [f"hydra.run.dir={directory}", f"total_steps={steps}", f"checkpoint.every={every}"]
    subprocess.run([*RUN, *QUIET, *settings], check=True, stdout=subprocess.DEVNULL)
    with (directory / "timing.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["process"] == "agent"][1:]
    saved, total = (sum(float(row[name]) for row in rows) for name in ("checkpoint_s", "total_s"))
    found = [resume_s(directory, steps + (i + 1) * 10_000) for i in range(3)]
    return {"save_share": saved / total, "resume_s": statistics.median(found)}


def resume_s(directory: Path, steps: int) -> float:
    """Seconds from the command to the first new line of iterations.csv."""
    file = directory / "iterations.csv"
    size, began = file.stat().st_size, time.monotonic()
    command = [*RUN, *QUIET, f"resume={directory}", f"total_steps={steps}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
        while file.stat().st_size <= size:
            if run.poll() is not None:
                raise SystemExit(f"the resumed run ended with {run.returncode}")
            time.sleep(0.005)
        return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
