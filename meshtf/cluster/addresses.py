"""Addresses of workers, such as "host1:4000,host2:4000", and free ports.

>>> [worker.control_address for worker in parse_cluster("host1:4000,host2:4000")]
[('host1', 4001), ('host2', 4001)]
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshtf.errors import ParseError
from meshtf.names.arguments import as_text

LOOPBACK = "127.0.0.1"  # only this machine can reach it
ANY = "0.0.0.0"  # all addresses of this machine


class Address(NamedTuple):
    """The address of a worker.

    Attributes:
      host: the name or IPv4 address of the host.
      port: the port of TensorFlow's server; the control port is the next one.
    """

    host: str
    port: int

    @property
    def control_address(self) -> tuple[str, int]:
        """The pair (host, port) of the worker's control port."""
        return self.host, self.port + 1

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_cluster(text: str) -> list[Address]:
    """Returns the addresses of the workers in a text "host:port,host:port".

    Raises:
      ParseError: the text names no workers, or one of them twice.
    """
    text = as_text("cluster", text, takes='workers, such as "host1:4000,host2:4000"')
    addresses = []
    for address in text.split(","):
        address = address.strip()
        host, _, port = address.rpartition(":")
        # Less than the highest port, since the control port is the next one.
        is_port = port.isdecimal() and 0 < int(port) < 2**16 - 1
        if not host or not is_port:
            raise ParseError(
                f"{address!r} names no worker, in the cluster {text!r}.\n"
                "  Write host:port for each, such as host1:4000,host2:4000."
            )
        addresses.append(Address(host, int(port)))
    duplicates = sorted(
        {str(address) for address in addresses if addresses.count(address) > 1}
    )
    if duplicates:
        raise ParseError(f"the cluster {text!r} names {', '.join(duplicates)} twice.")
    return addresses


def ipv4_address(host: str) -> str:
    """Returns the IPv4 address of a host.

    Raises:
      OSError: the host has none.
    """
    infos = socket.getaddrinfo(
        host, port=None, family=socket.AF_INET, type=socket.SOCK_STREAM
    )
    *_, socket_address = infos[0]
    address, *_ = socket_address
    return str(address)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach an IPv4 address."""
    return ipaddress.ip_address(host).is_loopback


def driver_address(workers: Sequence[Address]) -> str:
    """Returns the IPv4 address at which workers reach this machine.

    Raises:
      OSError: there is no route to a worker.
    """
    local_addresses = []
    for worker in workers:
        # To connect a UDP socket sends nothing, but chooses the local address.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((worker.host, worker.port))
            local_address, _ = probe.getsockname()
            local_addresses.append(local_address)
    for host in local_addresses:
        if not is_loopback(host):
            return host
    return local_addresses[0]


def free_ports(count: int) -> list[int]:
    """Returns ports of the loopback address. Each port and the next one are not in use."""
    with contextlib.ExitStack() as sockets:
        return [_free_pair(sockets) for _ in range(count)]


def _free_pair(sockets: contextlib.ExitStack) -> int:
    """Returns the lower one of two adjacent free ports; both stay bound until `sockets`
    closes, so that no other pair contains them.
    """
    for port in _free_ports(sockets):
        next_socket = sockets.enter_context(socket.socket())
        try:
            next_socket.bind((LOOPBACK, port + 1))
        except (OSError, OverflowError):
            continue
        return port
    raise AssertionError("there is always another candidate")


def _free_ports(sockets: contextlib.ExitStack) -> Iterator[int]:
    """Yields free ports, which the system chooses, without end."""
    while True:
        candidate = sockets.enter_context(socket.socket())
        candidate.bind((LOOPBACK, 0))
        _, port = candidate.getsockname()
        yield port
