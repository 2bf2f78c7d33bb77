"""Spaces as plain values, which a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from walle.envs.observations import ObservationRows
from walle.types import AnyArray


def space_values(space: gym.Space[Any]) -> dict[str, Any]:
    """The space as numbers, texts, lists and arrays, from which `space_from` makes it again.

    Raises:
        TypeError: a checkpoint cannot hold this kind of space.
    """
    match space:
        case ObservationRows():
            return {"type": "ObservationRows", "original": space_values(space.original)}
        case gym.spaces.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            return {"type": "Box", **bounds, "shape": space.shape, "dtype": str(space.dtype)}
        case gym.spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
        case gym.spaces.MultiDiscrete():
            return {"type": "MultiDiscrete", "nvec": space.nvec, "start": space.start}
        case gym.spaces.MultiBinary():
            return {"type": "MultiBinary", "n": space.n}
        case gym.spaces.Dict():
            parts = {name: space_values(part) for name, part in space.spaces.items()}
            return {"type": "Dict", "spaces": parts}
        case gym.spaces.Tuple():
            return {"type": "Tuple", "spaces": [space_values(part) for part in space.spaces]}
    raise TypeError(f"{space} cannot be stored")


def _bound(bound: AnyArray) -> Any:
    """A number where all entries are equal, as those of images are."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound


def space_from(values: Mapping[str, Any]) -> Any:
    """The space whose `space_values` these are; arrays may be tensors."""
    kind = values["type"]
    if kind == "ObservationRows":
        return ObservationRows(space_from(values["original"]), "the environment")
    if kind == "Box":
        dtype = np.dtype(values["dtype"])
        low, high = (np.asarray(values[name], dtype) for name in ("low", "high"))
        shape = tuple(values["shape"])
        return gym.spaces.Box(
            np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=dtype.type
        )
    if kind == "Discrete":
        return gym.spaces.Discrete(values["n"], start=values["start"])
    if kind == "MultiDiscrete":
        nvec, start = (np.asarray(values[name]) for name in ("nvec", "start"))
        return gym.spaces.MultiDiscrete(nvec, start=start)
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(values["n"])
    if kind == "Dict":  # pairs keep their order, and a mapping would be sorted
        return gym.spaces.Dict([(k, space_from(part)) for k, part in values["spaces"].items()])
    return gym.spaces.Tuple([space_from(part) for part in values["spaces"]])
