"""The limit: `mj_step(model, data, frame_skip)` on recorded actions, and nothing else.

    python limit.py HalfCheetah-v5 --lanes 32

First some Gymnasium environments are stepped with a policy; their actions and the beginnings of
their episodes are recorded. Then MuJoCo alone repeats the same trajectories: one persistent MjData
a lane, with the model that Gymnasium loads. If there are more lanes than recordings, several lanes
repeat the same recording.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import cycle
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from common import Policy, make_env, report

BLOCK = 25
RECORDED = 16


class Beginning(NamedTuple):
    """The beginning of an episode in `lane` before step `t`."""

    t: int
    lane: int
    qpos: np.ndarray
    qvel: np.ndarray


class Recording(NamedTuple):
    """Actions [T, L, A], and the beginnings of episodes in order of time."""

    actions: np.ndarray
    beginnings: list[Beginning]


def main() -> None:
    """Records, then reports blocks of steps until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    envs = [make_env(args.task) for _ in range(min(args.lanes, RECORDED))]
    recording = repeated(record(envs, args.seed), args.lanes)
    base: Any = envs[0].unwrapped
    report(replayed(base.model, base.frame_skip, recording))


def record(envs: list[gym.Env], seed: int, most: int = 1000, episodes: int = 3) -> Recording:
    """Records until every lane has run a number of episodes, or for `most` steps."""
    space = envs[0].action_space
    policy = Policy(envs[0].observation_space.shape[0], space.low, space.high, seed)
    obs = np.stack([env.reset(seed=seed * len(envs) + i)[0] for i, env in enumerate(envs)])
    beginnings = [began(0, i, env) for i, env in enumerate(envs)]
    ended = np.zeros(len(envs), int)
    actions = []
    while len(actions) < most and ended.min() < episodes:
        actions.append(policy(obs).astype(np.float64))
        for i, env in enumerate(envs):
            obs[i], _, terminated, truncated, _ = env.step(actions[-1][i])
            if terminated or truncated:
                obs[i] = env.reset()[0]
                beginnings.append(began(len(actions), i, env))
                ended[i] += 1
    return Recording(np.array(actions), beginnings)


def repeated(recording: Recording, lanes: int) -> Recording:
    """The recording for more lanes: lane i repeats the recorded lane i modulo their number."""
    recorded = recording.actions.shape[1]
    copies = [
        beginning._replace(lane=lane)
        for beginning in recording.beginnings
        for lane in range(beginning.lane, lanes, recorded)
    ]
    return Recording(recording.actions[:, np.arange(lanes) % recorded], copies)


def began(t: int, lane: int, env: gym.Env) -> Beginning:
    """The state of an environment after its reset."""
    data = env.unwrapped.data
    return Beginning(t, lane, data.qpos.copy(), data.qvel.copy())


def replayed(model: Any, frame_skip: int, recording: Recording) -> Iterator[int]:
    """Replays the recording for ever; yields the number of steps after every BLOCK x L steps."""
    datas = [mujoco.MjData(model) for _ in range(recording.actions.shape[1])]
    lanes = [(data, data.ctrl) for data in datas]
    step = mujoco.mj_step
    at: dict[int, list[Beginning]] = {}
    for beginning in recording.beginnings:
        at.setdefault(beginning.t, []).append(beginning)
    for taken, (t, actions) in enumerate(cycle(enumerate(recording.actions)), start=1):
        for _, lane, qpos, qvel in at.get(t, ()):
            mujoco.mj_resetData(model, datas[lane])  # as Gymnasium's reset does
            datas[lane].qpos[:], datas[lane].qvel[:] = qpos, qvel
            mujoco.mj_forward(model, datas[lane])
        for (data, ctrl), action in zip(lanes, actions, strict=True):
            ctrl[:] = action
            step(model, data, frame_skip)
        if taken % BLOCK == 0:
            yield BLOCK * len(lanes)


if __name__ == "__main__":
    main()
