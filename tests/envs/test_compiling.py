"""Which models may be simulated without looking for contacts."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from walle.envs.mujoco import task
from walle.envs.mujoco.physics import batch_available
from walle.envs.mujoco.task import compile_model, may_touch, xml_path

BODIES = """
<mujoco>
  {options}
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" contype="{floor}" conaffinity="{floor}"/>
    <body pos="0 0 1"><freejoint/>
      <geom size=".1" contype="{upper}" conaffinity="{upper}"/>
      <body pos="0 0 .5"><joint type="hinge"/>
        <geom size=".1" contype="{lower}" conaffinity="{lower}"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def model(*, floor: int = 0, upper: int = 0, lower: int = 0, options: str = "") -> mujoco.MjModel:
    xml = BODIES.format(floor=floor, upper=upper, lower=lower, options=options)
    return mujoco.MjModel.from_xml_string(xml)


def test_bits_that_do_not_meet_never_touch():
    assert not may_touch(model())
    assert not may_touch(model(floor=1, upper=2, lower=4))


def test_bits_that_meet_may_touch():
    assert may_touch(model(floor=1, upper=1))
    assert may_touch(model(floor=1, lower=3))


def test_parent_and_child_do_not_touch_unless_the_filter_is_off():
    assert not may_touch(model(upper=1, lower=1))
    off = '<option><flag filterparent="disable"/></option>'
    assert may_touch(model(upper=1, lower=1, options=off))


def test_geoms_of_one_rigid_body_do_not_touch():
    xml = """<mujoco><worldbody><body><freejoint/><geom size=".1"/>
    <body><geom size=".1"/></body></body></worldbody></mujoco>"""
    assert not may_touch(mujoco.MjModel.from_xml_string(xml))


def test_a_pair_named_in_the_model_may_touch():
    xml = """<mujoco><worldbody>
    <body><freejoint/><geom name="a" size=".1" contype="0" conaffinity="0"/></body>
    <body><freejoint/><geom name="b" size=".1" contype="0" conaffinity="0"/></body>
    </worldbody><contact><pair geom1="a" geom2="b"/></contact></mujoco>"""
    assert may_touch(mujoco.MjModel.from_xml_string(xml))


@pytest.mark.parametrize(
    "xml_file", ["reacher.xml", "swimmer.xml", "inverted_double_pendulum.xml", "hopper.xml"]
)
def test_what_is_switched_off_leaves_the_trajectory_as_it_is(xml_file: str):
    path = xml_path(xml_file)
    ours, plain = compile_model(path), mujoco.MjModel.from_xml_path(str(path))
    assert ours.opt.disableflags != plain.opt.disableflags
    np.testing.assert_array_equal(states(ours), states(plain))


@pytest.mark.slow
@pytest.mark.skipif(not batch_available(), reason="older MuJoCo has other margins")
@pytest.mark.parametrize(
    ("xml_file", "count"),
    [
        *(("half_cheetah.xml", 8), ("ant.xml", 13), ("hopper.xml", 7), ("point.xml", 2)),
        *(("walker2d.xml", 7), ("walker2d_v5.xml", 7), ("pusher.xml", 7), ("pusher_v5.xml", 7)),
    ],
)
def test_listed_pairs_leave_the_trajectory_as_it_is(xml_file: str, count: int):
    path = xml_path(xml_file)
    ours, plain = compile_model(path), mujoco.MjModel.from_xml_path(str(path))
    assert (ours.npair, plain.npair) == (count, 0)
    np.testing.assert_array_equal(states(ours, 3000), states(plain, 3000))


def test_a_list_that_gives_another_trajectory_is_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task, "_set_parameters", lambda *_: None)
    path = xml_path("half_cheetah.xml")
    plain = mujoco.MjModel.from_xml_path(str(path))
    assert task.with_listed_pairs(plain, path) is plain


def test_models_that_gymnasium_ships_are_compiled_once(monkeypatch: pytest.MonkeyPatch):
    path = xml_path("ant.xml")
    first = compile_model(path)
    monkeypatch.delattr(mujoco.MjModel, "from_xml_path")
    again = compile_model(path)
    first.opt.timestep *= 2  # each caller has a model of its own
    assert again.opt.timestep != first.opt.timestep
    assert again.npair == first.npair


def test_the_parameters_of_a_listed_pair_are_those_of_its_contact(tmp_path: Path):
    geom = '<geom size=".1" pos="0 0 {z}" {settings}/>'
    first = 'priority="{priority}" solmix="3" friction=".1 .2 .3" margin=".01" condim="4"'
    second = 'solmix="1" solref=".04 2" solimp=".5 .6 .01" friction="2 .1 .4" gap=".002"'
    xml = "<mujoco><worldbody>{floor}<body pos='0 0 .1'><freejoint/>{ball}</body></worldbody>"
    xml += "</mujoco>"
    for priority in (0, 1):
        floor = geom.format(z="-.05", settings=first.format(priority=priority))
        path = tmp_path / f"{priority}.xml"
        path.write_text(xml.format(floor=floor, ball=geom.format(z=0, settings=second)))
        plain = mujoco.MjModel.from_xml_path(str(path))
        listed = task.with_listed_pairs(plain, path)
        assert listed.npair == 1
        found, expected = (contact(model) for model in (listed, plain))
        assert found.dim == expected.dim == 4
        for name in ("friction", "solref", "solimp", "includemargin", "geom"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


def contact(compiled: mujoco.MjModel) -> mujoco.MjContact:
    """The only contact at the start."""
    data = mujoco.MjData(compiled)
    mujoco.mj_forward(compiled, data)
    (found,) = data.contact
    return found


def states(compiled: mujoco.MjModel, steps: int = 300) -> np.ndarray:
    """Positions and velocities along a random trajectory, [steps, nq + nv]."""
    random, data = np.random.default_rng(0), mujoco.MjData(compiled)
    found = []
    for _ in range(steps):
        data.ctrl[:] = random.uniform(-1, 1, compiled.nu)
        mujoco.mj_step(compiled, data, 4)
        found.append(np.concatenate((data.qpos, data.qvel)))
    return np.array(found)


def test_a_model_that_never_touches_has_no_contacts_in_gymnasium_either():
    env = gym.make("InvertedDoublePendulum-v5").unwrapped
    env.reset(seed=0)
    for _ in range(200):
        env.step(env.action_space.sample())
        assert env.data.ncon == 0  # type: ignore[attr-defined]
    assert not may_touch(compile_model(Path(env.fullpath)))  # type: ignore[attr-defined]
