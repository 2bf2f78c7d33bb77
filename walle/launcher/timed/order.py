"""The order of a sweep's jobs, and the blocks in which a sweep that measures time runs them.

A machine drifts: for minutes a neighbour takes a part of a core, or a hot core slows down. A sweep
that ran all seeds of one value before the next value would take such a drift for an effect of the
value. In blocks, every value runs once before any runs a second time, so that a drift meets all of
them, and the values of one block can be compared with each other.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from walle.launcher.composing import Composed, Job
from walle.system.identity import Flat, as_json, flatten

SHUFFLE_SEED = 0
# Jobs that differ in one of these keys differ in how fast they are.
KEYS_OF_SPEED = ("sampler.n", "sampler.max_lag", "learner.n", "learner.threads")


def measures_time(
    jobs: Sequence[Composed], needs: Sequence[int | None], swept: Collection[str]
) -> bool:
    """True when the times of the jobs are worth comparing, so that each job has to run alone.

    This is so when they differ in a key that changes their speed, and when each of several jobs
    takes all cores.

    Args:
        jobs: of this launch.
        needs: the number of cores of each job; None for all.
        swept: names of the overrides along which the sweep's jobs differ, now or earlier.
    """
    if len(jobs) > 1 and all(need is None for need in needs):
        return True
    configs = [flatten(job.values) for job in jobs]
    return any(
        key in swept or len({as_json(config.get(key)) for config in configs}) > 1
        for key in KEYS_OF_SPEED
    )


def compares_times(swept: Collection[str], *, exclusive: bool, asked: bool | None) -> bool:
    """Whether jobs run one at a time for their times, and not only because each takes all cores.

    Times of different nodes are hard to compare, so such jobs stay on one node.

    Args:
        swept: as above.
        exclusive: whether the jobs run one at a time.
        asked: whether the user asked for it; None if the launcher decided.
    """
    return exclusive and bool(asked or set(swept).intersection(KEYS_OF_SPEED))


def repeat_numbers(configs: Sequence[Flat], key: str, known: Mapping[str, int]) -> list[int]:
    """Numbers the repeats of a sweep, from 0; gives each job the number of its repeat.

    Args:
        configs: of the jobs.
        key: the key in which repeats differ, as `seed`; jobs without it belong to one repeat.
        known: numbers that repeats have already, by the key's value as JSON.
    """
    numbers = dict(known)
    free = max(numbers.values(), default=-1) + 1
    for config in configs:
        value = as_json(config.get(key))
        if value not in numbers:
            numbers[value], free = free, free + 1
    return [numbers[as_json(config.get(key))] for config in configs]


def in_repeats(
    jobs: Sequence[Job], repeats: Sequence[int], *, blocks: bool, exclusive: bool
) -> list[Job]:
    """The jobs with the numbers of their blocks, if they run in blocks.

    If they run one at a time, each repeat also has its turn of the cores (allocation.in_turn).
    """
    return [
        job._replace(
            block=repeat if blocks else None,
            need=job.need._replace(turn=repeat if exclusive else 0),
        )
        for job, repeat in zip(jobs, repeats, strict=True)
    ]


def in_order(repeats: Sequence[int], order: str) -> list[int]:
    """Indices of the jobs in the order to run them.

    Args:
        repeats: the number of each job's repeat, in the order given by the sweeper.
        order: `given`; `interleaved`, all jobs of the first repeat, then all jobs of the second,
            as given; `blocks`, the same with the jobs of every repeat in an order of its own;
            `shuffled`, a random order. What is random is the same in every launch.
    """
    indices = list(range(len(repeats)))
    if order == "shuffled":
        return _shuffled(indices, SHUFFLE_SEED)
    if order == "given":
        return indices
    blocks = {number: [i for i in indices if repeats[i] == number] for number in repeats}
    if order == "blocks":
        blocks = {number: _shuffled(jobs, number) for number, jobs in blocks.items()}
    return [index for number in sorted(blocks) for index in blocks[number]]


def _shuffled(indices: Sequence[int], seed: int) -> list[int]:
    return random.Random(seed).sample(indices, len(indices))
