"""Videos that a run makes of its policy while it learns."""

import subprocess
import sys

import pytest

import walle
from tests.policy.conftest import SMALL_NET, TINY, settings
from tests.policy.test_video import assert_shows_movement, pictures_of
from walle.errors import ConfigError
from walle.policy import filming, rendering

FILMED = [*TINY, *SMALL_NET, *settings("ppo"), "eval.every=null", "logger.video_every=128"]


@pytest.fixture
def trained_with(monkeypatch, tmp_path):
    """Trains with further settings; episodes of 20 steps are filmed."""
    monkeypatch.setattr(rendering, "LONGEST", 20)

    def _trained(*overrides):
        walle.train(walle.compose([*FILMED, *overrides]), tmp_path)
        return tmp_path

    return _trained


def test_files_lie_in_the_directory_of_the_run(trained_with):
    videos = trained_with("env=pendulum") / "videos"
    assert {file.name for file in videos.iterdir()} == {"128.mp4", "256.mp4"}
    assert_shows_movement(pictures_of(videos / "256.mp4")[0])


def test_a_film_may_show_the_beginning_of_the_episode(trained_with):
    videos = trained_with("env=pendulum", "logger.video_steps=8") / "videos"
    pictures, _ = pictures_of(videos / "256.mp4")
    assert 5 <= len(pictures) <= 9  # of 15 a second, where Pendulum draws 30


def test_tensorboard_gets_a_moving_picture(trained_with):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = trained_with("env=pendulum", "logger=tensorboard")
    events = EventAccumulator(str(directory / "tensorboard")).Reload()
    first, last = events.Images("eval/video")
    assert (first.step, last.step, last.width, last.height) == (128, 256, 480, 360)
    assert last.encoded_image_string == (directory / "videos" / "256.gif").read_bytes()
    assert_shows_movement(pictures_of(directory / "videos" / "256.gif")[0])


SCRIPT = """
import walle
from walle.policy import rendering

rendering.LONGEST = 20
walle.train(walle.compose({overrides}), {directory!r})
"""


@pytest.mark.slow
def test_wandb_gets_the_file(tmp_path):
    """In a process of its own, because W&B's service lasts as long as the process."""
    overrides = [*FILMED, "env=pendulum", "logger=wandb", "logger.mode=offline"]
    script = SCRIPT.format(overrides=overrides, directory=str(tmp_path))
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    found = sorted((tmp_path / "wandb").glob("offline-run-*/files/media/videos/eval/*.mp4"))
    sent = {file.read_bytes() for file in found}
    assert sent == {file.read_bytes() for file in (tmp_path / "videos").iterdir()}
    assert len(sent) == 2


def test_what_cannot_be_drawn_is_refused_before_anything_is_written(trained_with, tmp_path):
    with pytest.raises(ConfigError, match=r"tests\.toy:Constant-v0"):
        trained_with("env=gym", "env.id=tests.toy:Constant-v0")
    assert not list(tmp_path.iterdir())


def test_a_driver_that_fails_later_ends_no_run(trained_with, monkeypatch, capsys):
    def write(*_):
        raise OSError("the driver crashed")

    monkeypatch.setattr(filming, "write", write)
    directory = trained_with("env=pendulum", "logger.progress=lines")
    assert capsys.readouterr().out.count("steps: the driver crashed") == 2
    assert (directory / "checkpoints" / "last.pt").exists()


def test_videos_change_nothing_that_is_learned(trained_with, tmp_path):
    filmed = walle.load(trained_with("env=pendulum"), "last").snapshot.vector
    config = walle.compose([*FILMED, "env=pendulum", "logger.video_every=null"])
    walle.train(config, tmp_path / "plain")
    plain = walle.load(tmp_path / "plain", "last").snapshot.vector
    assert (filmed == plain).all()
