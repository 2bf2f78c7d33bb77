"""The choice between the checkpoints of a run."""

from __future__ import annotations

from walle.errors import ConfigError, nearest

WHICH = ("best", "last")


def check_which(which: str | None) -> None:
    """Checks the name of a checkpoint; None leaves the choice open.

    Raises:
        ConfigError: there is no such checkpoint.
    """
    if which is not None and which not in WHICH:
        raise ConfigError(f"which={which!r} is unknown; {nearest(which, WHICH)}")
