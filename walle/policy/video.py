"""Shows episodes of policies: in a window, or as MP4 and GIF of at most a megabyte a minute.

`watch` opens a window. `film` draws episodes, with the return and the step shown on every frame,
and `write` encodes them. Each frame is drawn only when `write` asks for it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import copy
from itertools import chain, count, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, ImageOps

from walle.agent.evaluation import LONGEST
from walle.envs.gymnasium_lanes import real_number
from walle.envs.mujoco.registry import find_robot
from walle.envs.single import RobotEnv
from walle.errors import ConfigError, RolloutError, what_went_wrong
from walle.policy.acting import Policy, has_display, is_mujoco
from walle.streams import afterwards_noise, afterwards_seed, kept_globals, seed_globals
from walle.types import PolicySnapshot

Picture = npt.NDArray[np.uint8]
MOST_FPS = 30
MOST_FPS_WHILE_LEARNING = 15  # a picture may cost a tenth of a second
BYTES_PER_S = 1_000_000 / 60
SHORT_S = 15.0  # a shorter GIF may have as many bytes as one of this length
_WIDTHS = {1: 480, 2: 360, 3: 240}  # of a picture, by the columns of the grid
_KBIT_PER_S = 95  # leaves room for the container and the first picture
_STRIP_QUALITY = -0.3  # qoffset of addroi, -1 is best; at 0, moving floors smear the digits
# GIFs have no bit rate to set: frame rate, colours and size shrink until the file is small.
_GIF_FPS = 10
_GIF_LEVELS = ((1, 64, 1.0), (2, 32, 1.0), (2, 16, 0.75), (4, 16, 0.75), (4, 8, 0.5), (10, 4, 0.5))


class Video(NamedTuple):
    """A video before it is written."""

    pictures: Iterator[Picture]  # [H, W, 3] each
    fps: float  # pictures a second
    # left, top, width and height of the areas with text, which must stay readable
    strips: Sequence[tuple[int, int, int, int]] = ()


def _play(
    policy: Policy,
    env: gym.Env[Any, Any],
    seed: int,
    number: int,
    deterministic: bool,
    most_steps: float = math.inf,
) -> Iterator[tuple[float, int, bool]]:
    """Plays episode `number` of those that `walle.evaluate` runs with this seed.

    Yields the return and the actions so far, and whether the episode has ended: before every
    action and at the end. Raises RolloutError if the environment fails.
    """
    policy = copy(policy)  # the caller's noise does not change
    policy.rng = afterwards_noise(seed, number)
    seed_globals(seed, "afterwards", number)
    state, total, step, ended = policy.initial_state(), 0.0, 0, False
    try:
        obs, _ = env.reset(seed=afterwards_seed(seed, number))
        while not ended:
            yield total, step, ended
            action, state = policy.act(obs, state, deterministic)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, step = total + real_number(reward), step + 1
            ended = terminated or truncated or step >= most_steps
    except Exception as error:
        message = f"the episode cannot be shown beyond step {step}: {what_went_wrong(error)}"
        raise RolloutError(message) from error
    yield total, step, ended


@kept_globals()
def watch(policy: Policy, *, seed: int = 0, deterministic: bool = True) -> None:
    """Runs episodes in real time until the window is closed.

    Environments that open their own window run a single episode. With equal seeds the episodes are
    those of `walle.evaluate`, in their order. Without a display it raises a `ConfigError`.
    """
    if not has_display():
        raise ConfigError(
            "--watch needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set; use "
            "video=FILE.mp4 here"
        )
    policy.check_env()
    env = policy.env()
    inner: Any = env.unwrapped
    if not is_mujoco(inner):
        env.close()
        with closing(policy.env("human")) as env:
            for _ in _play(policy, env, seed, 0, deterministic):
                pass
        return
    import mujoco.viewer

    step_s = policy.spec.frame_skip / (env.metadata.get("render_fps") or 30)
    with closing(env), mujoco.viewer.launch_passive(inner.model, inner.data) as viewer:
        for number in count():
            next_at = time.monotonic()
            for _, _, ended in _play(policy, env, seed, number, deterministic):
                time.sleep(max(0.0, next_at - time.monotonic()))
                next_at = time.monotonic() + step_s
                if ended:
                    break
                with viewer.lock():
                    if isinstance(inner, RobotEnv):
                        inner.sync()
                viewer.sync()
                if not viewer.is_running():
                    return


def film(
    policies: Sequence[Policy],
    labels: Sequence[str] = (),
    *,
    seed: int = 0,
    deterministic: bool = True,
    most_fps: int = MOST_FPS,
    most_steps: int | None = None,
) -> Video:
    """An episode of every policy, side by side; a shorter one's last frame stays.

    Each is the first episode that `walle.evaluate` runs with this seed. At most sixteen policies
    fit, and `labels` has a line of text for each. Frames are dropped if an environment draws more
    than `most_fps` a second. The video ends after `most_steps` actions; None shows whole episodes.
    If an environment cannot be drawn here, a `ConfigError` states what to install.
    """
    if not 1 <= len(policies) <= 16:
        raise ConfigError(f"{len(policies)} policies in one video: give 1 to 16")
    columns = math.ceil(math.sqrt(len(policies)))
    width = _WIDTHS.get(columns, 160)
    size = (width, width * 3 // 4)
    envs = [_drawn_env(policy, size) for policy in policies]
    pace = (envs[0].metadata.get("render_fps") or MOST_FPS) / policies[0].spec.frame_skip
    every, steps = math.ceil(pace / most_fps), most_steps or LONGEST
    captions = [*labels, *[""] * (len(policies) - len(labels))]

    def drawn(policy: Policy, env: gym.Env[Any, Any], caption: str) -> Iterator[Picture]:
        picture: Picture
        with closing(env):
            for total, step, ended in _play(policy, env, seed, 0, deterministic, steps):
                if step % every and not ended:
                    continue
                if not ended or not isinstance(env.unwrapped, RobotEnv):  # it began the next one
                    picture = _render(env, size)
                yield _captioned(picture, caption, total, step)

    episodes = list(map(drawn, policies, envs, captions))
    strips = [
        (i % columns * size[0], i // columns * size[1], size[0], _text(size[0], caption)[1])
        for i, caption in enumerate(captions)
    ]
    return Video(_side_by_side(episodes, columns), pace / every, strips)


def film_while_learning(
    directory: Path, ending: str, policy: Policy, most_steps: int | None = None
) -> Callable[[PolicySnapshot, int], Path]:
    """A function that films a snapshot of `policy` into a run's directory.

    It takes the snapshot and the environment steps so far, and returns the file, videos/STEPS.mp4
    or .gif, as `ending` says. One frame is drawn immediately, so that an environment that cannot be
    drawn is refused before the run starts. `most_steps` is as for `film`.
    """
    most = most_fps(Path(f"videos/STEPS{ending}"), "logger.video_every")
    fps = min(MOST_FPS_WHILE_LEARNING, most)
    next(film([policy], most_fps=fps, most_steps=most_steps).pictures)

    def film_snapshot(snapshot: PolicySnapshot, env_steps: int) -> Path:
        path = directory / "videos" / f"{env_steps}{ending}"
        policy.use(snapshot)
        write(film([policy], most_fps=fps, most_steps=most_steps), path)
        return path

    return film_snapshot


def _side_by_side(episodes: Sequence[Iterator[Picture]], columns: int) -> Iterator[Picture]:
    last: list[Picture] = []
    with kept_globals():
        for pictures in zip_longest(*episodes):
            last = [new if new is not None else old for new, old in zip_longest(pictures, last)]
            blank = [np.zeros_like(last[0])] * (-len(last) % columns)
            cells = [*last, *blank]
            rows = [np.hstack(cells[i : i + columns]) for i in range(0, len(cells), columns)]
            yield np.vstack(rows)


def _render(env: gym.Env[Any, Any], size: tuple[int, int]) -> Picture:
    """The picture that the environment draws, fitted into [height, width, 3]."""
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    try:
        drawn: Any = env.render()
    except NotImplementedError:
        drawn = None
    except Exception as error:
        raise ConfigError(f"{name} cannot be drawn: {what_went_wrong(error)}") from error
    is_array = isinstance(drawn, np.ndarray)
    if not is_array or drawn.dtype != np.uint8 or drawn.ndim != 3 or drawn.shape[2] not in (3, 4):
        shown = f"{drawn.dtype} {list(drawn.shape)}" if is_array else f"{drawn!r:.40}"
        raise ConfigError(
            f"{name} draws no pictures: render() must return [height, width, 3] bytes with "
            f'render_mode="rgb_array", and it returned {shown}'
        )
    return np.asarray(ImageOps.pad(Image.fromarray(drawn).convert("RGB"), size))


def _captioned(picture: Picture, label: str, total: float, step: int) -> Picture:
    """The picture with one or two lines of text on a dark strip at its top."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image, "RGBA")
    size, height = _text(image.width, label)
    lines = [*([label] if label else []), f"return {total:,.1f}   step {step:,}"]
    draw.rectangle((0, 0, image.width, height), fill=(0, 0, 0, 150))
    font = ImageFont.load_default(size)
    for i, line in enumerate(lines):
        draw.text((5, 1 + i * (size + 4)), line, fill=(255, 255, 255, 255), font=font)
    return np.asarray(image)


def _text(width: int, label: str) -> tuple[int, int]:
    """The size of the text on a picture, and the height of the strip with its lines."""
    size = max(11, width // 24)
    return size, (size + 4) * (2 if label else 1) + 2


def _drawn_env(policy: Policy, size: tuple[int, int]) -> gym.Env[Any, Any]:
    """The policy's environment, made to draw off screen, in the picture's size if it takes one."""
    policy.check_env()
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would complain on stderr
    registered = gym.registry.get(policy.spec.id)
    entry = str(registered.entry_point) if registered else ""
    robot = policy.spec.backend != "envpool" and find_robot(policy.spec.id) is not None
    takes_size = entry.startswith("gymnasium.envs.mujoco") or robot
    takes_size &= "render_mode" not in policy.spec.kwargs  # else the policy sees these pictures
    sizes = {"width": size[0], "height": size[1]} if takes_size else {}
    try:
        return policy.env("rgb_array", **sizes)
    except ConfigError as error:
        raise ConfigError(f'{error} (for render_mode="rgb_array")') from error
    except Exception as error:  # it refuses to draw off screen
        made = f'{policy.spec.id} cannot be made with render_mode="rgb_array"'
        raise ConfigError(f"{made}: {what_went_wrong(error)}") from error


def most_fps(path: Path, setting: str | None = None) -> int:
    """The maximum frames per second of a file with this extension.

    Refuses extensions other than .mp4 and .gif, and .mp4 without its package. `setting` names the
    setting that asks for the file, `video=` by default.
    """
    if path.suffix == ".gif":
        return _GIF_FPS
    if path.suffix != ".mp4":
        raise ConfigError(f"video={path}: the ending must be .mp4 or .gif")
    try:
        import imageio_ffmpeg  # noqa: F401
    except ModuleNotFoundError:
        asks = setting or f"video={path}"
        other = "" if setting else ", or write a .gif"
        raise ConfigError(
            f"{asks} needs a package that is missing; install walle[video]{other}"
        ) from None
    return MOST_FPS


def write(video: Video, path: Path) -> float:
    """Writes `video` to `path`, which ends with .mp4 or .gif; returns its length in seconds.

    The file gets its name only when it is complete.
    """
    most_fps(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        written = (_write_gif if path.suffix == ".gif" else _write_mp4)(video, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return written / video.fps


def _write_mp4(video: Video, path: Path) -> int:
    import imageio_ffmpeg

    first = next(video.pictures)
    height, width = (side - side % 2 for side in first.shape[:2])
    strips = [f"addroi={x}:{y}:{w}:{h}:{_STRIP_QUALITY}" for x, y, w, h in video.strips]
    text = ["-vf", ",".join(strips)] if strips else []
    rate = ["-maxrate", f"{_KBIT_PER_S}k", "-bufsize", f"{_KBIT_PER_S // 2}k"]
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (width, height),
        fps=video.fps,
        codec="libx264",
        quality=None,
        macro_block_size=2,
        ffmpeg_log_level="error",
        output_params=["-crf", "25", *rate, *text, "-preset", "slow", "-movflags", "+faststart"],
    )
    writer.send(None)
    written = 0
    with closing(writer):
        for picture in chain([first], video.pictures):
            writer.send(np.ascontiguousarray(picture[:height, :width]))
            written += 1
    return written


def _write_gif(video: Video, path: Path) -> int:
    pictures = [Image.fromarray(picture) for picture in video.pictures]
    limit = BYTES_PER_S * max(len(pictures) / video.fps, SHORT_S)
    for every, colours, scale in _GIF_LEVELS:
        # All pictures have the colours of the one in the middle.
        palette = pictures[len(pictures) // 2].quantize(colours)
        width, height = (round(side * scale) for side in pictures[0].size)
        frames = [
            (picture.resize((width, height)) if scale < 1 else picture).quantize(
                colours, palette=palette, dither=Image.Dither.NONE
            )
            for picture in pictures[::every]
        ]
        frames[0].save(
            path,
            save_all=True,
            append_images=frames[1:],
            duration=round(1000 * every / video.fps),
            loop=0,
        )
        if path.stat().st_size <= limit:
            break
    return len(pictures)
