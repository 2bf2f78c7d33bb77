import socket
import sys
from types import SimpleNamespace

import pytest

from walle.errors import ConfigError
from walle.transport.cluster.connecting import Connection


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


def test_a_missing_token_is_one_line_with_the_cure(monkeypatch):
    def refuse(**_):
        raise TokenMissingError("no token was found.\nMore about tokens")

    errors = SimpleNamespace(RayError=TokenMissingError)
    ray = SimpleNamespace(is_initialized=lambda: False, init=refuse, exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(ConfigError, match=r"no token was found; .*RAY_AUTH_MODE") as refusal:
        Connection("auto", 0)
    assert "\n" not in str(refusal.value)
