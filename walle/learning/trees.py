"""Nested named tuples of tensors: batches, and the states of learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Tree = TypeVar("Tree")


def leaves(tree: Any) -> list[Any]:
    """All leaves of nested named tuples, in order; a leaf is any value that is not a tuple."""
    if not isinstance(tree, tuple):
        return [tree]
    flat: list[Any] = []
    for part in tree:  # called for every minibatch: a leaf costs no call of its own
        if isinstance(part, tuple):
            flat += leaves(part)
        else:
            flat.append(part)
    return flat


def rebuild(like: Tree, values: Iterator[Any]) -> Tree:
    """Named tuples of the structure of `like`, filled with `values` in the order of `leaves`."""
    if not isinstance(like, tuple):
        filled: Tree = next(values)
        return filled
    make: Any = type(like)
    parts = [rebuild(x, values) if isinstance(x, tuple) else next(values) for x in like]
    rebuilt: Tree = make(*parts)
    return rebuilt


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Named tuples of the same structure, with `function` applied to every leaf."""
    return rebuild(tree, map(function, leaves(tree)))


def replaced(record: Tree, **fields: Any) -> Tree:
    """Like `record._replace(**fields)`, which returns () in code that Torch 2.11 compiles."""
    old: Any = record
    made: Tree = type(old)(**{**old._asdict(), **fields})
    return made
