"""Films an episode now and then while a run learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from walle.policy.acting import Policy
from walle.policy.rendering import Film, film
from walle.policy.video import most_fps, write
from walle.types import PolicySnapshot

_MOST_FPS = 15  # a picture may cost a tenth of a second


class Filming:
    """Writes videos/STEPS.mp4 or .gif into a run's directory where one is due."""

    def __init__(
        self,
        directory: Path,
        ending: str,
        is_due: Callable[[int], bool],
        policy: Policy,
        most_steps: int | None = None,
    ) -> None:
        """Draws one picture, so that what cannot be drawn is refused before the run begins.

        Args:
            directory: the run's directory.
            ending: ".mp4" or ".gif".
            is_due: whether to film after so many environment steps.
            policy: the policy before learning.
            most_steps: actions in a film; None films whole episodes.

        Raises:
            ConfigError: a package is missing, or the environment cannot be drawn.
        """
        self._directory, self._ending = directory / "videos", ending
        self.is_due, self._policy, self._most_steps = is_due, policy, most_steps
        self._most_fps = min(
            _MOST_FPS, most_fps(Path(f"videos/STEPS{ending}"), "logger.video_every")
        )
        next(self._film().pictures)

    def _film(self) -> Film:
        return film([self._policy], most_fps=self._most_fps, most_steps=self._most_steps)

    def __call__(self, snapshot: PolicySnapshot, env_steps: int) -> Path:
        """Films an episode of the policy in `snapshot`; returns the file."""
        path = self._directory / f"{env_steps}{self._ending}"
        self._policy.use(snapshot)
        write(self._film(), path)
        return path
