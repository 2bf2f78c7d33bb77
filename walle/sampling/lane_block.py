"""Lanes between two rounds, as a value: who goes on from it, and where, leaves no trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from walle.envs import EnvSpec, make_lanes
from walle.envs.lanes import StateArray
from walle.errors import RestoreError
from walle.types import AnyArray, FloatArray, IntArray


class LaneBlock(NamedTuple):
    """L lanes before a round.

    `state` may be older than the lanes: then `actions` led from it to here. Without any state the
    actions began with the lanes' first episodes.

    Attributes:
        numbers: [L] the lanes' numbers in the run.
        round: the round that comes next.
        state: [L, W] as `Lanes.state` gave it; W = 0 without a state.
        obs: [L, O] the observations that the policy sees next.
        memory: [L, S] the policy's memory.
        actions: [T, L, *A] the policy's actions since `state`.
    """

    numbers: IntArray
    round: int
    state: StateArray
    obs: AnyArray
    memory: FloatArray
    actions: AnyArray

    @classmethod
    def first(cls, numbers: Sequence[int]) -> LaneBlock:
        """Lanes before the first round of a run."""
        lanes = len(numbers)
        nothing: Any = np.zeros((lanes, 0), np.float32)
        state, actions = np.zeros((lanes, 0), np.uint8), np.zeros((0, lanes), np.float32)
        return cls(np.asarray(numbers, np.int64), 0, state, nothing, nothing, actions)

    @classmethod
    def loaded(cls, fields: Mapping[str, Any]) -> LaneBlock:
        """The block whose fields a checkpoint holds."""
        arrays: Any = {name: np.asarray(x).copy() for name, x in fields.items() if name != "round"}
        return cls(**arrays, round=fields["round"])

    def of(self, numbers: Sequence[int]) -> LaneBlock:
        """The lanes of this block that are in `numbers`."""
        own = np.flatnonzero(np.isin(self.numbers, numbers))
        parts = (self.state[own], self.obs[own], self.memory[own], self.actions[:, own])
        return LaneBlock(self.numbers[own], self.round, *parts)


def deal(blocks: Sequence[LaneBlock], numbers: Sequence[int]) -> tuple[LaneBlock, ...]:
    """The parts of `blocks` with the lanes `numbers`; blocks without such a lane are left out."""
    parts = (block.of(numbers) for block in blocks)
    return tuple(part for part in parts if len(part.numbers))


def settled(block: LaneBlock, env: EnvSpec, seed: int) -> LaneBlock:
    """The block with a state of now, found by repeating its actions in lanes of its own.

    Raises:
        RestoreError: the environment does not go on as it did before.
    """
    if not len(block.actions) and block.state.size:
        return block
    numbers, obs = block.numbers.tolist(), block.obs
    with closing(make_lanes(env, numbers, seed)) as lanes:
        if block.state.size:
            lanes.restore(block.state)
        else:
            lanes.reset()
        for action in block.actions:
            obs = lanes.step(action).obs
        state = lanes.state()
    assert state is not None
    if np.asarray(obs, block.obs.dtype).tobytes() != block.obs.tobytes():
        where = f"lanes {numbers[0]} to {numbers[-1]}"
        raise RestoreError(f"{env.id}: the same actions led elsewhere in {where}")
    return block._replace(state=state, actions=block.actions[:0])


def joined(blocks: Sequence[LaneBlock]) -> LaneBlock:
    """One block with all lanes of settled blocks, in the order of their numbers."""
    numbers = np.concatenate([block.numbers for block in blocks])
    order = np.argsort(numbers)
    width = max(block.state.shape[1] for block in blocks)
    padded = [np.pad(b.state, ((0, 0), (0, width - b.state.shape[1]))) for b in blocks]
    return LaneBlock(
        numbers[order],
        max(block.round for block in blocks),
        np.concatenate(padded)[order],
        np.concatenate([block.obs for block in blocks])[order],
        np.concatenate([block.memory for block in blocks])[order],
        blocks[0].actions[:0],
    )
