"""The identity of a configuration: its leaves under dotted keys, and their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

Flat = dict[str, Any]


def flatten(config: Mapping[str, Any], ignore: Collection[str] = (), prefix: str = "") -> Flat:
    """`{"a": {"b": 1}, "c": [2]}` becomes `{"a.b": 1, "c": [2]}`.

    An empty mapping is a leaf. The dotted keys in `ignore` are left out, with all keys below them.
    """
    flat: Flat = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if path not in ignore:
            nested = isinstance(value, Mapping) and value
            flat |= flatten(value, ignore, f"{path}.") if nested else {path: value}
    return flat


def comparable_leaves(
    resolved: Mapping[str, Any], written: Mapping[str, Any], ignore: Collection[str]
) -> Flat:
    """The leaves of a composed config that identify jobs and runs.

    References to environment variables stay unresolved: their values, which may be secrets, are
    then in no file of the sweep, and a different value does not make a different job.
    """
    references = flatten(written, ignore)
    return {
        path: references[path] if "${oc.env:" in str(references.get(path)) else value
        for path, value in flatten(resolved, ignore).items()
    }


def as_json(value: Any) -> str:
    """The value as JSON, with sorted keys; types unknown to JSON are converted by `str`."""
    return json.dumps(value, sort_keys=True, default=str)


def config_hash(leaves: Flat) -> str:
    """16 hexadecimal digits: equal for equal leaves, whatever their order."""
    return hashlib.sha256(as_json(leaves).encode()).hexdigest()[:16]
