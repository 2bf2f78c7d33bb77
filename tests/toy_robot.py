"""Robots for the tests: the scooter, with rewards that read fields from before the step."""

import dataclasses

import numpy as np

from examples.scooter import SCOOTER


def travelled(before, action, now):
    """How far the bodies moved; MuJoCo derives their places, they are no part of its state."""
    return (now.xpos - before.xpos)[:, 1:].sum((1, 2))


def sped_up(before, action, now):
    return (now.subtree_linvel - before.subtree_linvel)[:, 1, 0]


def noisy(before, action, now):
    return travelled(before, action, now) + np.random.random()


def observe(now):
    return np.concatenate((now.qpos[:, 1:3], now.qvel, now.xpos[:, 1]), axis=1)


ROBOT = dataclasses.replace(
    SCOOTER,
    fields=("qpos", "qvel", "xpos"),
    remembers=("xpos",),
    observe=observe,
    reward=travelled,
    episode_limit=40,
)

# MuJoCo computes the velocities of subtrees only when asked, so these lanes step in a Python loop.
LOOPED = dataclasses.replace(
    ROBOT,
    fields=("qpos", "qvel", "xpos", "subtree_linvel"),
    remembers=("subtree_linvel",),
    reward=sped_up,
)

# It draws from NumPy's global generator.
NOISY = dataclasses.replace(ROBOT, reward=noisy)
