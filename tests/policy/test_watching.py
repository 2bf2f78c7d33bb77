import threading
from contextlib import contextmanager

import mujoco.viewer
import numpy as np
import pytest

import walle
from walle.errors import ConfigError
from walle.policy.video import watch


@pytest.fixture
def viewer(monkeypatch):
    """A stand-in for MuJoCo's viewer, which closes after 60 pictures; it keeps the positions."""
    seen = []

    class Viewer:
        def __init__(self, data):
            self._data, self._lock = data, threading.Lock()

        def lock(self):
            return self._lock

        def sync(self):
            seen.append(self._data.qpos.copy())

        def is_running(self):
            return len(seen) < 60

    @contextmanager
    def launch_passive(model, data):
        yield Viewer(data)

    monkeypatch.setattr(mujoco.viewer, "launch_passive", launch_passive)
    monkeypatch.setattr("time.sleep", lambda s: None)
    monkeypatch.setenv("DISPLAY", ":99")
    return seen


@pytest.mark.parametrize("name", ["mujoco", "robot"])
def test_mujoco_s_viewer_shows_what_the_policy_does(trained, viewer, name):
    watch(walle.load(trained(name)))
    assert len(viewer) == 60
    assert len({position.tobytes() for position in viewer}) > 30
    assert np.isfinite(viewer).all()


def test_without_a_display_the_message_says_so(trained, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(ConfigError, match=r"--watch needs a display.*video=FILE\.mp4"):
        watch(walle.load(trained("mujoco")))
