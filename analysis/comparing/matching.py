"""Which runs are compared with which: the two sides of a comparison, task by task."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from walle.analysis.loading.directories import BadInputError, Run, Scalar
from walle.analysis.measuring.design import NAMING_LEAVES, line_keys, resolve_key, sort_key
from walle.analysis.runs import Sweep
from walle.analysis.writing.format import listed

WORKERS = ("sampler.n", "learner.n")  # the numbers of processes, which learning does not depend on
Side = Mapping[tuple[Scalar, int], str]


class Question(NamedTuple):
    """The question of a comparison: the runs with `key` = `a`, and those with `key` = `b`."""

    key: str
    a: Scalar
    b: Scalar


class Pairing(NamedTuple):
    """Runs that are compared with each other: they differ in the key and in their seeds."""

    label: str  # the other keys that vary, such as the task; '' where nothing else varies
    learning: str  # the same without numbers of workers, which learning does not depend on
    task: str  # the same of the environment alone
    a: Side  # the runs of A by seed, and by number where a seed repeats
    b: Side  # the runs of B
    # Whether the same seed gives both sides the same start: both have the same algorithm, networks
    # and environment
    same_start: bool


def with_rows(sweep: Sweep) -> Sweep:
    """The runs that have a row in iterations.csv; notes the others."""
    used = set(sweep.iterations["run"].astype(str))
    without = [run.name for run in sweep.runs if run.name not in used]
    if without:
        sweep.note(f"Not compared, as no iteration can be read: {listed(without)}")
    return Sweep(sweep.paths, [run for run in sweep.runs if run.name in used], sweep.left_out)


def question(sweep: Sweep, by: str | None) -> Question:
    """The question for `--by KEY=A,B`, `--by KEY`, or nothing: then the first key that varies.

    Where KEY has more than two values, A is the first and B the last. Several directories vary in
    the key `sweep`. Numbers of workers and tasks are taken only when nothing else varies.

    Raises:
        BadInputError: there are no two such values.
    """
    varying = [key for key in line_keys(sweep, "") if key in sweep.varying]
    settings = [key for key in varying if key not in WORKERS and not key.startswith("env.")]
    default = next(iter([*settings, *(key for key in varying if key in WORKERS)]), "sampler.n")
    default = "sweep" if "sweep" in sweep.varying else default
    name, _, asked = (by or default).partition("=")
    key = resolve_key(sweep, name)
    known = list(dict.fromkeys(sweep.values(key)))  # of `sweep`, as on the command line
    if key != "sweep":
        known.sort(key=sort_key)
    if not asked:
        if len(known) < 2:
            also = [k for k in line_keys(sweep, "") if k in sweep.varying]
            raise BadInputError(
                f"a comparison needs two values of {key}; all runs have {key}={known[0]}: name two "
                f"sweeps, or --by {' or '.join(also) or 'KEY'}"
            )
        return Question(key, known[0], known[-1])
    values = [value for text in asked.split(",") for value in known if str(value) == text]
    if len(values) != 2 or values[0] == values[1] or asked.count(",") != 1:
        raise BadInputError(
            f"--by {by}: needs two different values of {key}, as in --by {key}=A,B; "
            f"the runs have {listed([str(value) for value in known], most=12)}"
        )
    return Question(key, *values)


def restricted(sweep: Sweep, asked: Question) -> Sweep:
    """The runs of both sides alone."""
    runs = [run for run in sweep.runs if run.config.get(asked.key, "null") in (asked.a, asked.b)]
    return Sweep(sweep.paths, runs, sweep.left_out)


def match(sweep: Sweep, asked: Question) -> list[Pairing]:
    """The pairings that have runs on both sides; notes the other runs.

    Runs are compared that agree in all keys which both sides have. A key of one side alone, such as
    PPO's clip beside A2C, makes a pairing for each of its values, all with the same other side.

    Raises:
        BadInputError: no pairing has both sides.
    """
    keys = line_keys(sweep, asked.key)
    sides: tuple[list[Run], list[Run]] = ([], [])
    for run in sweep.runs:
        sides[run.config.get(asked.key, "null") == asked.b].append(run)
    of_a, of_b = ([k for k in keys if any(k in run.config for run in side)] for side in sides)
    alike: tuple[dict[str, list[Run]], ...] = ({}, {})
    for side, by_label in zip(sides, alike, strict=True):
        for run in side:
            by_label.setdefault(_label(run.config, keys), []).append(run)
    shared = [key for key in keys if key in of_a and key in of_b]
    pairings: list[Pairing] = []
    used: set[str] = set()
    for a, b in product(*(by_label.values() for by_label in alike)):
        if _label(a[0].config, shared) == _label(b[0].config, shared):
            both = {key: (a if key in of_a else b)[0].config.get(key, "null") for key in keys}
            pairings.append(_pairing(both, a, b, keys))
            used |= {run.name for run in (*a, *b)}
    if len(shared) < len(keys) and len(pairings) > 1:
        sweep.note(
            f"A run that lacks {listed([key for key in keys if key not in shared])} is compared "
            "with the other side's runs of every value"
        )
    pairings.sort(key=lambda pairing: pairing.label)
    one_sided = [run.name for run in sweep.runs if run.name not in used]
    if not pairings:
        raise BadInputError(
            f"no run with {asked.key}={asked.a} has a partner with {asked.key}={asked.b} that "
            f"agrees in {' and '.join(shared)}: compare sweeps that share tasks and settings"
        )
    if one_sided:
        sweep.note(f"Not compared, as the other side has no such run: {listed(one_sided)}")
    return pairings


def _pairing(
    settings: Mapping[str, Scalar], a: list[Run], b: list[Run], keys: list[str]
) -> Pairing:
    # The settings that decide, with the seed, how learning starts.
    starts = {
        tuple(
            (key, value)
            for key, value in sorted(run.config.items())
            if key == "algo.name" or key.startswith(("env.", "net."))
        )
        for run in (*a, *b)
    }
    return Pairing(
        label=_label(settings, keys),
        learning=_label(settings, [key for key in keys if key not in WORKERS]),
        task=_label(settings, [key for key in keys if key.startswith("env.")]),
        a=_by_seed(a),
        b=_by_seed(b),
        same_start=len(starts) == 1,
    )


def _by_seed(runs: list[Run]) -> dict[tuple[Scalar, int], str]:
    found: dict[tuple[Scalar, int], str] = {}
    for run in runs:
        seed = run.config.get("seed", "")
        found[seed, sum(key[0] == seed for key in found)] = run.name
    return found


def _label(config: Mapping[str, Scalar], keys: list[str]) -> str:
    parts = []
    for key in keys:
        leaf, value = key.split(".")[-1], config.get(key, "null")
        parts.append(str(value) if leaf in NAMING_LEAVES else f"{leaf} {value}")
    return ", ".join(parts)
