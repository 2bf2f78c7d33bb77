"""MuJoCo reads no clock while it steps, unless the user gave it one."""

import subprocess
import sys

import pytest

STEPS = """
import mujoco
from walle.envs.mujoco.physics import stop_timers

model = mujoco.MjModel.from_xml_string("<mujoco/>")

def timed():
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 100)
    return data.timer[mujoco.mjtTimer.mjTIMER_STEP]

calls = []
{before}
stop_timers()
last = timed()
print(last.duration > 0, len(calls) > 0)
"""


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("assert timed().duration > 0", ["False", "False"]),
        ("mujoco.set_mjcb_time(lambda: calls.append(1) or len(calls))", ["True", "True"]),
    ],
    ids=["the package's clock stops", "one's own goes on"],
)
def test_what_stops(before, expected):
    script = STEPS.format(before=before)  # of a process of its own: the variable is the process's
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.split() == expected, found.stderr
