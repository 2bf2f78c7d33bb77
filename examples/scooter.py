"""Your own robot, as an example: a self-balancing scooter that should roll at one metre per second.

    python -m walle.run env=gym env.id=examples.scooter:SCOOTER

`python -m examples.scooter` simulates 32 scooters with random actions.
"""

from pathlib import Path

import numpy as np

from walle.envs.mujoco.robot import Robot

TARGET_SPEED = 1.0  # m/s
MAX_LEAN = 0.6  # rad
X, Z, LEAN, AXLE = range(4)  # the joints, in the order of the XML file


def observe(now):
    """Height, lean and all velocities; place and wheel angle do not matter for the task."""
    return np.concatenate([now.qpos[:, [Z, LEAN]], now.qvel], axis=1)


def reward(before, action, now):
    """One for rolling at the target speed; deviations, swinging and effort cost reward."""
    slip = now.qvel[:, X] - TARGET_SPEED
    swing = now.qpos[:, LEAN] - before.qpos[:, LEAN]
    return 1.0 - slip**2 - 0.5 * swing**2 - 0.01 * (action**2).sum(axis=1)


def terminated(now):
    """Whether each scooter has fallen over."""
    return np.abs(now.qpos[:, LEAN]) > MAX_LEAN


def begin(random, qpos, qvel):
    """Begins with a small lean and a random speed."""
    qpos[LEAN] = random.uniform(-0.1, 0.1)
    qvel[X] = random.uniform(-0.5, 0.5)
    return qpos, qvel


SCOOTER = Robot(
    xml_file=Path(__file__).with_name("scooter.xml"),
    observe=observe,
    reward=reward,
    terminated=terminated,
    begin=begin,
    frame_skip=5,
    episode_limit=500,
)


def main():
    """Simulates 1,000 steps and prints a summary."""
    from walle.envs import EnvSpec, make_lanes

    lanes = make_lanes(EnvSpec("examples.scooter:SCOOTER"), lanes=range(32), seed=0)
    random = np.random.default_rng(0)
    lanes.reset()
    steps = [lanes.step(random.uniform(-1, 1, (32, 1))) for _ in range(1000)]
    ended = sum(int((step.terminated | step.truncated).sum()) for step in steps)
    mean = np.mean([step.reward.mean() for step in steps])
    print(f"{32 * len(steps)} steps, {ended} episodes ended, mean reward {mean:.3f}")


if __name__ == "__main__":
    main()
