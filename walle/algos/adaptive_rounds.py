"""Frans & Hafner's rule for the KL bound and the size of TRPO's rounds, from their published code.

While returns rise, larger steps are taken from less experience; when they fall, smaller steps from
more.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from walle.algos.episodes import LaneReturns
from walle.types import Rollout

KINDS = ("none", "adaptive", "adaptive_margin")
ROUNDS = 10
MARGIN = 0.05
KL_LEAST, KL_MOST = 0.001, 0.01
BATCH_LEAST, BATCH_MOST = 1_200, 20_000


def better(now: float, before: float, kind: str) -> bool:
    """Whether returns got better from one sum to the next; "adaptive_margin" asks for 5% of it.

    With nothing to compare with, `before` of -inf, they did.
    """
    if before == -math.inf:
        return True
    margin = MARGIN * abs(before) if kind == "adaptive_margin" else 0.0
    return now >= before + margin


def adapt(
    max_kl: float, batch: int, *, improved: bool, kl_step: float, batch_step: int
) -> tuple[float, int]:
    """The next rounds' KL bound and environment steps; what lies beyond a limit moves inwards only.

    Worse: the bound falls, to 0.001 at least, and rounds grow, to 20,000 at most. Better: the bound
    rises, to 0.01 at most, and rounds shrink, to 1,200 at least.
    """
    if improved:
        max_kl = max(max_kl, min(KL_MOST, max_kl + kl_step))
        batch = min(batch, max(BATCH_LEAST, batch - batch_step))
    else:
        max_kl = min(max_kl, max(KL_LEAST, max_kl - kl_step))
        batch = max(batch, min(BATCH_MOST, batch + batch_step))
    return max_kl, batch


class AdaptiveRounds:
    """The KL bound and the rounds' size, judged every ten rounds.

    A round's return is the mean of the episodes that ended in it; rounds in which none ended do
    not count, neither for the sum nor among the ten.
    """

    def __init__(
        self, kind: str, max_kl: float, batch: int, lanes: int, kl_step: float, batch_step: int
    ) -> None:
        """`batch` environment steps over `lanes` lanes a round; the two steps change them."""
        self._kind = kind
        self._lanes = lanes
        self._steps: dict[str, Any] = {"kl_step": kl_step, "batch_step": batch_step}
        self._episodes = LaneReturns(lanes)
        self._batch = batch
        self._sum, self._counted = 0.0, 0
        self._before = -math.inf
        self.max_kl = max_kl

    @property
    def rollout_steps(self) -> int | None:
        """T of the next rollouts; None where it does not change."""
        return None if self._kind == "none" else max(1, self._batch // self._lanes)

    def add(self, rollout: Rollout) -> None:
        """Takes a round's returns in; after ten, adapts."""
        if self._kind == "none":
            return
        returns = [episode.episode_return for episode in self._episodes.add(rollout)]
        if not returns:
            return
        self._sum += float(np.mean(returns))
        self._counted += 1
        if self._counted < ROUNDS:
            return
        improved = better(self._sum, self._before, self._kind)
        self.max_kl, self._batch = adapt(self.max_kl, self._batch, improved=improved, **self._steps)
        self._before, self._sum, self._counted = self._sum, 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume, without the episodes under way."""
        return {
            "max_kl": self.max_kl,
            "batch": self._batch,
            "sum": self._sum,
            "counted": self._counted,
            "before": self._before,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.max_kl, self._batch = state["max_kl"], state["batch"]
        self._sum, self._counted, self._before = state["sum"], state["counted"], state["before"]
