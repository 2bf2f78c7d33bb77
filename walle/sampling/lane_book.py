"""Lanes between two rounds, as values: any sampler can continue from them bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from walle.envs import EnvSpec, make_lanes
from walle.envs.lanes import StateArray
from walle.errors import RestoreError
from walle.sampling.slots import Slot
from walle.types import AnyArray, FloatArray, IntArray


class LaneBlock(NamedTuple):
    """L lanes before a round.

    `state` may be out of date: `actions` are those taken since, and repeating them leads to the
    current state. Without `state`, they are all actions since the first episodes started.
    """

    numbers: IntArray  # [L] the lanes' numbers in the run
    round: int  # the round that comes next
    state: StateArray  # [L, W] as `Lanes.state` returned it; W = 0 without a state
    obs: AnyArray  # [L, O] the observations that the policy sees next
    memory: FloatArray  # [L, S] the policy's memory
    actions: AnyArray  # [T, L, *A] the policy's actions since `state`

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


Blocks = tuple[LaneBlock, ...]


def deal(blocks: Sequence[LaneBlock], numbers: Sequence[int]) -> Blocks:
    """The parts of `blocks` with the lanes `numbers`; blocks without such a lane are left out."""
    dealt = []
    for block in blocks:
        rows = np.flatnonzero(np.isin(block.numbers, numbers))
        parts = (block.state[rows], block.obs[rows], block.memory[rows], block.actions[:, rows])
        if len(rows):
            dealt.append(LaneBlock(block.numbers[rows], block.round, *parts))
    return tuple(dealt)


def replayed(block: LaneBlock, env: EnvSpec, seed: int) -> LaneBlock:
    """The block with an up-to-date state, computed by repeating its actions in separate lanes."""
    if not len(block.actions) and block.state.size:
        return block
    numbers, obs = block.numbers.tolist(), block.obs
    with closing(make_lanes(env, numbers, seed)) as lanes:
        if block.state.size:
            lanes.restore(block.state)
        else:
            obs = lanes.reset()
        for action in block.actions:
            obs = lanes.step(action).obs
        try:
            state = lanes.state()
        except Exception as error:
            raise RestoreError(f"{env.id}: its state cannot be written: {error}") from error
    assert state is not None
    if np.asarray(obs, block.obs.dtype).tobytes() != block.obs.tobytes():
        where = f"lanes {numbers[0]} to {numbers[-1]}"
        raise RestoreError(f"{env.id}: the same actions led elsewhere in {where}")
    return block._replace(state=state, actions=block.actions[:0])


def concatenated(blocks: Sequence[LaneBlock]) -> LaneBlock:
    """One block with all lanes of up-to-date blocks, in the order of their numbers."""
    numbers = np.concatenate([block.numbers for block in blocks])
    order = np.argsort(numbers)
    width = max(block.state.shape[1] for block in blocks)
    padded = [np.pad(b.state, ((0, 0), (0, width - b.state.shape[1]))) for b in blocks]
    parts = (padded, [block.obs for block in blocks], [block.memory for block in blocks])
    joined: Any = [np.concatenate(part)[order] for part in parts]
    state, obs, memory = joined
    round_ = max(block.round for block in blocks)
    return LaneBlock(numbers[order], round_, state, obs, memory, blocks[0].actions[:0])


class LaneBook:
    """The lanes of every sampler as they were after the last rollout that the agent took."""

    def __init__(self, starts: Sequence[Blocks], *, saved: bool) -> None:
        """Starts with each sampler's blocks; `saved`: whether lanes can export their states."""
        self._blocks, self._saved = list(starts), saved

    def copied(self) -> LaneBook:
        """A copy that later rollouts do not change."""
        return LaneBook(self._blocks, saved=self._saved)

    def advance(self, sampler: int, slot: Slot) -> None:
        """Records the sampler's next rollout, which is in `slot`."""
        self._blocks[sampler] = self.after(sampler, [slot])

    def round(self, sampler: int) -> int:
        """The sampler's next round."""
        return max(block.round for block in self._blocks[sampler])

    def after(self, sampler: int, slots: Sequence[Slot]) -> Blocks:
        """The lanes of a sampler after the rollouts in `slots`, which are not recorded yet."""
        blocks = self._blocks[sampler]
        for slot in slots:
            blocks = self._advanced(blocks, slot)
        return blocks

    def _advanced(self, blocks: Blocks, slot: Slot) -> Blocks:
        round_, width, filled = int(slot.round[0]) + 1, int(slot.state_bytes[0]), slot.filled
        if not self._saved:
            return tuple(block._replace(round=round_) for block in blocks)
        obs, memory = filled.obs[-1].copy(), slot.memory.copy()
        if width:
            lanes, state = filled.lane.copy(), slot.lane_states[:, :width].copy()
            return (LaneBlock(lanes, round_, state, obs, memory, filled.action[:0].copy()),)
        advanced = []
        for block in blocks:
            columns = np.searchsorted(filled.lane, block.numbers)
            actions = filled.action[:, columns]
            if len(block.actions):
                actions = np.concatenate((block.actions, actions))
            parts = {"obs": obs[columns], "memory": memory[columns], "actions": actions}
            advanced.append(block._replace(round=round_, **parts))
        return tuple(advanced)

    def all(self) -> list[LaneBlock]:
        """The blocks of all samplers."""
        return [block for blocks in self._blocks for block in blocks]

    def state_dict(self) -> list[dict[str, Any]]:
        """All blocks as plain values and arrays."""
        return [block._asdict() for block in self.all()]
