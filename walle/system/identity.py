"""What identifies a configuration: its leaves under dotted keys, and their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any


def flatten(config: Mapping[str, Any], ignore: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}, "c": [2]}` becomes `{"a.b": 1, "c": [2]}`.

    Args:
        config: nested mappings with string keys; anything else is a leaf, as is an empty mapping.
        ignore: dotted keys to leave out, with all keys below them.
        prefix: what comes before every key.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if path in ignore:
            continue
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, ignore, f"{path}.")
        else:
            flat[path] = value
    return flat


def as_json(value: Any) -> str:
    """The value as JSON, with sorted keys; what JSON does not know, as `str` writes it."""
    return json.dumps(value, sort_keys=True, default=str)


def hash_of(leaves: Mapping[str, Any]) -> str:
    """16 hexadecimal digits: equal for equal leaves, whatever their order."""
    return hashlib.sha256(as_json(leaves).encode()).hexdigest()[:16]
