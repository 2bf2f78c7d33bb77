"""Which job is which: config hashes, and matching a sweep with what its directory holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Flat = dict[str, Any]
_ABSENT = object()


class Known(NamedTuple):
    """A job as the sweep directory records it, or as a command line asks for it.

    Attributes:
        num: its number in the sweep; -1 as long as it has none.
        overrides: its overrides.
        config_hash: of `config`.
        config: resolved leaves, without those that do not count.
    """

    num: int
    overrides: tuple[str, ...]
    config_hash: str
    config: Flat


class ConfigChangedError(ValueError):
    """The directory holds a sweep of another config."""


def flatten(config: Mapping[str, Any], ignore: Collection[str] = ()) -> Flat:
    """`{"a": {"b": 1}, "c": [2]}` becomes `{"a.b": 1, "c": [2]}`.

    Args:
        config: nested mappings with string keys; anything else is a leaf.
        ignore: keys to leave out, with all below them.
    """
    return dict(_leaves(config, "", frozenset(ignore)))


def _leaves(node: Mapping[str, Any], prefix: str, ignore: frozenset[str]) -> Iterator[Any]:
    for key, value in node.items():
        path = f"{prefix}{key}"
        if path in ignore:
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}.", ignore)
        else:
            yield path, value


def config_hash(flat: Flat) -> str:
    """16 hexadecimal digits: equal for equal leaves, whatever their order."""
    text = json.dumps(flat, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def common_part(configs: Sequence[Flat]) -> Flat:
    """The leaves that all configs have, with equal values."""
    if not configs:
        return {}
    first, *others = configs
    return {
        path: value
        for path, value in first.items()
        if all(path in other and same(other[path], value) for other in others)
    }


def same(a: Any, b: Any) -> bool:
    """Equality that survives JSON: a tuple equals its list, an enum its name's text."""
    return json.dumps(a, sort_keys=True, default=str) == json.dumps(b, sort_keys=True, default=str)


def assign_numbers(
    known: Sequence[Known], wanted: Sequence[Known], first_free: int = 0
) -> list[int]:
    """Gives every wanted job its number: that of the known job it is, or a new one.

    Args:
        known: the jobs of the directory.
        wanted: the jobs asked for.
        first_free: the smallest number for a new job.

    Raises:
        ConfigChangedError: a job of the same overrides is known with another config.
    """
    by_hash = {job.config_hash: job.num for job in known}
    by_overrides = {frozenset(job.overrides): job for job in known}
    free = max([first_free - 1, *(job.num for job in known)]) + 1
    numbers: list[int] = []
    for job in wanted:
        twin = by_overrides.get(frozenset(job.overrides))
        if twin is not None and twin.config_hash != job.config_hash:
            raise _changed(twin.config, job.config, f"job {twin.num} ({' '.join(job.overrides)})")
        num = twin.num if twin is not None else by_hash.get(job.config_hash)
        if num is None or num in numbers:
            num, free = free, free + 1
        numbers.append(num)
    return numbers


def refuse_other_base(
    known: Sequence[Known], wanted: Sequence[Known], swept: Collection[str]
) -> None:
    """Checks that the jobs asked for are more of the same sweep.

    Args:
        known: the jobs of the directory.
        wanted: the jobs asked for.
        swept: names of the overrides along which the sweep's jobs differ, now or earlier.

    Raises:
        ConfigChangedError: what is not swept is not what it was. Its text shows the difference.
    """
    if not known or not wanted:
        return
    old, new = ([job.config for job in jobs] for jobs in (known, wanted))
    free = _varying(old) | _varying(new)
    free |= {path for path in _paths(old) | _paths(new) if _is_swept(path, swept)}
    before = {path: v for path, v in common_part(old).items() if path not in free}
    after = {path: v for path, v in common_part(new).items() if path not in free}
    if not same(before, after):
        raise _changed(before, after, "the sweep")


def _paths(configs: Iterable[Flat]) -> set[str]:
    return {path for config in configs for path in config}


def _varying(configs: Sequence[Flat]) -> set[str]:
    return _paths(configs) - set(common_part(configs))


def _is_swept(path: str, swept: Collection[str]) -> bool:
    """True for the swept key itself and for all that a swept group holds."""
    return any(path == key or path.startswith(f"{key}.") for key in swept)


def _changed(before: Flat, after: Flat, what: str) -> ConfigChangedError:
    lines = "\n".join(f"  {line}" for line in difference(before, after))
    return ConfigChangedError(f"the config of {what} is not the one recorded here:\n{lines}")


def difference(before: Flat, after: Flat) -> list[str]:
    """One line a leaf that differs: `key: old -> new`."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path, _ABSENT), after.get(path, _ABSENT)
        if old is _ABSENT or new is _ABSENT or not same(old, new):
            lines.append(f"{path}: {_shown(old)} -> {_shown(new)}")
    return lines


def _shown(value: Any) -> str:
    return "(absent)" if value is _ABSENT else json.dumps(value, default=str)
