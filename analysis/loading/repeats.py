"""Finds repeats: runs that differ in their seed and in nothing else.

A copy of a run is no repeat, and a run that learns the same as another one tells nothing new of
learning: with a finite lag the same seed gives the same numbers for every `sampler.n`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from walle.analysis.loading.directories import LeftOut, Run, Scalar

NAMES = ("name",)  # keys that say what a run is called and not what it does


def settings(run: Run) -> tuple[tuple[str, Scalar], ...]:
    """All that repeats have in common: the configuration without the seed and the run's name."""
    return tuple(sorted((k, v) for k, v in run.config.items() if k not in ("seed", *NAMES)))


def without_copies(runs: Sequence[Run]) -> tuple[list[Run], list[LeftOut]]:
    """The runs without those that have the settings and the seed of another one.

    Of such runs one that is completed stays, rather one that its sweep's manifest knows the block
    of, or else the first.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault((settings(run), run.config.get("seed")), []).append(run)
    kept = {
        id(min(group, key=lambda run: (run.state != "completed", run.block == ""))): group
        for group in groups.values()
    }
    left_out = [
        LeftOut(run.name, f"the settings and the seed of {_name(kept, group)}: no repeat of it")
        for group in groups.values()
        for run in group
        if id(run) not in kept
    ]
    return [run for run in runs if id(run) in kept], left_out


def _name(kept: Mapping[int, object], group: Iterable[Run]) -> str:
    return next(run.name for run in group if id(run) in kept)


def agree(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> bool:
    """Whether two runs [rows, columns] agree in every bit, as far as the shorter one goes."""
    rows = min(len(a), len(b))
    return bool(rows) and np.array_equal(a[:rows], b[:rows], equal_nan=True)


def tells(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> bool:
    """Whether the rows that two runs share tell what was learnt: the first one never does.

    With one seed the first row is the same, whatever is learnt from it; so is an empty one.
    """
    return bool(np.isfinite(a[1 : min(len(a), len(b))]).all(axis=1).any())


def identical_groups(
    learnt: Mapping[str, Mapping[Scalar, npt.NDArray[np.float64]]],
) -> list[list[str]]:
    """The labels of `learnt` in groups whose runs learnt the same at every seed they share.

    Args:
        learnt: for each label the rows [rows, columns] of its run of each seed.
    """
    groups: list[list[str]] = []
    for label, mine in learnt.items():
        for group in groups:
            pairs = [
                (mine[seed], learnt[other][seed])
                for other in group
                for seed in mine
                if seed in learnt[other]
            ]
            if all(agree(*pair) for pair in pairs) and any(tells(*pair) for pair in pairs):
                group.append(label)
                break
        else:
            groups.append([label])
    return groups


def identical_label(labels: Sequence[str]) -> str:
    """One label for lines that are identical, such as `n = 1; n = 2, identical`."""
    if len(labels) == 1:
        return labels[0]
    shown = labels if len(labels) < 4 else [labels[0], "…", labels[-1]]
    return f"{'; '.join(shown)}, identical"
