"""Observations that hold images, as rows of bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from walle.errors import ConfigError, RolloutError
from walle.types import LEAST_PIXELS, AnyArray, FloatArray, Image, ObsLayout


def image_of(space: gym.Space[Any]) -> Image | None:
    """The image that a space holds, by the rule of Stable-Baselines3; None for another space.

    An image is a Box of uint8 from 0 to 255 with two dimensions, or with three, of which the
    smallest is the channels and stands first or last. It has `LEAST_PIXELS` a side at least.
    """
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
        return None
    if len(space.shape) not in (2, 3) or (space.low != 0).any() or (space.high != 255).any():
        return None
    image = Image(space.shape, len(space.shape) == 3 and int(np.argmin(space.shape)) == 0)
    return image if min(image.chw[1:]) >= LEAST_PIXELS else None


def has_image(space: gym.Space[Any]) -> bool:
    """Whether a space is an image, or has one among its entries."""
    return any(image_of(part) is not None for part in _parts(space))


def _parts(space: gym.Space[Any]) -> Iterator[gym.Space[Any]]:
    """The spaces in nested Dicts and Tuples, in their order."""
    if isinstance(space, gym.spaces.Dict):
        space = gym.spaces.Tuple(tuple(space.spaces.values()))
    if isinstance(space, gym.spaces.Tuple):
        for part in space.spaces:
            yield from _parts(part)
    else:
        yield space


def _values(space: gym.Space[Any], obs: Any) -> Iterator[Any]:
    """The entries of an observation in the order of `_parts`."""
    if isinstance(space, gym.spaces.Dict):
        for name, part in space.spaces.items():
            yield from _values(part, obs[name])
    elif isinstance(space, gym.spaces.Tuple):
        for part, value in zip(space.spaces, obs, strict=True):
            yield from _values(part, value)
    else:
        yield obs


class ObservationRows(gym.spaces.Box):
    """The rows of bytes that hold the observations of another space, of which some are images.

    All other entries are flattened as Gymnasium does it, in the order of the space.

    Attributes:
        original: the other space.
        layout: how a row is arranged.
    """

    def __init__(self, original: gym.Space[Any], where: str) -> None:
        """Arranges `original`; `where` names the environment in messages.

        Raises:
            ConfigError: an entry is neither an image nor flattens to a vector of a fixed length.
        """
        self.original = original
        self._spaces = list(_parts(original))
        self._images = [image_of(space) for space in self._spaces]
        vector = 0
        for space, image in zip(self._spaces, self._images, strict=True):
            if image is None and not space.is_np_flattenable:
                raise ConfigError(f"{where} has observations of {space}, which have no fixed size")
            if image is None:
                vector += math.prod(gym.spaces.flatten_space(space).shape or ())
        self.layout = ObsLayout(vector, tuple(image for image in self._images if image))
        super().__init__(0, 255, (self.layout.width,), np.uint8)

    def __repr__(self) -> str:
        """The other space, for messages and for the description of compiled functions."""
        return f"ObservationRows({self.original})"

    def pack(self, obs: Any) -> AnyArray:
        """The row [W] of an observation.

        Raises:
            RolloutError: an image has another shape, or a number is not finite.
        """
        numbers: list[FloatArray] = []
        pictures: list[AnyArray] = []
        values = _values(self.original, obs)
        for space, image, value in zip(self._spaces, self._images, values, strict=True):
            if image is None:
                numbers.append(np.asarray(gym.spaces.flatten(space, value), np.float32))
            else:
                pictures.append(_picture(image, value))
        row = np.zeros(self.layout.width, np.uint8)
        if numbers:
            vector = np.concatenate(numbers)
            if not np.isfinite(vector).all():
                number = vector[~np.isfinite(vector)][0]
                raise RolloutError(
                    f"the environment returned an observation with {number}; a policy cannot learn"
                    " from it: clip or mask it in the environment"
                )
            self.layout.vectors(row)[:] = vector
        start = 4 * self.layout.vector
        for picture in pictures:
            row[start : start + picture.size] = picture
            start += picture.size
        return row

    def rows(self, obs: Any) -> tuple[AnyArray, bool]:
        """The rows [N, W] of a batch of observations, and whether `obs` is a single observation.

        A batch has a further dimension in front of every entry. Rows [W] and [N, W] are taken too.

        Raises:
            ConfigError: a shape is neither that of one observation nor that of a batch.
        """
        if isinstance(obs, np.ndarray) and obs.dtype == np.uint8 and obs.shape[-1:] == self.shape:
            return np.atleast_2d(obs), obs.ndim == 1
        try:
            values = [np.asarray(value) for value in _values(self.original, obs)]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise self._unlike(type(obs).__name__) from error
        shapes = [space.shape or () for space in self._spaces]
        if [value.shape for value in values] == shapes:
            return self.pack(obs)[None], True
        if not all(v.shape[1:] == s and v.ndim for v, s in zip(values, shapes, strict=True)):
            raise self._unlike(f"shapes {[value.shape for value in values]}")
        batch = [_entry(self.original, obs, i) for i in range(len(values[0]))]
        return np.stack([self.pack(single) for single in batch]), False

    def _unlike(self, given: str) -> ConfigError:
        return ConfigError(
            f"an observation has {given}, and the environment has {self.original}: pass one of "
            "its observations, or a batch with one more dimension in front"
        )


def _picture(image: Image, value: Any) -> AnyArray:
    picture = np.asarray(value)
    if picture.shape != image.shape or picture.dtype != np.uint8:
        raise RolloutError(
            f"the environment returned an image of shape {picture.shape} and type {picture.dtype},"
            f" but its observation_space says {image.shape} and uint8: return such images from"
            " reset and step"
        )
    return picture.reshape(-1)


def _entry(space: gym.Space[Any], batch: Any, i: int) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {name: _entry(part, batch[name], i) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        parts = zip(space.spaces, batch, strict=True)
        return tuple(_entry(part, value, i) for part, value in parts)
    return batch[i]


def check_no_hidden_image(space: gym.Space[Any], where: str) -> None:
    """Refuses observations that look like images but are none, instead of flattening them.

    Raises:
        ConfigError: a Box has three or more dimensions, at least two of them as large as a
            picture's.
    """
    for part in _parts(space):
        shape = part.shape or ()
        if len(shape) > 2 and sum(n >= LEAST_PIXELS for n in shape) >= 2:
            raise ConfigError(
                f"{where} has observations {part}, which look like images, but images have the "
                "type uint8, values from 0 to 255 and two or three dimensions: wrap the environment"
                " in gymnasium.wrappers (GrayscaleObservation before FrameStackObservation,"
                " or FlattenObservation for a vector)"
            )
