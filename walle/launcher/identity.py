"""Which job is which: hashes of configs, and the comparison of a sweep with its directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Flat = dict[str, Any]
_ABSENT = object()


class Identity(NamedTuple):
    """What identifies a job in a sweep's directory or on a command line.

    Attributes:
        num: the job's number in the sweep; -1 before it has one.
        overrides: the job's overrides.
        config_hash: the hash of `config`.
        config: the config's leaves without the keys of `hash_ignore`; resolved, except references
            to environment variables.
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
        ignore: dotted keys to leave out, with all keys below them.
    """

    def leaves(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            path = f"{prefix}{key}"
            if path in ignore:
                continue
            if isinstance(value, Mapping) and value:
                yield from leaves(value, f"{path}.")
            else:
                yield path, value

    return dict(leaves(config, ""))


def comparable_leaves(
    resolved: Mapping[str, Any], written: Mapping[str, Any], ignore: Collection[str]
) -> Flat:
    """The leaves of a composed config by which jobs and runs are recognised.

    References to environment variables stay as they are written: no file of the sweep then holds
    the value, which may be a secret, and another value makes no other job.

    Args:
        resolved: the task's part of the config, with its references resolved.
        written: the same with its references.
        ignore: dotted keys to leave out, with all keys below them.
    """
    references = flatten(written, ignore)
    return {
        path: references[path] if "${oc.env:" in str(references.get(path)) else value
        for path, value in flatten(resolved, ignore).items()
    }


def config_hash(flat: Flat) -> str:
    """16 hexadecimal digits: equal for equal leaves, whatever their order."""
    return hashlib.sha256(as_json(flat).encode()).hexdigest()[:16]


def same(a: Any, b: Any) -> bool:
    """Compares values as JSON holds them: a tuple equals its list, an enum equals its name."""
    return as_json(a) == as_json(b)


def as_json(value: Any) -> str:
    """The value as JSON with sorted keys; types that JSON lacks as their `str`."""
    return json.dumps(value, sort_keys=True, default=str)


def common_part(configs: Sequence[Flat]) -> Flat:
    """The leaves that all configs have, with equal values."""
    first, *others = configs or [{}]
    return {
        path: value
        for path, value in first.items()
        if all(path in other and same(other[path], value) for other in others)
    }


def assign_numbers(
    known: Sequence[Identity], wanted: Sequence[Identity], first_free: int = 0
) -> list[int]:
    """Gives every wanted job the number of the known job that it equals, or a new number.

    Args:
        known: the jobs of the directory.
        wanted: the jobs of this launch.
        first_free: the smallest number for a new job.

    Raises:
        ConfigChangedError: a known job has the same overrides and another config.
    """
    by_hash = {job.config_hash: job for job in known}
    by_overrides = {frozenset(job.overrides): job for job in known}
    free = max([first_free - 1, *(job.num for job in known)]) + 1
    numbers: list[int] = []
    for job in wanted:
        equal = by_overrides.get(frozenset(job.overrides), by_hash.get(job.config_hash))
        if equal is not None and equal.config_hash != job.config_hash:
            what = f"job {equal.num} ({' '.join(job.overrides)})"
            raise _changed(equal.config, job.config, what)
        if equal is None or equal.num in numbers:
            numbers.append(free)
            free += 1
        else:
            numbers.append(equal.num)
    return numbers


def refuse_other_base(
    known: Sequence[Identity], wanted: Sequence[Identity], swept: Collection[str]
) -> None:
    """Checks that the wanted jobs extend the known sweep.

    Args:
        known: the jobs of the directory.
        wanted: the jobs of this launch.
        swept: names of the overrides along which the sweep's jobs differ, now or earlier.

    Raises:
        ConfigChangedError: a key that is not swept has changed. The text shows the difference.
    """
    if not known or not wanted:
        return
    common = [common_part([job.config for job in jobs]) for jobs in (known, wanted)]
    paths = {path for job in [*known, *wanted] for path in job.config}
    # A swept key may change, every key of a swept group, and what follows from one of them.
    fixed = {path for path in paths if not any(f"{path}.".startswith(f"{key}.") for key in swept)}
    for jobs, part in zip((known, wanted), common, strict=True):
        fixed -= {path for job in jobs for path in job.config} - part.keys()
    before, after = ({path: part[path] for path in part if path in fixed} for part in common)
    if not same(before, after):
        raise _changed(before, after, "the sweep")


def _changed(before: Flat, after: Flat, what: str) -> ConfigChangedError:
    lines = "\n".join(f"  {line}" for line in difference(before, after))
    return ConfigChangedError(f"the config of {what} is not the one recorded here:\n{lines}")


def difference(before: Flat, after: Flat) -> list[str]:
    """One line for each leaf that differs: `key: old -> new`."""

    def shown(value: Any) -> str:
        return "(absent)" if value is _ABSENT else json.dumps(value, default=str)

    pairs = {
        path: (before.get(path, _ABSENT), after.get(path, _ABSENT))
        for path in sorted(before.keys() | after.keys())
    }
    return [
        f"{path}: {shown(old)} -> {shown(new)}"
        for path, (old, new) in pairs.items()
        if _ABSENT in (old, new) or not same(old, new)
    ]
