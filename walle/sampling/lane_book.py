"""The agent's record of all lanes: the state that each round left them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from walle.sampling.lane_block import LaneBlock
from walle.sampling.slots import Slot

Blocks = tuple[LaneBlock, ...]


class LaneBook:
    """The lanes of every sampler as they were after the last rollout that the agent took."""

    def __init__(self, starts: Sequence[Blocks], *, saved: bool) -> None:
        """Begins with the lanes of each sampler, one block or several.

        Args:
            starts: the lanes before their next rounds, by sampler.
            saved: whether lanes can give their states.
        """
        self._blocks, self._saved = list(starts), saved

    def turn(self, sampler: int, slot: Slot) -> None:
        """Notes the rollout in `slot`, the sampler's next one."""
        self._blocks[sampler] = _turned(self._blocks[sampler], slot, saved=self._saved)

    def round(self, sampler: int) -> int:
        """The sampler's next round."""
        return max(block.round for block in self._blocks[sampler])

    def after(self, sampler: int, slots: Sequence[Slot]) -> Blocks:
        """The lanes of a sampler after the rollouts in `slots`, which are not noted yet."""
        blocks = self._blocks[sampler]
        for slot in slots:
            blocks = _turned(blocks, slot, saved=self._saved)
        return blocks

    def state_dict(self) -> list[dict[str, Any]]:
        """All blocks as plain values and arrays."""
        return [block._asdict() for blocks in self._blocks for block in blocks]


def _turned(blocks: Blocks, slot: Slot, *, saved: bool) -> Blocks:
    """The blocks after the rollout in `slot`."""
    round_, width, filled = int(slot.round[0]) + 1, int(slot.state_bytes[0]), slot.filled
    if not saved:
        return tuple(block._replace(round=round_) for block in blocks)
    obs, memory = filled.obs[-1].copy(), slot.memory.copy()
    if width:
        state = slot.lane_states[:, :width].copy()
        return (
            LaneBlock(filled.lane.copy(), round_, state, obs, memory, filled.action[:0].copy()),
        )
    found = []
    for block in blocks:
        own = np.searchsorted(filled.lane, block.numbers)
        actions = filled.action[:, own]
        if len(block.actions):
            actions = np.concatenate((block.actions, actions))
        parts = {"obs": obs[own], "memory": memory[own], "actions": actions}
        found.append(block._replace(round=round_, **parts))
    return tuple(found)
