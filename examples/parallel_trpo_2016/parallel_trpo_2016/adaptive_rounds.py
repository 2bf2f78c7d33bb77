"""Frans & Hafner's rule for the KL bound and the size of TRPO's rounds, from their published code.

While returns rise, TRPO takes larger steps from less experience. When returns fall, it takes
smaller steps from more experience.
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
KL_MIN, KL_MAX = 0.001, 0.01
BATCH_MIN, BATCH_MAX = 1_200, 20_000


def better(now: float, before: float, kind: str) -> bool:
    """Whether returns improved from the sum `before` to the sum `now`.

    "adaptive_margin" requires an improvement of 5%. The first sum (`before` is -inf) counts as an
    improvement.
    """
    if before == -math.inf:
        return True
    margin = MARGIN * abs(before) if kind == "adaptive_margin" else 0.0
    return now >= before + margin


def adapt(
    max_kl: float, batch: int, *, improved: bool, kl_step: float, batch_step: int
) -> tuple[float, int]:
    """The next rounds' KL bound and environment steps.

    If returns fell, the bound falls (to 0.001 at least) and rounds grow (to 20,000 steps at most).
    If returns improved, the bound rises (to 0.01 at most) and rounds shrink (to 1,200 steps at
    least). A value beyond its limit stays, or moves towards the limit.
    """
    if improved:
        max_kl = max(max_kl, min(KL_MAX, max_kl + kl_step))
        batch = min(batch, max(BATCH_MIN, batch - batch_step))
    else:
        max_kl = min(max_kl, max(KL_MIN, max_kl - kl_step))
        batch = max(batch, min(BATCH_MAX, batch + batch_step))
    return max_kl, batch


class AdaptiveRounds:
    """The KL bound and the size of rounds, adapted after every ten rounds.

    A round's return is the mean return of the episodes that ended in it. A round in which no
    episode ended is left out.
    """

    def __init__(
        self, kind: str, max_kl: float, batch: int, lanes: int, kl_step: float, batch_step: int
    ) -> None:
        """Starts with a KL bound of `max_kl` and rounds of `batch` environment steps.

        Args:
            kind: a member of `KINDS`.
            max_kl: the first KL bound.
            batch: environment steps of the first rounds, over all lanes.
            lanes: number of lanes of the run.
            kl_step: change of the KL bound.
            batch_step: change of a round's environment steps.
        """
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
        """T of the next rollouts; None if it never changes."""
        return None if self._kind == "none" else max(1, self._batch // self._lanes)

    def add(self, rollout: Rollout) -> None:
        """Adds a round's return to the sum; after ten rounds adapts the bound and the size."""
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
        """State needed to resume."""
        return {
            "episodes": self._episodes.state_dict(),
            "max_kl": self.max_kl,
            "batch": self._batch,
            "sum": self._sum,
            "counted": self._counted,
            "before": self._before,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._episodes.load_state_dict(state["episodes"])
        self.max_kl, self._batch = state["max_kl"], state["batch"]
        self._sum, self._counted, self._before = state["sum"], state["counted"], state["before"]
