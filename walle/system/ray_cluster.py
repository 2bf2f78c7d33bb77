"""Joins a Ray cluster or starts a local one; imports Ray only when called."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from walle.errors import ConfigError
from walle.system.machine import usable_cores
from walle.system.signals import ENDING, SAVING, blocked_signals

_CONNECT_S = 10.0
_FIX = (
    "start a cluster with `ray start --head`; if there is one, set RAY_AUTH_MODE here as it was at "
    "`ray start`"
)
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGHUP, *SAVING)


def join(
    address: str | None,  # of a cluster; None to start a local one, which ends with `leave`
    *,
    setting: str,  # the key that holds the address, for messages
    without: str,  # the setting that asks for a local cluster, for messages
    own: Mapping[str, Any],  # further arguments of `ray.init` for a local cluster
    nodes: int = 1,  # of a local cluster, at most: other machines reach it only if above 1
    **arguments: Any,  # of `ray.init` in both cases
) -> tuple[Any, bool]:
    """Connects this process, unless the user's program has already done so.

    Returns the module `ray`, and whether to call `leave` at the end. Raises ConfigError if there is
    no cluster at the address, its versions differ, or it requires a token that this process does
    not have.
    """
    _check_reachable(address, setting)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    import ray
    from ray._private import ray_constants

    if ray.is_initialized():
        return ray, False
    local = {"num_cpus": len(usable_cores()), "include_dashboard": False, **own}
    options = {"address": address} if address else {"address": "local", **local}
    # As Ray does on macOS: the node, and so everything that listens, has the address 127.0.0.1.
    clustered = bool(address) or nodes > 1
    try:
        with _signals_unchanged(), patch.object(ray_constants, "ENABLE_RAY_CLUSTER", clustered):
            ray.init(**options, logging_level="WARNING", **arguments)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        where = f"{setting}={address}" if address else without
        fix = _FIX if address else "see /tmp/ray for its logs"
        raise ConfigError(f"{where}: no connection to Ray: {first_line(error)}; {fix}") from error
    return ray, True


def first_line(error: BaseException) -> str:
    """The first line of an error's message without its full stop, or the error's type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def leave(ray: Any) -> None:
    """Disconnects; shuts down a local cluster."""
    with blocked_signals(*_GROUP_SIGNALS):
        ray.shutdown()


def _check_reachable(address: str | None, setting: str) -> None:
    """Refuses an address at which nobody listens; Ray would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon:  # auto, or a Ray of its own
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{setting}={address}: no connection to Ray: {error}; start it there with `ray "
            "start --head`, or use its address as `ray status` has it"
        ) from None


@contextmanager
def _signals_unchanged() -> Iterator[None]:
    """Keeps this process's signal handlers, and shields what Ray starts from signals to the group.

    At a SIGTERM while Ray starts, it would wait for half a minute and then end this process.
    """
    from ray._private import utils

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING}
    without = patch.object(utils, "set_sigterm_handler", lambda _: None, create=True)
    with without, blocked_signals(*_GROUP_SIGNALS):
        try:
            yield
        finally:
            for number, handler in before.items() if main else ():
                signal.signal(number, handler)
