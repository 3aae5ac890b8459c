"""Which callers a server hears. The servers here listen on all addresses, as
TensorFlow's do.
"""

from __future__ import annotations

import contextlib
import socket
import sys

import pytest

from meshtf.cluster.addresses import ANY, LOOPBACK
from meshtf.cluster.ip_filter import accept_only
from meshtf.errors import ClusterError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="filters of Linux")


def other_address():
    """Returns an address of this machine that is not of loopback, or skips the test."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no network")
        return probe.getsockname()[0]


@contextlib.contextmanager
def server(family=socket.AF_INET6):
    """Gives a socket that listens on all addresses, IPv6 and IPv4, and its port."""
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as listening:
        yield listening, listening.getsockname()[1]


def reaches(address, port):
    try:
        socket.create_connection((address, port), timeout=0.5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_only_loopback(family):
    other = other_address()
    with server(family) as (_, port):
        assert reaches(other, port)  # so the test can fail
    with server(family) as (_, port):
        accept_only(port, LOOPBACK)
        assert reaches(LOOPBACK, port) and reaches("127.0.0.2", port)
        assert not reaches(other, port)
        assert reaches("::1", port) == (family == socket.AF_INET6 and socket.has_ipv6)


def test_only_one_address():
    other = other_address()
    with server() as (_, port):
        accept_only(port, other)
        assert reaches(other, port)
        assert not reaches(LOOPBACK, port) and not reaches("::1", port)


def test_all_addresses_where_that_is_said():
    other = other_address()
    with server() as (_, port):
        accept_only(port, ANY)
        assert reaches(other, port) and reaches(LOOPBACK, port)


def test_who_came_before_it_was_closed_is_noticed():
    other = other_address()
    with server() as (_, port), socket.create_connection((other, port)):
        with pytest.raises(ClusterError, match="somebody called"):
            accept_only(port, LOOPBACK)


def test_a_port_without_a_server_is_an_error():
    with server() as (_, port):
        pass
    with pytest.raises(ClusterError, match="no socket of this process"):
        accept_only(port, LOOPBACK)


def test_elsewhere_it_is_refused_and_the_error_names_a_remedy(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ClusterError, match="--bind=0.0.0.0"):
        accept_only(4000, LOOPBACK)
