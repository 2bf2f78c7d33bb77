"""Pictures of episodes: what an environment draws, with the return and the step written on it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, ImageOps

from walle.agent.evaluation import LONGEST
from walle.envs.single import RobotEnv
from walle.errors import ConfigError, what_went_wrong
from walle.policy.acting import Policy
from walle.policy.drawing import has_display
from walle.streams import afterwards_seed

Picture = npt.NDArray[np.uint8]
MOST_FPS = 30
_WIDTHS = {1: 480, 2: 360, 3: 240}  # of a picture, by the columns of the grid


class Film(NamedTuple):
    """A video before it is written.

    Attributes:
        pictures: [H, W, 3] each.
        fps: how many pictures make a second.
        strips: left, top, width and height of the places with text, which must stay readable.
    """

    pictures: Iterator[Picture]
    fps: float
    strips: Sequence[tuple[int, int, int, int]] = ()


def film(
    policies: Sequence[Policy],
    labels: Sequence[str] = (),
    *,
    seed: int = 0,
    deterministic: bool = True,
    most_fps: int = MOST_FPS,
    most_steps: int | None = None,
) -> Film:
    """An episode of every policy, side by side; the last picture of a shorter one stays.

    It is the first episode that `walle.evaluate` runs with this seed.

    Args:
        policies: at most sixteen.
        labels: a line for each picture; none by default.
        seed: as for `walle.evaluate`.
        deterministic: take the likeliest actions.
        most_fps: pictures are left out where an environment draws more in a second.
        most_steps: the film ends after so many actions; None shows whole episodes.

    Raises:
        ConfigError: an environment cannot be drawn here; the message says what to install.
    """
    if not 1 <= len(policies) <= 16:
        raise ConfigError(f"{len(policies)} policies in one video: give 1 to 16")
    columns = math.ceil(math.sqrt(len(policies)))
    width = _WIDTHS.get(columns, 160)
    size = (width, width * 3 // 4)
    envs = [_drawn_env(policy, size) for policy in policies]
    pace = envs[0].metadata.get("render_fps", MOST_FPS) / policies[0].spec.frame_skip
    every = math.ceil(pace / most_fps)
    captions = [*labels, *[""] * (len(policies) - len(labels))]
    episodes = [
        _episode(policy, env, size, caption, seed, deterministic, every, most_steps or LONGEST)
        for policy, env, caption in zip(policies, envs, captions, strict=True)
    ]
    strips = [
        (i % columns * size[0], i // columns * size[1], size[0], _strip_height(size[0], caption))
        for i, caption in enumerate(captions)
    ]
    return Film(_side_by_side(episodes, columns), pace / every, strips)


def _episode(
    policy: Policy,
    env: gym.Env[Any, Any],
    size: tuple[int, int],
    label: str,
    seed: int,
    deterministic: bool,
    every: int,
    most_steps: int,
) -> Iterator[Picture]:
    """The pictures before every action, or before some; the last one is not left out."""
    obs, _ = env.reset(seed=afterwards_seed(seed, 0))
    state, total, step, ended = policy.initial_state(), 0.0, 0, False
    picture: Picture | None = None
    while not ended and step < most_steps:
        if step % every == 0:
            picture = _render(env, size)
            yield _captioned(picture, label, total, step)
        action, state = policy.act(obs, state, deterministic)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, step, ended = total + float(reward), step + 1, terminated or truncated
    if not isinstance(env.unwrapped, RobotEnv):  # which has begun the next episode
        picture = _render(env, size)
    assert picture is not None
    yield _captioned(picture, label, total, step)
    env.close()


def _side_by_side(episodes: Sequence[Iterator[Picture]], columns: int) -> Iterator[Picture]:
    last: list[Picture] = []
    for found in zip_longest(*episodes):
        last = [new if new is not None else old for new, old in zip_longest(found, last)]
        blank = [np.zeros_like(last[0])] * (-len(last) % columns)
        cells = [*last, *blank]
        rows = [np.hstack(cells[i : i + columns]) for i in range(0, len(cells), columns)]
        yield np.vstack(rows)


def _render(env: gym.Env[Any, Any], size: tuple[int, int]) -> Picture:
    """The picture that the environment draws, fitted into [height, width, 3]."""
    try:
        drawn: Any = env.render()
    except NotImplementedError:
        drawn = None
    except Exception as error:
        raise ConfigError(f"{_name(env)} cannot be drawn: {what_went_wrong(error)}") from error
    if not isinstance(drawn, np.ndarray) or drawn.ndim != 3:
        raise ConfigError(
            f"{_name(env)} draws no pictures: render() must return [height, width, 3] bytes with "
            'render_mode="rgb_array"'
        )
    return np.asarray(ImageOps.pad(Image.fromarray(drawn), size))


def _captioned(picture: Picture, label: str, total: float, step: int) -> Picture:
    """The picture with one or two lines of text on a dark strip at its top."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image, "RGBA")
    size = _text_size(image.width)
    lines = [*([label] if label else []), f"return {total:,.1f}   step {step:,}"]
    draw.rectangle((0, 0, image.width, _strip_height(image.width, label)), fill=(0, 0, 0, 150))
    font = ImageFont.load_default(size)
    for i, line in enumerate(lines):
        draw.text((5, 1 + i * (size + 4)), line, fill=(255, 255, 255, 255), font=font)
    return np.asarray(image)


def _text_size(width: int) -> int:
    return max(11, width // 24)


def _strip_height(width: int, label: str) -> int:
    """The height of the strip with return and step, and with a label above them if there is one."""
    return (_text_size(width) + 4) * (2 if label else 1) + 2


def _drawn_env(policy: Policy, size: tuple[int, int]) -> gym.Env[Any, Any]:
    """The policy's environment, made to draw off screen.

    Raises:
        ConfigError: it cannot; the message says what to install.
    """
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would complain on stderr
    try:
        env = policy.env("rgb_array", **_size_arguments(policy, size))
    except ConfigError as error:
        raise ConfigError(f'{error} (for render_mode="rgb_array")') from error
    return env


def _size_arguments(policy: Policy, size: tuple[int, int]) -> dict[str, int]:
    """Arguments for the picture's size, if the environment is known to take them."""
    sizes = dict(zip(("width", "height"), size, strict=True))
    registered = gym.registry.get(policy.spec.id)
    ours = registered is None and ":" in policy.spec.id
    if ours:
        from walle.envs.mujoco.registry import find_robot

        return sizes if find_robot(policy.spec.id) is not None else {}
    entry = "" if registered is None else str(registered.entry_point)
    return sizes if entry.startswith("gymnasium.envs.mujoco") else {}


def _name(env: gym.Env[Any, Any]) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__
