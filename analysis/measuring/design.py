"""Distinguishes, by the configurations, the values of an axis, the lines, and the repeats."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from walle.analysis.loading.directories import BadInputError, Scalar
from walle.analysis.runs import NAMES, Sweep
from walle.errors import nearest

NAMING_LEAVES = ("id", "name")


def resolve_key(sweep: Sweep, key: str) -> str:
    """The full configuration key for `key`: a key, a group's name (`env`) or a last part (`n`).

    Raises:
        BadInputError: no key fits, or several do.
    """
    known = sorted({k for run in sweep.runs for k in run.config})
    if key in known:
        return key
    of_group = [f"{key}.{leaf}" for leaf in NAMING_LEAVES if f"{key}.{leaf}" in known]
    leaves = [k for k in known if k.endswith(f".{key}")]
    of_leaf = [k for k in leaves if k in sweep.varying] or leaves
    if of_group:
        return next((k for k in of_group if k in sweep.varying), of_group[0])
    if len(of_leaf) == 1:
        return of_leaf[0]
    if of_leaf:
        raise BadInputError(f"--by {key}: choose one of: {', '.join(of_leaf)}")
    near = nearest(key, sweep.varying or known)
    raise BadInputError(f"--by {key}: no such configuration key; {near}")


def numeric_axis(sweep: Sweep, key: str | None) -> str:
    """The full configuration key of an axis of numbers above zero, by default one that varies.

    Without `key` it is `sampler.n` where it varies or no number does.

    Raises:
        BadInputError: the key does not exist, or a value is not such a number.
    """
    if key is None:
        candidates = ("sampler.n", "learner.n", *line_keys(sweep, ""))
        varying = [k for k in candidates if k in sweep.varying]
        return next((k for k in varying if all(map(is_positive, sweep.values(k)))), "sampler.n")
    by = resolve_key(sweep, key)
    odd = [value for value in sweep.values(by) if not is_positive(value)]
    if odd:
        raise BadInputError(
            f"--by {key}: this figure's axis needs numbers above 0, {by} is {odd[0]!r}"
        )
    return by


def axis_of(sweep: Sweep) -> str:
    """The key that a figure compares by default: `sampler.n` where it varies or nothing does.

    Otherwise it is the first key that varies.
    """
    if "sampler.n" in sweep.varying:
        return "sampler.n"
    return next(iter(line_keys(sweep, "")), "sampler.n")


def line_keys(sweep: Sweep, *by: str) -> list[str]:
    """The fewest varying keys that distinguish the lines of a figure over the keys `by`.

    `env=hopper,ant` changes `env.id` together with other keys of the group: one of these keys is
    enough. A key that `by` determines is not needed.
    """
    chosen: list[str] = []
    candidates = [key for key in sweep.varying if key not in (*by, *NAMES)]
    for key in sorted(candidates, key=_plainness):
        if not _determined(sweep, key, [*by, *chosen]):
            chosen.append(key)
    return chosen


def changing_together(sweep: Sweep, by: str) -> dict[str, list[str]]:
    """The varying keys that stand in no label, by the keys of a figure that they change with.

    A name (`algo.name`) stands for the other keys of its group, which need no word.
    """
    lines = line_keys(sweep, by)
    named = [by, *lines] if by in sweep.varying else lines
    groups = [k.rsplit(".", 1)[0] + "." for k in named if k.split(".")[-1] in NAMING_LEAVES]
    together: dict[str, list[str]] = {}
    for key in sorted(sweep.varying, key=_plainness):
        if key in (*named, *NAMES) or key.startswith(tuple(groups)):
            continue
        alone = [other for other in named if _determined(sweep, key, [other])]
        together.setdefault(alone[0] if alone else " and ".join(named), []).append(key)
    return together


def design(sweep: Sweep, by: str, *known: str) -> pd.DataFrame:
    """A row a run: `run`, `by` (the value on the axis), `line` (a label or ''), `seed`.

    Rows that agree in `by`, `line` and the keys `known`, which stand in no label, are repeats. The
    rows are ordered by line and value.
    """
    keys = line_keys(sweep, by, *known)
    rows = []
    for run in sweep.runs:
        parts = []
        for key in keys:
            leaf, value = key.split(".")[-1], run.config.get(key, "null")
            name = key if key == "learner.n" else leaf  # `n` alone is the number of samplers
            parts.append(str(value) if leaf in (*NAMING_LEAVES, "sweep") else f"{name} {value}")
        seed = run.config.get("seed", "")
        rows.append((run.name, run.config.get(by, "null"), ", ".join(parts), seed))
    rows.sort(key=lambda row: (row[2], sort_key(row[1])))
    return pd.DataFrame(rows, columns=["run", "by", "line", "seed"])


def is_positive(value: Scalar) -> bool:
    """Whether a value is a number above zero, as a number of workers is."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def sort_key(value: Scalar) -> tuple[int, float, str]:
    """Sorts numbers by size, then everything else by text."""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _plainness(key: str) -> tuple[bool, int, str]:
    return key.split(".")[-1] not in NAMING_LEAVES, key.count("."), key


def _determined(sweep: Sweep, key: str, by: Iterable[str]) -> bool:
    """Whether runs that agree in all of `by` always agree in `key`."""
    seen: dict[tuple[Scalar, ...], Scalar] = {}
    columns = zip(*(sweep.values(k) for k in by), strict=True)
    return all(
        seen.setdefault(known, value) == value
        for known, value in zip(columns, sweep.values(key), strict=True)
    )
