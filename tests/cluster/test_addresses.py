"""Where workers are: what is read, and what is refused."""

from __future__ import annotations

import socket

import pytest

from meshtf.cluster.addresses import (
    LOOPBACK,
    Address,
    driver_address,
    free_ports,
    is_loopback,
    parse_cluster,
)
from meshtf.errors import ParseError


def test_a_cluster_is_hosts_and_ports():
    assert parse_cluster("a:1, b.c:65534") == [Address("a", 1), Address("b.c", 65534)]
    assert Address("a", 1).control_address == ("a", 2) and str(Address("a", 1)) == "a:1"


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "''"),
        ("a", "'a'"),
        ("a:1,b", "'b'"),
        (":5", "':5'"),
        ("a:0", "'a:0'"),
        ("a:65535", "'a:65535'"),
        ("a:x", "'a:x'"),
        ("a:1,a:1", "a:1 twice"),
    ],
)
def test_what_names_no_workers_is_refused(text, why):
    with pytest.raises(ParseError) as error:
        parse_cluster(text)
    assert why in str(error.value)


def test_free_ports_are_free_and_so_are_the_next_ones():
    ports = free_ports(4)
    assert len({p + k for p in ports for k in (0, 1)}) == 8
    for port in ports:
        for k in (0, 1):
            with socket.socket() as used_socket:
                used_socket.bind((LOOPBACK, port + k))


def test_workers_of_this_machine_reach_the_driver_by_loopback():
    assert driver_address([Address(LOOPBACK, 4000)]) == LOOPBACK
    assert is_loopback("127.1.2.3") and not is_loopback("10.0.0.1")
