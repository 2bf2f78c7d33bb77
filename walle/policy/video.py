"""Writes films as MP4 or GIF, small enough to send: at most a megabyte a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from walle.errors import ConfigError
from walle.policy.rendering import MOST_FPS, Film

BYTES_PER_S = 1_000_000 / 60
_KBIT_PER_S = 95  # leaves room for the container and the first picture
_STRIP_QUALITY = -0.3  # from -1, of all bits for the text, to 0; moving floors smeared the digits
# GIFs cannot be told a rate: pictures a second, colours and size shrink until the file is small.
_GIF_FPS = 10
_GIF_LEVELS = ((1, 64, 1.0), (2, 32, 1.0), (2, 16, 0.75), (4, 16, 0.75), (4, 8, 0.5), (10, 4, 0.5))


def most_fps(path: Path, setting: str | None = None) -> int:
    """The most pictures a second that a file of this kind will hold.

    Args:
        path: of the file, which need not exist.
        setting: what asks for the file; None for a file that was named by `video=`.

    Raises:
        ConfigError: the ending is neither .mp4 nor .gif, or a package is missing.
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


def write(film: Film, path: Path) -> float:
    """Writes `film` to `path`, which ends with .mp4 or .gif; returns its seconds.

    The file has its name only when it is whole.
    """
    most_fps(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: Callable[[Film, Path], int] = _write_gif if path.suffix == ".gif" else _write_mp4
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        count = writer(film, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count / film.fps


def _write_mp4(film: Film, path: Path) -> int:
    import imageio_ffmpeg

    first = next(film.pictures)
    height, width = (side - side % 2 for side in first.shape[:2])
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), **_mp4_options(film))
    writer.send(None)
    count = 0
    with closing(writer):
        for picture in chain([first], film.pictures):
            writer.send(np.ascontiguousarray(picture[:height, :width]))
            count += 1
    return count


def _mp4_options(film: Film) -> dict[str, Any]:
    strips = [f"addroi={x}:{y}:{w}:{h}:{_STRIP_QUALITY}" for x, y, w, h in film.strips]
    text = ["-vf", ",".join(strips)] if strips else []
    rate = ["-maxrate", f"{_KBIT_PER_S}k", "-bufsize", f"{_KBIT_PER_S // 2}k"]
    return {
        "fps": film.fps,
        "codec": "libx264",
        "quality": None,
        "macro_block_size": 2,
        "ffmpeg_log_level": "error",
        "output_params": ["-crf", "25", *rate, *text, "-preset", "slow", "-movflags", "+faststart"],
    }


def _write_gif(film: Film, path: Path) -> int:
    pictures = [Image.fromarray(picture) for picture in film.pictures]
    limit = BYTES_PER_S * len(pictures) / film.fps
    for every, colours, scale in _GIF_LEVELS:
        frames = list(_reduced(pictures, every, colours, scale))
        frames[0].save(
            path,
            save_all=True,
            append_images=frames[1:],
            duration=round(1000 * every / film.fps),
            loop=0,
        )
        if path.stat().st_size <= limit:
            break
    return len(pictures)


def _reduced(
    pictures: list[Image.Image], every: int, colours: int, scale: float
) -> Iterator[Image.Image]:
    """Some of the pictures, smaller, all with the colours of the one in the middle."""
    size = tuple(round(side * scale) for side in pictures[0].size)
    palette = pictures[len(pictures) // 2].quantize(colours)
    for picture in pictures[::every]:
        small = picture.resize((size[0], size[1])) if scale < 1 else picture
        yield small.quantize(colours, palette=palette, dither=Image.Dither.NONE)
