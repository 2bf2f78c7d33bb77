"""A callback of one's own: stops the run when the task is solved."""

from __future__ import annotations

from typing import Any

import walle


class Solved(walle.Callback):
    """Stops the run when two evaluations in a row have a mean return above 0.7."""

    def __init__(self) -> None:
        """Has seen no evaluation yet."""
        self.reached = 0

    def on_evaluation(self, info: walle.EvaluationInfo) -> bool:
        """Counts the evaluations in a row that are good enough."""
        self.reached = self.reached + 1 if info.mean > 0.7 else 0
        return self.reached == 2

    def state_dict(self) -> dict[str, Any]:
        """The count, for a resumed run."""
        return {"reached": self.reached}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        self.reached = state["reached"]
