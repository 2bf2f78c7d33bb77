"""The robots in docs/own_robot.md and in the README run as they stand."""

import re
from pathlib import Path

import numpy as np

from walle.envs.mujoco.lanes import MujocoLanes
from walle.envs.mujoco.robot import RobotTask

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "own_robot.md"


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def test_the_code_blocks_run_in_order():
    blocks = blocks_of(DOCS)
    assert len(blocks) == 3
    namespace = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), namespace)
    assert namespace["lanes"].episode_limit == 200


def test_the_readmes_robot_steps(tmp_path, monkeypatch):
    (block,) = blocks_of(ROOT / "README.md")
    of_page = {}
    exec(blocks_of(DOCS)[0], of_page)
    (tmp_path / "pole.xml").write_text(of_page["XML"])
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(block, namespace)
    lanes = MujocoLanes(RobotTask(namespace["POLE"]), seeds=[0, 1])
    lanes.reset()
    np.testing.assert_allclose(lanes.step(np.zeros((2, 1))).reward, 0.6, atol=1e-2)
