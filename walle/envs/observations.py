"""Observations that hold images, as rows of bytes; spaces as data for checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

from walle.envs.lanes import discrete
from walle.errors import ConfigError, RolloutError, nearest
from walle.types import LEAST_PIXELS, SMALLEST, AnyArray, Image, Keys, ObsLayout

_LARGEST = 65_535  # bound of a pixel, of 16 bits


def image_of(space: gym.Space[Any], least: int = LEAST_PIXELS) -> Image | None:
    """The image that a space holds; None for another space.

    An image is a Box with finite bounds and two or three dimensions. Of three, the smallest is that
    of the channels and comes first or last. A Box with two must have bytes from 0 to 255, or any
    bytes if `least` is `SMALLEST`. Each side has at least `least` pixels.
    """
    if not isinstance(space, gym.spaces.Box) or len(space.shape) not in (2, 3):
        return None
    bounds = np.abs(np.array((space.low, space.high), np.float64))
    scale = float(bounds.max(initial=0.0))
    usual = space.dtype == np.uint8 and not space.low.any() and (space.high == 255).all()
    flat = len(space.shape) == 2 and not (usual or (space.dtype == np.uint8 and least == SMALLEST))
    if flat or not 0 < scale <= _LARGEST:
        return None
    first = len(space.shape) == 3 and int(np.argmin(space.shape)) == 0
    first &= space.shape[0] != space.shape[-1] or least == LEAST_PIXELS  # MinAtar's (10, 10, 10)
    dtype = str(space.dtype) if space.dtype in (np.uint8, np.bool_) else "float32"
    image = Image(space.shape, first, dtype, scale)
    return image if min(image.chw[1:]) >= least else None


def images_in(space: gym.Space[Any], *, small: bool = False) -> list[Image | None]:
    """The image in each part of a space; with `small`, small ones count if there is no other."""
    usual = [image_of(part) for part in _parts(space)]
    if any(usual) or not small:
        return usual
    return [image_of(part, SMALLEST) for part in _parts(space)]


def entries(space: gym.Space[Any], obs: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of an observation in nested Dicts and Tuples, in the order of the space.

    Each has its key: ".a.0" for the first entry of the Tuple "a".
    """
    if isinstance(space, gym.spaces.Dict):
        for name, part in space.spaces.items():
            try:
                value = obs[name]
            except (KeyError, IndexError, TypeError) as error:
                raise RolloutError(
                    f"the space of observations has the key {name!r}, and an observation lacks it: "
                    f"{str(obs)[:80]}; return it, or change observation_space"
                ) from error
            yield from entries(part, value, f"{key}.{name}")
    elif isinstance(space, gym.spaces.Tuple):
        for i, (part, value) in enumerate(zip(space.spaces, obs, strict=True)):
            yield from entries(part, value, f"{key}.{i}")
    else:
        yield key, obs


def _parts(space: gym.Space[Any]) -> list[gym.Space[Any]]:
    return [part for _, part in entries(space, space)]  # a space has the keys of its observations


def _chosen(space: gym.Space[Any], where: str, keys: Keys) -> tuple[list[str], list[str]]:
    """The checked keys: the policy's, its own first, and the critics', their own last."""
    if not isinstance(space, gym.spaces.Dict):
        raise ConfigError(
            f"env.policy_keys and env.critic_keys choose keys of a Dict, and {where} has "
            f"observations {space}; use null for both, or wrappers that keep the Dict, such as "
            "{name: TimeAwareObservation, flatten: false}"
        )
    known: dict[str, Any] = {str(key): key for key in space.spaces}  # keys may be numbers
    for name, chosen in zip(("policy_keys", "critic_keys"), keys, strict=True):
        if chosen is not None and not chosen:
            raise ConfigError(f"env.{name}=[] names no key; use null for all")
        for key in map(str, chosen or ()):
            if key not in known:
                hint = nearest(key, known)
                raise ConfigError(f"env.{name}={chosen}: {where} has no key {key!r}; {hint}")
    policy, critic = (
        [known[key] for key in map(str, known if chosen is None else chosen)] for chosen in keys
    )
    shared = [key for key in policy if key in critic]
    own = [[key for key in names if key not in shared] for names in (policy, critic)]
    return own[0] + shared, shared + own[1]


def flatten_batch(space: gym.Space[Any], obs: Any) -> AnyArray:
    """The rows [N, O] of a batch of observations, each as `gymnasium.spaces.flatten` makes it.

    The parts of the space are Boxes, Discrete and MultiBinary.
    """
    rows: list[AnyArray] = []
    for part, (_, values) in zip(_parts(space), entries(space, obs), strict=True):
        if isinstance(part, gym.spaces.Discrete):
            rows.append(values.reshape(-1, 1) == np.arange(part.start, part.start + part.n))
        else:
            rows.append(values.reshape(len(values), -1))
    return rows[0] if len(rows) == 1 else np.concatenate(rows, 1)


class ObservationRows(gym.spaces.Box):
    """Rows that hold the observations of a space with images, or the chosen keys of a Dict.

    Entries that are not images are flattened as Gymnasium does it, in the order of the space.

    Attributes:
        original: the space, reduced to the chosen keys if there are any: the policy's own first,
            the critics' own last.
        keys: the pair of the policy's keys and the critics' keys; None without a choice.
    """

    def __init__(
        self, original: Any, where: str, offset: Any = None, keys: Any = None, *, small: bool = True
    ) -> None:
        """Lays out `original`, or its `keys`; `where` is for messages, `small` for `images_in`."""
        self.keys = keys and _chosen(original, where, keys)
        policy, critic = map(set, self.keys or ((), ()))
        if self.keys:
            original = gym.spaces.Dict([(k, original[k]) for part in self.keys for k in part])
        self.original, self.offset = original, offset
        self._spaces, self._images = _parts(original), images_in(original, small=small)
        check_vector(original, where, with_images=any(self._images))
        parts = zip(self._spaces, self._images, strict=True)
        vector = sum(gym.spaces.flatdim(space) for space, image in parts if image is None)
        images = tuple(image for image in self._images if image)
        alone = policy - critic, critic - policy
        hidden = sum(len(_parts(original[key])) for key in alone[1])  # parts at the end
        if images and (alone[0] or any(self._images[len(self._images) - hidden :])):
            fix = "critic_keys must have all of env.policy_keys, and these all images"
            raise ConfigError(f"{where} has images: env.{fix}")
        widths = [sum(gym.spaces.flatdim(original[key]) for key in part) for part in alone]
        self.layout = ObsLayout(vector, images, *widths)
        low, high = (0, 255) if images else (-np.inf, np.inf)
        super().__init__(low, high, (self.layout.width,), np.dtype(self.layout.dtype).type)

    def __repr__(self) -> str:
        """The original space, for messages and for the description of compiled functions."""
        return f"ObservationRows({self.original}{f', keys={self.keys}' if self.keys else ''})"

    @property
    def of_policy(self) -> ObservationRows:
        """The rows of the keys that the policy sees."""
        keys = self.keys[0], self.keys[0]
        return ObservationRows(self.original, "", keys=keys, small=bool(self.layout.images))

    @property
    def outline(self) -> str:
        """The parts as far as networks depend on them: keys, shapes, and images' pixels."""
        parts = zip(entries(self.original, self.original), self._images, strict=True)
        texts = [
            f"{key[1:]}: {image or part.shape or gym.spaces.flatdim(part)}"
            for (key, part), image in parts
        ]
        return f"{{{', '.join(texts)}}}{f', keys={self.keys}' if self.keys else ''}"

    @property
    def image_keys(self) -> list[str]:
        """The keys of the images in a Dict, in their order; "" for a space that is an image."""
        keys = zip(entries(self.original, self.original), self._images, strict=True)
        return [key[1:] for (key, _), image in keys if image]

    def pack(self, obs: Any) -> AnyArray:
        """The row [W] of an observation."""
        return self._row([value for _, value in entries(self.original, obs)])

    def _row(self, values: Sequence[Any]) -> AnyArray:
        row = np.zeros(self.layout.width, self.dtype)
        numbers: list[AnyArray] = []
        start = 4 * self.layout.vector
        for space, image, value in zip(self._spaces, self._images, values, strict=True):
            if image is None:
                check_part(value, space)
                numbers.append(np.asarray(gym.spaces.flatten(space, value)))
                continue
            picture = np.asarray(value)
            real = image.dtype == "float32" and picture.dtype.kind in "biuf"
            if picture.shape != image.shape or not (real or picture.dtype == image.dtype):
                raise RolloutError(
                    f"the environment returned an image of shape {picture.shape} and type "
                    f"{picture.dtype}, but its observation_space has {image.shape} and "
                    f"{image.dtype}: return such images from reset and step"
                )
            pixels = np.ascontiguousarray(picture, image.dtype).reshape(-1)
            if real:
                check_finite(pixels)
            row[start : start + image.size] = pixels.view(np.uint8)
            start += image.size
        if numbers:
            vector = np.subtract(np.concatenate(numbers), self.offset or 0).astype(np.float32)
            check_finite(vector)
            self.layout.vectors(row)[:] = vector
        return row

    def rows(self, obs: Any) -> tuple[AnyArray, bool]:
        """The rows [N, W] of a batch of observations, and whether `obs` is a single observation.

        A batch has a further dimension in front of every entry. Rows [W] and [N, W] also work.
        """
        is_array = isinstance(obs, np.ndarray) and obs.dtype.kind == self.dtype.kind
        if is_array and obs.shape[-1:] == self.shape:
            shift = 0 if self.layout.images else self.offset or 0  # rows of bytes are packed
            return np.atleast_2d(np.subtract(obs, shift)).astype(self.dtype), obs.ndim == 1
        try:
            values = [np.asarray(value) for _, value in entries(self.original, obs)]
        except (RolloutError, TypeError, ValueError):
            given = type(obs).__name__
        else:
            shapes, given_shapes = [s.shape or () for s in self._spaces], [v.shape for v in values]
            if given_shapes == shapes:
                return self.pack(obs)[None], True
            if all(given_shapes) and [shape[1:] for shape in given_shapes] == shapes:
                return np.stack([self._row(row) for row in zip(*values, strict=True)]), False
            given = f"shapes {given_shapes}"
        raise ConfigError(
            f"an observation has {given}, and the environment has {self.original}: pass one of "
            "its observations, or a batch with one more dimension in front"
        )


def check_finite(values: AnyArray) -> None:
    """Raises RolloutError for an observation with a number that is not finite."""
    if not np.isfinite(values).all():
        number = values[~np.isfinite(values)][0]
        raise RolloutError(
            f"the environment returned an observation with {number}; a policy cannot learn from it:"
            " clip or mask it in the environment"
        )


def check_entries(values: AnyArray, dtype: Any, where: str = "") -> AnyArray:
    """Returns `values`, after refusing entries that an array of `dtype` would cut off."""
    if isinstance(values, np.ndarray) and values.dtype == dtype:
        return values
    if np.iscomplexobj(values):
        raise RolloutError(
            f"the environment returned a complex observation{where}: return real numbers, such as "
            "the real part or the absolute value"
        )
    if np.dtype(dtype).kind in "iub":
        array = np.asarray(values)
        with np.errstate(invalid="ignore"):
            lost = array[array.astype(dtype) != array]
        if lost.size:
            raise RolloutError(
                f"the environment returned an observation with {lost[0]}{where}, but its "
                f"observation_space has {dtype}: give the space the type of the observations"
            )
    return values


def check_part(value: Any, space: gym.Space[Any]) -> None:
    """Refuses a part of an observation that would flatten to the numbers of another one.

    It may be flat, and dimensions of length 1 may be missing.
    """
    check_entries(value, space.dtype)
    if isinstance(space, gym.spaces.Discrete):
        inside = 0 <= value - space.start < space.n  # in every step: NumPy would take 5x longer
    else:
        shape, its = np.shape(value), space.shape or ()
        fits = shape == its or shape == (math.prod(its),)
        if not fits and _without_ones(shape) != _without_ones(its):
            raise RolloutError(
                f"the environment returned an observation, or a part of one, of shape {shape}, but "
                f"its space has shape {its}: return that from reset and step"
            )
        if not isinstance(space, gym.spaces.MultiDiscrete):
            return
        choice = np.reshape(value, its) - space.start
        inside = bool(((choice >= 0) & (choice < space.nvec)).all())
    if not inside:
        raise RolloutError(
            f"the environment returned {value} in an observation, which is not in its {space}: "
            "enlarge the space, or return another number"
        )


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def check_vector(space: gym.Space[Any], where: str, *, with_images: bool = False) -> None:
    """Refuses what does not flatten, and a Box of a picture's size that is not read as an image.

    A space `with_images` may have such Boxes. The message names the keys that do not flatten.
    """
    if not _flattens(space):
        parts: Any = space.spaces if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple) else {}
        parts = dict(parts if isinstance(parts, Mapping) else enumerate(parts))
        kept = ", ".join(str(key) for key, part in parts.items() if _flattens(part))
        leaves = [(key[1:], part) for key, part in entries(space, space) if not _flattens(part)]
        others = [f"{key} ({type(part).__name__})" for key, part in leaves if key]
        fix = f"FilterObservation, filter_keys: [{kept}]" if kept else "module:Wrapper"
        raise ConfigError(
            f"{where} has observations that do not flatten to numbers: "
            f"{', '.join(others) or space}; leave them out, or convert them, with a wrapper: "
            f"env.wrappers=[{{name: {fix}}}]"
        )
    for part in () if with_images else _parts(space):
        shape = part.shape or ()
        if len(shape) > 2 and sum(n >= LEAST_PIXELS for n in shape) >= 2:
            raise ConfigError(
                f"{where} has observations {part}, which look like images, but images have "
                f"two or three dimensions and finite bounds up to {_LARGEST}: use env.wrappers,"
                " such as GrayscaleObservation before FrameStackObservation, or FlattenObservation"
                " for a vector"
            )


def _flattens(space: gym.Space[Any]) -> bool:
    with suppress(NotImplementedError):  # raised by a space of the environment's own
        # Characters are no quantities, and what a OneOf holds changes its space.
        return all(
            part.is_np_flattenable and not isinstance(part, gym.spaces.Text | gym.spaces.OneOf)
            for part in _parts(space)
        )
    return False


def space_values(space: gym.Space[Any]) -> dict[str, Any]:
    """The space as numbers, texts, lists and arrays, from which `space_from` rebuilds it."""
    match space:
        case ObservationRows():
            original = space_values(space.original)
            chosen = {"keys": space.keys, "small": bool(space.layout.images)}
            return {"type": "ObservationRows", "original": original, **chosen}
        case gym.spaces.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            return {"type": "Box", **bounds, "shape": space.shape, "dtype": str(space.dtype)}
        case gym.spaces.Discrete():
            both = {"n": int(space.n), "start": int(space.start)}
            return {"type": "Discrete", **both, "dtype": str(space.dtype)}
        case gym.spaces.MultiDiscrete():
            arrays = {"nvec": space.nvec, "start": space.start}
            return {"type": "MultiDiscrete", **arrays, "dtype": str(space.dtype)}
        case gym.spaces.MultiBinary():
            return {"type": "MultiBinary", "n": space.n}
        case gym.spaces.Dict():
            parts = {name: space_values(part) for name, part in space.spaces.items()}
            return {"type": "Dict", "spaces": parts}
        case gym.spaces.Tuple():
            return {"type": "Tuple", "spaces": [space_values(part) for part in space.spaces]}
    raise TypeError(f"{space} cannot be stored")


def _dtype(values: Mapping[str, Any]) -> Any:
    return np.dtype(values.get("dtype", "int64"))  # version 0.3.0 stored none


def _bound(bound: AnyArray) -> Any:
    """A number if all entries are equal, as those of images are."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound


def space_from(values: Mapping[str, Any]) -> Any:
    """The space whose `space_values` these are; arrays may be tensors."""
    match values["type"]:
        case "ObservationRows":
            chosen = {name: values[name] for name in ("keys", "small") if name in values}
            return ObservationRows(space_from(values["original"]), "the environment", **chosen)
        case "Box":
            dtype, shape = np.dtype(values["dtype"]), tuple(values["shape"])
            low, high = (np.asarray(values[name], dtype) for name in ("low", "high"))
            bounds = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
            return gym.spaces.Box(*bounds, dtype=dtype.type)
        case "Discrete":
            return discrete(values["n"], values["start"], _dtype(values))
        case "MultiDiscrete":
            nvec, start = (np.asarray(values[name]) for name in ("nvec", "start"))
            return gym.spaces.MultiDiscrete(nvec, start=start, dtype=_dtype(values).type)
        case "MultiBinary":
            return gym.spaces.MultiBinary(values["n"])
        case "Dict":  # a mapping would be sorted; pairs keep their order
            return gym.spaces.Dict([(k, space_from(part)) for k, part in values["spaces"].items()])
    return gym.spaces.Tuple([space_from(part) for part in values["spaces"]])
