import signal
import socket
import sys
from types import SimpleNamespace

import pytest

from walle.errors import ConfigError
from walle.sampling.cluster.connection import Connection
from walle.system.signals import Signals


@pytest.mark.parametrize("port", ["closed", "1", "99999", "no-number"])
def test_an_address_where_nobody_listens_is_one_line(port):
    if port == "closed":
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
    with pytest.raises(ConfigError, match=r"no connection to Ray.*start") as refusal:
        Connection(f"127.0.0.1:{port}", 0)
    assert f"sampler.address=127.0.0.1:{port}" in str(refusal.value)
    assert "\n" not in str(refusal.value)


class TokenMissingError(Exception):
    """Stands in for what Ray raises where a cluster's token is wanted and not there."""


@pytest.fixture
def ray(monkeypatch):
    """A stand-in for the package `ray`."""
    utils = SimpleNamespace(set_sigterm_handler=lambda each: signal.signal(signal.SIGTERM, each))
    private = SimpleNamespace(utils=utils)
    errors = SimpleNamespace(RayError=TokenMissingError)
    ray = SimpleNamespace(is_initialized=lambda: False, exceptions=errors, _private=private)
    for name, module in {"ray": ray, "ray._private": private, "ray._private.utils": utils}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return ray


def test_a_missing_token_is_one_line_with_the_cure(ray):
    def refuse(**_):
        raise TokenMissingError("no token was found.\nMore about tokens")

    ray.init = refuse
    with pytest.raises(ConfigError, match=r"no token was found; .*RAY_AUTH_MODE") as refusal:
        Connection("auto", 0)
    assert "\n" not in str(refusal.value)


def test_a_sigterm_while_ray_starts_is_the_agents(ray):
    with Signals().installed() as signals:

        def start(**_):
            ray._private.utils.set_sigterm_handler(lambda *_: sys.exit(15))
            signal.raise_signal(signal.SIGTERM)

        ray.init = start
        Connection(None, 0)
        assert signals.received == signal.SIGTERM
    handler = signal.getsignal(signal.SIGTERM)
    ray._private.utils.set_sigterm_handler(signal.SIG_IGN)  # Ray's own function is back
    assert signal.signal(signal.SIGTERM, handler) == signal.SIG_IGN
