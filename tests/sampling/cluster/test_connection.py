import os
import signal
import socket
import sys
from types import SimpleNamespace

import psutil
import pytest

from walle.errors import ConfigError
from walle.sampling.cluster.connection import Connection
from walle.system.ray_cluster import join, leave
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
    constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
    private = SimpleNamespace(utils=utils, ray_constants=constants)
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


@pytest.mark.parametrize(
    ("address", "nodes", "reachable"),
    [(None, None, False), (None, 1, False), (None, 2, True), ("auto", None, True)],
)
def test_other_machines_reach_a_ray_of_its_own_only_if_it_is_for_nodes(
    ray, address, nodes, reachable
):
    seen = []
    ray.init = lambda **_: seen.append(ray._private.ray_constants.ENABLE_RAY_CLUSTER)
    Connection(address, 0, nodes)
    assert seen == [reachable]
    assert ray._private.ray_constants.ENABLE_RAY_CLUSTER


@pytest.mark.ray
def test_all_processes_of_a_ray_of_its_own_listen_on_loopback_only():
    ray, owned = join(None, setting="", without="", own={"object_store_memory": 80_000_000})
    assert owned
    try:
        ray.get(ray.remote(os.path.basename).remote("worker"))  # one listens too
        this = psutil.Process()
        processes = [this, *this.children(recursive=True)]
        found = {
            (process.name(), socket_.laddr.ip.removeprefix("::ffff:"))
            for process in processes
            for socket_ in process.net_connections("inet")
            if socket_.status == psutil.CONN_LISTEN
        }
        assert any(name.startswith(("raylet", "gcs_server")) for name, _ in found)
        assert {ip for _, ip in found} <= {"127.0.0.1", "::1"}, found
    finally:
        leave(ray)
