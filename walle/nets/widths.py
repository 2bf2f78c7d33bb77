"""Widths of hidden layers: numbers, or functions of a task's sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from walle.errors import ConfigError


def numbers(key: str, widths: Sequence[int | str], *, obs: int, act: int) -> tuple[int, ...]:
    """The widths as numbers.

    `K*obs` is K times the network's inputs O, `K*act` is K times the action's entries A (discrete
    actions: their number), and `mean` is the geometric mean √(h₋ h₊) of the widths before and after
    it, rounded down. WALL-E's policy is [10*obs, mean, 10*act], its value function
    [10*obs, mean, 5] (its code, after Coady's of 2017).

    Args:
        key: the setting, for error messages.
        widths: numbers, `K*obs`, `K*act` or `mean`.
        obs: O.
        act: A.

    Raises:
        ConfigError: a mean does not lie between two other widths.
    """
    sizes = {"obs": obs, "act": act}
    known = [None if width == "mean" else _number(str(width), sizes) for width in widths]
    padded = [None, *known, None]
    found: list[int] = []
    for before, width, after in zip(padded, known, padded[2:], strict=False):
        if width is None and (before is None or after is None):
            raise ConfigError(
                f"{key}=[{', '.join(map(str, widths))}]: mean is the geometric mean of the widths"
                " before and after it; put a number, K*obs or K*act on both sides"
            )
        found.append(math.isqrt((before or 0) * (after or 0)) if width is None else width)
    return tuple(found)


def _number(width: str, sizes: Mapping[str, int]) -> int:
    factor, _, size = width.partition("*")
    return int(factor) * (sizes[size] if size else 1)
