"""How much faster MuJoCo's own steps are in walle, with the same bits.

    python benchmarks/physics.py [--tasks HalfCheetah Ant ...] [--json physics.json]

One process on one core steps one MjData with random controls. Three ways take turns: `as-loaded`,
the model as Gymnasium loads it, with the clock that MuJoCo's Python package reads in every step;
`no-clock`, the same without the clock; and `walle`, without the clock and with the model as walle
compiles it (no searches that find nothing, and a list of the geoms that may touch). Times are
microseconds of the wall clock per environment step, medians over the turns; ratios are within a
turn. The states at the end of a turn must be the same in all three.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.options import positive
from benchmarks.provenance import provenance, write_json
from benchmarks.ratios import compared, shown, spread
from benchmarks.turns import rotated
from walle.envs.mujoco.physics import catch_mujoco_warnings, clock_variable
from walle.envs.mujoco.task import compile_model

TASKS = (
    *("HalfCheetah", "Hopper", "Walker2d", "Swimmer", "Reacher", "Pusher", "Ant"),
    *("Humanoid", "HumanoidStandup", "InvertedPendulum", "InvertedDoublePendulum"),
)
LOADED, CLOCKLESS, WALLE = WAYS = ("as-loaded", "no-clock", "walle")


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every task, prints a line for each, writes JSON on request."""
    args = arguments(argv)
    os.sched_setaffinity(0, {args.core})
    catch_mujoco_warnings()
    report: dict[str, Any] = {"provenance": provenance({}), "tasks": {}}
    print(f"{'task':<24}{'as loaded, us':>14}{'/ no clock':>22}{'/ walle':>22}")
    for task in args.tasks:
        turns = measured(f"{task}-v5", args.steps, args.repetitions)
        ratios = {way: compared(turns, way, "times")[LOADED] for way in (CLOCKLESS, WALLE)}
        report["tasks"][task] = {"us": turns, "times_as_loaded": ratios}
        cells = "".join(f"{shown(ratios[way], 'times'):>22}" for way in (CLOCKLESS, WALLE))
        print(f"{task:<24}{spread(turns[LOADED], 'us')['median_us']:>14.1f}{cells}", flush=True)
        write_json(args.json, report)
    return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, metavar="TASK")
    parser.add_argument("--steps", type=positive, default=2000, help="environment steps a turn")
    parser.add_argument("--repetitions", type=positive, default=9, help="turns of each way")
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="where to write everything")
    return parser.parse_args(argv)


def measured(env_id: str, steps: int, repetitions: int) -> dict[str, list[float]]:
    """Microseconds of an environment step in every turn of each way.

    Raises:
        SystemExit: two ways ended in different states, or the clock cannot be stopped here.
    """
    env: Any = gym.make(env_id).unwrapped
    loaded, ours = env.model, compile_model(Path(env.fullpath))
    clock = clock_variable()
    if clock is None:
        raise SystemExit("MuJoCo's variable mjcb_time is not to be found on this system")
    own = clock.value
    controls = np.random.default_rng(0).uniform(-1, 1, (steps, loaded.nu))
    ways: dict[str, tuple[Any, int | None]] = {
        LOADED: (loaded, own),
        CLOCKLESS: (loaded, None),
        WALLE: (ours, None),
    }
    turns: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        for turn in range(repetitions):
            ends = []
            for way in rotated(WAYS, turn):
                model, clock.value = ways[way]
                data = mujoco.MjData(model)
                turns[way].append(1e6 * timed(model, data, controls, env.frame_skip) / steps)
                ends.append(np.concatenate((data.qpos, data.qvel)))
            if any(not np.array_equal(end, ends[0]) for end in ends):
                raise SystemExit(f"{env_id}: the three ways do not end in the same state")
    finally:
        clock.value = own
    return turns


def timed(model: Any, data: Any, controls: Any, substeps: int) -> float:
    """Seconds of the steps with these controls."""
    step: Callable[..., None] = mujoco.mj_step
    began = time.perf_counter()
    for control in controls:
        data.ctrl[:] = control
        step(model, data, substeps)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
