"""The cost of a step for several numbers of lanes of a sampler, split into sections.

    python benchmarks/lanes.py [--tasks HalfCheetah Reacher] [--lanes 1 2 4 ...] [--json FILE]

One sampler's loop in this process, pinned to one core, without queues: `LaneSampler.fill` on the
arrays a process would write to. Times are microseconds of the process's CPU time per environment
step, the median of `--repetitions` rollouts; on a busy machine CPU
time varies less than the wall clock. `once` is the cost of a rollout before its first and after its
last step, without log-probabilities, which count in `act`; `physics` is the call that steps MuJoCo.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])


from benchmarks.options import parser_of
from benchmarks.provenance import provenance, write_json
from walle.envs import EnvSpec, make_lanes
from walle.nets.policies import GaussianPolicy
from walle.sampling.actor import Actor
from walle.sampling.collect import LaneSampler
from walle.sampling.slots import RolloutShape, Slot
from walle.timing import SAMPLER_SECTIONS, Timer
from walle.types import PolicySnapshot


class Cost(NamedTuple):
    """Microseconds per environment step."""

    total: float
    physics: float
    act: float
    env: float
    once: float


class CpuTimer(Timer):
    """A timer of sections in CPU time, with the interface of `Timer` that `collect` uses."""

    def __init__(self) -> None:
        """Starts with zero in all sections."""
        super().__init__(SAMPLER_SECTIONS)
        self.spent = dict.fromkeys(SAMPLER_SECTIONS, 0)
        self._name, self._at = "other", time.thread_time_ns()

    def switch(self, section: str) -> int:
        """See `Timer.switch`."""
        now = time.thread_time_ns()
        self.spent[self._name] += now - self._at
        self._name, self._at = section, now
        return now


def main() -> int:
    """Prints a line per task and number of lanes."""
    parser = parser_of(__doc__)
    parser.add_argument("--tasks", nargs="+", default=["HalfCheetah", "Reacher", "Humanoid"])
    parser.add_argument("--lanes", nargs="+", type=int, default=[2**i for i in range(9)])
    parser.add_argument("--steps", type=int, default=2560, help="environment steps of a rollout")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    torch.set_num_threads(1)
    report: dict[str, Any] = {"provenance": provenance({}), "tasks": {}}
    print(f"{'task':<24}{'lanes':>6}{'steps/s':>10}" + "".join(f"{n:>9}" for n in Cost._fields))
    for task in args.tasks:
        costs = report["tasks"].setdefault(task, {})
        for lanes in args.lanes:
            cost = measure(f"{task}-v5", lanes, max(1, args.steps // lanes), args.repetitions)
            costs[lanes] = cost._asdict()
            columns = "".join(f"{value:>9.2f}" for value in cost)
            print(f"{task:<24}{lanes:>6}{1e6 / cost.total:>10,.0f}{columns}", flush=True)
    write_json(args.json, report)
    return 0


def measure(env_id: str, lanes: int, steps: int, repetitions: int) -> Cost:
    """The median cost over rollouts of `steps` steps."""
    numbers = list(range(lanes))
    simulated = make_lanes(EnvSpec(env_id), numbers, seed=0)
    obs_dim, width = (
        int(s.shape[0]) for s in (simulated.observation_space, simulated.action_space)
    )
    policy = GaussianPolicy(obs_dim, width, (64, 64), torch.tanh, -0.5)
    spent = clocked_physics(simulated)
    sampler = LaneSampler(simulated, Actor(policy, obs_dim, lanes, 10.0), numbers, seed=0)
    shape = RolloutShape(steps, lanes, (obs_dim,), "float32", (width,), "float32")
    slot = Slot.empty(shape)
    vector = policy.init(torch.Generator().manual_seed(0)).numpy()
    norm = np.repeat(np.float32([0, 1]), obs_dim)
    snapshot = PolicySnapshot(0, np.concatenate((vector, norm)))
    sampler.fill(slot.rollout, snapshot, 0, CpuTimer())
    rows = [one_rollout(sampler, slot, snapshot, spent, steps * lanes) for _ in range(repetitions)]
    return Cost(*np.median(rows, 0).tolist())


def clocked_physics(lanes: Any) -> list[int]:
    """Makes the lanes' physics append its CPU nanoseconds to the returned list."""
    while not hasattr(lanes, "_physics"):
        lanes = lanes._inner
    inner, spent = lanes._physics.step, [0]

    def step(*arguments: Any) -> None:
        begin = time.thread_time_ns()
        inner(*arguments)
        spent[0] += time.thread_time_ns() - begin

    lanes._physics.step = step
    return spent


def one_rollout(
    sampler: LaneSampler, slot: Slot, snapshot: PolicySnapshot, spent: list[int], env_steps: int
) -> Cost:
    """The cost of one rollout, by section."""
    timer = CpuTimer()
    spent[0] = 0
    begin = time.thread_time_ns()
    sampler.fill(slot.rollout, snapshot, 0, timer)
    total = time.thread_time_ns() - begin
    act, env = timer.spent["act"], timer.spent["env_step"]
    parts = (total, spent[0], act, env - spent[0], total - act - env)
    return Cost(*(ns / 1000 / env_steps for ns in parts))


if __name__ == "__main__":
    sys.exit(main())
