"""The states of NumPy generators as rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
WIDTH = 6
_MASK = (1 << 64) - 1


class PackedGenerators:
    """The states of L generators as rows, packed anew only where a generator has drawn.

    Attributes:
        drawn: [L] the generators that may have drawn since `rows` packed them.
    """

    def __init__(self, generators: int) -> None:
        """Packs nothing yet."""
        self._rows: Words = np.zeros((generators, WIDTH), np.uint64)
        self.drawn = np.ones(generators, np.bool_)

    def rows(self, generators: Sequence[np.random.Generator]) -> Words:
        """The states, [L, 6]; the caller must not change them."""
        for i in np.flatnonzero(self.drawn).tolist():
            self._rows[i] = pack(generators[i])
        self.drawn[:] = False
        return self._rows

    def load(self, rows: Words, generators: Sequence[np.random.Generator]) -> None:
        """Gives the generators the states in `rows`, [L, 6]."""
        for row, generator in zip(rows, generators, strict=True):
            unpack(row, generator)
        self._rows[:] = rows
        self.drawn[:] = False


def pack(generator: np.random.Generator) -> Words:
    """The state of a generator of the kind PCG64, [6].

    Raises:
        TypeError: the generator is of another kind.
    """
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise TypeError(f"a generator of the kind {state['bit_generator']} cannot be packed")
    position, increment = state["state"]["state"], state["state"]["inc"]
    words = (position >> 64, position & _MASK, increment >> 64, increment & _MASK)
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def unpack(words: Words, generator: np.random.Generator) -> None:
    """Gives a generator of the kind PCG64 the state in `words`, [6]."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
