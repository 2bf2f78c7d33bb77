"""Videos, also of learning, read again with the library's reader: size and content."""

import re
import subprocess
import sys
from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import walle
from tests.policy.conftest import SMALL_NET, TINY, settings
from walle import eval as command
from walle.errors import ConfigError
from walle.policy import acting, video
from walle.policy.video import BYTES_PER_S, SHORT_S, Video, film, most_fps, write


def pictures_of(path):
    """All pictures of an MP4 or a GIF, [T, H, W, 3], and its seconds."""
    if path.suffix == ".gif":
        image, found, seconds = Image.open(path), [], 0.0
        for i in range(image.n_frames):
            image.seek(i)
            found.append(np.asarray(image.convert("RGB")))
            seconds += image.info["duration"] / 1000
        return np.stack(found), seconds
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    width, height = about["size"]
    found = [np.frombuffer(each, np.uint8).reshape(height, width, 3) for each in reader]
    return np.stack(found), len(found) / about["fps"]


def assert_shows_movement(pictures):
    """Not black, and something below the captions moves."""
    below = pictures[:, 60:].astype(int)
    assert below[0].std() > 10
    assert below[0].mean() > 5
    assert (abs(below[-1] - below[0]).max(-1) > 60).sum() > 20


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Episodes of 40 steps at most."""
    monkeypatch.setattr(video, "LONGEST", 40)


@pytest.fixture
def policy(trained):
    return lambda name: walle.load(trained(name), "last", trust=True)


@pytest.mark.parametrize("ending", [".mp4", ".gif"])
def test_a_gymnasium_task_is_drawn(policy, tmp_path, ending):
    path = tmp_path / f"a{ending}"
    found = film([policy("ppo")], most_fps=most_fps(path))
    seconds = write(found, path)
    pictures, read_s = pictures_of(path)
    assert_shows_movement(pictures)
    assert seconds == pytest.approx(read_s, rel=0.1)
    assert seconds == pytest.approx(40 / 30, rel=0.15)  # Pendulum draws 30 pictures a second
    assert len(pictures) >= 9 * seconds
    assert path.stat().st_size <= BYTES_PER_S * (SHORT_S if ending == ".gif" else seconds)


def test_a_speed_of_drawing_that_is_not_known_is_30(policy, tmp_path, monkeypatch):
    found = policy("ppo")
    make = found.env

    def env(*arguments):
        made = make(*arguments)
        made.unwrapped.metadata = made.metadata | {"render_fps": None}
        return made

    monkeypatch.setattr(found, "env", env)
    assert film([found]).fps == 30


@pytest.mark.parametrize("name", ["mujoco", "robot"])
def test_mujoco_is_drawn_off_screen(policy, tmp_path, name, monkeypatch):
    monkeypatch.setattr(video, "LONGEST", 12)
    path = tmp_path / "a.mp4"
    write(film([policy(name)]), path)
    assert_shows_movement(pictures_of(path)[0])


def test_a_robot_that_runs_away_stays_in_the_picture(policy):
    """Hopper at the start and after 200 m: the same picture, on a floor that does not end."""
    env = policy("mujoco").env("rgb_array", width=96, height=72)
    env.reset(seed=0)
    inner, begin = env.unwrapped, env.render().astype(int)
    ahead = np.eye(inner.model.nq)[0]
    period = 40 / 60  # metres; the floor repeats its texture 60 times in 40 m
    inner.set_state(inner.data.qpos + 300 * period * ahead, inner.data.qvel)
    away = env.render().astype(int)
    inner.set_state(inner.data.qpos + period / 2 * ahead, inner.data.qvel)
    moved = env.render().astype(int)
    env.close()
    assert begin.std() > 30
    assert abs(away - begin).mean() < 3  # but for the shadow
    assert abs(moved - begin).mean() > 6  # the floor below it moves


def test_drawing_changes_no_step(policy):
    """The floor's drawn size is nothing to the simulation."""
    drawn, plain = (policy("mujoco").env(mode) for mode in ("rgb_array", None))
    found = []
    for env in (drawn, plain):
        obs, _ = env.reset(seed=1)
        actions = np.random.default_rng(0).uniform(-1, 1, (60, *env.action_space.shape))
        found.append([obs, *(env.step(action.astype(np.float32))[0] for action in actions)])
        env.close()
    assert np.array_equal(*map(np.array, found))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_film_shows_the_episodes_of_an_evaluation(policy, deterministic):
    actor = policy("ppo")
    before = actor.rng.bit_generator.state
    evaluated = walle.evaluate(actor, 2, seed=3, deterministic=deterministic).returns
    for number, expected in enumerate(evaluated):
        with closing(actor.env()) as env:
            *_, (total, _, ended) = video._play(actor, env, 3, number, deterministic)
        assert (total, ended) == (pytest.approx(expected), True)
    assert actor.rng.bit_generator.state == before


def test_a_film_that_is_broken_off_leaves_no_file(tmp_path):
    def pictures():
        yield from np.full((9, 64, 64, 3), 200, np.uint8)
        raise KeyboardInterrupt

    for name in ("a.mp4", "a.gif"):
        with pytest.raises(KeyboardInterrupt):
            write(Video(pictures(), 9.0), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_several_policies_stand_in_a_grid(policy, tmp_path):
    names = ["discrete", "ppo", "sac"]
    grid = film([policy(name) for name in names], names)
    assert grid.strips == [(0, 0, 360, 40), (360, 0, 360, 40), (0, 270, 360, 40)]
    found = list(grid.pictures)
    assert len(found) == 21  # CartPole draws 50 pictures a second
    assert found[0].shape == (2 * 270, 2 * 360, 3)
    assert found[0][270:, 360:].max() == 0  # the fourth place is empty


def test_the_last_picture_of_a_shorter_episode_stays():
    one, other = ([np.full((2, 3, 3), n, np.uint8) for n in numbers] for numbers in ([1], [2, 3]))
    found = list(video._side_by_side([iter(one), iter(other)], 2))
    assert [picture[0, ::3, 0].tolist() for picture in found] == [[1, 2], [1, 3]]


def test_return_and_step_are_written_on_the_picture():
    blank = np.full((360, 480, 3), 255, np.uint8)
    one, other = (video._captioned(blank, "ppo", 12.5, step) for step in (3, 4))
    assert (one[60:] == 255).all()
    assert (one[:50] != other[:50]).any()
    assert (one[:22] == other[:22]).all()  # the label
    assert {0, 255} & set(one[:50].ravel().tolist()) == {255}


@pytest.mark.slow
def test_a_restless_picture_stays_small(tmp_path):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (120, 36, 48, 3), np.uint8).repeat(10, 1).repeat(10, 2)
    for name in ("a.mp4", "a.gif"):
        seconds = write(Video(iter(noise), 20.0), tmp_path / name)
        assert seconds == 6
        limit_s = SHORT_S if name == "a.gif" else seconds
        assert (tmp_path / name).stat().st_size <= BYTES_PER_S * limit_s


@pytest.mark.slow
def test_return_and_step_stay_readable_above_a_restless_picture(tmp_path):
    """A floor that moves takes the bits of the digits: they were smeared after a second."""
    random = np.random.default_rng(0)
    shown = np.full((60, 360, 480, 3), 128, np.uint8)
    floor = random.integers(98, 159, (60, 16, 48, 1), np.uint8)
    shown[:, 200:] = floor.repeat(10, 1).repeat(10, 2)
    drawn = np.stack([video._captioned(each, "", 37.3 * i, i) for i, each in enumerate(shown)])
    errors = []
    for strips in ((), ((0, 0, 480, 26),)):
        path = tmp_path / "a.mp4"
        write(Video(iter(drawn), 20.0, strips), path)
        read = pictures_of(path)[0]
        errors.append(abs(read[20:, :24].astype(int) - drawn[20:, :24]).mean())
    assert errors[1] < errors[0] / 2


def test_odd_sizes_are_cut_to_even_ones(tmp_path):
    write(Video(iter(np.full((9, 101, 99, 3), 200, np.uint8)), 9.0), tmp_path / "a.mp4")
    assert pictures_of(tmp_path / "a.mp4")[0].shape == (9, 100, 98, 3)


def test_what_cannot_be_drawn_is_explained(policy, tmp_path, monkeypatch):
    env = gym.Env()
    with pytest.raises(ConfigError, match=r"the ending must be \.mp4 or \.gif"):
        most_fps(tmp_path / "a.avi")
    with pytest.raises(ConfigError, match=r"Env draws no pictures: render\(\) must return \[h"):
        video._render(gym.Env(), (480, 360))
    for drawn in (np.zeros((9, 9, 3)), np.zeros((9, 9, 3), int), np.zeros((9, 9, 1), np.uint8), []):
        env.render = lambda drawn=drawn: drawn
        shown = re.escape(f"{drawn.dtype} {list(drawn.shape)}" if len(drawn) else "[]")
        with pytest.raises(ConfigError, match=f"draws no pictures: .*, and it returned {shown}"):
            video._render(env, (480, 360))
    env.render = lambda: np.full((36, 48, 4), 100, np.uint8)
    picture = video._render(env, (48, 36))
    assert (picture.shape, picture.min(), picture.max()) == ((36, 48, 3), 100, 100)
    with pytest.raises(ConfigError, match="17 policies in one video"):
        film([policy("discrete")] * 17)
    with pytest.raises(ConfigError, match=r"tests\.toy:Recall-v0"):
        list(film([policy("memory")]).pictures)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r"install walle\[video\], or write a \.gif"):
        most_fps(tmp_path / "a.mp4")
    with pytest.raises(ConfigError, match=r"^logger\.video_every needs .* walle\[video\]$"):
        most_fps(tmp_path / "a.mp4", "logger.video_every")


def test_without_egl_and_osmesa_the_message_says_what_to_install(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(acting, "_TRIAL", "import no_such_module_{0}")
    with pytest.raises(ConfigError, match=r"install libegl1 \(EGL\) or libosmesa6.*apt-get"):
        acting._choose_mujoco_backend()


def test_the_command_writes_a_video(trained, tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.gif"
    arguments = [str(trained("discrete")), "episodes=2", f"video={path}", "video_steps=7"]
    monkeypatch.setattr("sys.argv", ["walle eval", *arguments])
    assert command.main() == 0
    out = capsys.readouterr().out
    assert out.index("drawing the video, 7 actions: ") < out.index(f"video: {path}, ")
    assert_shows_movement(pictures_of(path)[0])


def test_a_wrong_video_is_refused_before_the_evaluation(trained, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["walle eval", str(trained("discrete")), "video=a.avi"])
    assert command.main() == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)


FILMED = [*TINY, *SMALL_NET, *settings("ppo"), "eval.episodes=0", "logger.video_every=128"]


@pytest.fixture
def trained_with(monkeypatch, tmp_path):
    """Trains with further settings; episodes of 20 steps are filmed."""
    monkeypatch.setattr(video, "LONGEST", 20)

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
    (named,) = (directory / "tensorboard").iterdir()
    events = EventAccumulator(str(named)).Reload()
    first, last = events.Images("eval/video")
    assert (first.step, last.step, last.width, last.height) == (128, 256, 480, 360)
    assert last.encoded_image_string == (directory / "videos" / "256.gif").read_bytes()
    assert_shows_movement(pictures_of(directory / "videos" / "256.gif")[0])


SCRIPT = """
import walle
from walle.policy import video

video.LONGEST = 20
walle.train(walle.compose({overrides}), {directory!r})
"""


@pytest.mark.slow
def test_wandb_gets_the_file(tmp_path):
    """In a process of its own, because W&B's service lasts as long as the process."""
    overrides = [*FILMED, "env=pendulum", "logger=wandb", "logger.mode=offline"]
    script = SCRIPT.format(overrides=overrides, directory=str(tmp_path))
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=True, capture_output=True, timeout=500)
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

    monkeypatch.setattr(video, "write", write)
    directory = trained_with("env=pendulum", "logger.progress=lines")
    assert capsys.readouterr().out.count("steps: the driver crashed") == 2
    assert (directory / "checkpoints" / "last.pt").exists()


def test_videos_change_nothing_that_is_learned(trained_with, tmp_path):
    filmed = walle.load(trained_with("env=pendulum"), "last").snapshot.vector
    config = walle.compose([*FILMED, "env=pendulum", "logger.video_every=null"])
    walle.train(config, tmp_path / "plain")
    plain = walle.load(tmp_path / "plain", "last").snapshot.vector
    assert (filmed == plain).all()
