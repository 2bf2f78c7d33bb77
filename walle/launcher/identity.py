"""Which job is which: hashes of configs, and the comparison of a sweep with its directory."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from walle.launcher.settings import LauncherError
from walle.system.identity import Flat, as_json

_ABSENT = object()


class Identity(NamedTuple):
    """What identifies a job in a sweep's directory or on a command line."""

    num: int  # the job's number in the sweep; -1 before it has one
    overrides: tuple[str, ...]  # the job's overrides
    config_hash: str  # the hash of `config`
    # the config's leaves without the keys of `hash_ignore`; resolved, except references to
    # environment variables
    config: Flat


class ConfigChangedError(LauncherError):
    """The directory holds a sweep of another config."""


def same(a: Any, b: Any) -> bool:
    """Compares values as JSON holds them: a tuple equals its list, an enum equals its name."""
    return as_json(a) == as_json(b)


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
    """Gives every wanted job the number of the known job that it equals, or a new number."""
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
    """Raises `ConfigChangedError` where a key that is not swept has changed.

    `swept` names the overrides along which the sweep's jobs differ, now or earlier.
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
