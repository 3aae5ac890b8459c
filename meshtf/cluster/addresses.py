"""Where workers are: "host1:4000,host2:4000".

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

LOOPBACK = "127.0.0.1"
ANY = "0.0.0.0"


class Address(NamedTuple):
    """A host and the port of TensorFlow there; the door is the next port."""

    host: str
    port: int

    @property
    def control_address(self) -> tuple[str, int]:
        """Where the worker says that it lives."""
        return self.host, self.port + 1

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_cluster(text: str) -> list[Address]:
    """Returns the workers of "host:port,host:port". Raises ParseError."""
    as_text("cluster", text, 'workers, such as "host1:4000,host2:4000"')
    found = []
    for part in (part.strip() for part in text.split(",")):
        host, _, port = part.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16 - 1:
            raise ParseError(
                f"{part!r} names no worker, in the cluster {text!r}.\n"
                "  Write host:port for each, such as host1:4000,host2:4000."
            )
        found.append(Address(host, int(port)))
    double = sorted({str(a) for a in found if found.count(a) > 1})
    if double:
        raise ParseError(f"the cluster {text!r} names {', '.join(double)} twice.")
    return found


def ipv4_address(host: str) -> str:
    """Returns the IPv4 address of a host. Raises OSError where it has none."""
    return str(
        socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    )


def is_loopback(host: str) -> bool:
    """Whether an IPv4 address is one that only this machine reaches."""
    return ipaddress.ip_address(host).is_loopback


def driver_address(workers: Sequence[Address]) -> str:
    """Returns the address of this machine by which the workers reach it. Raises
    OSError.
    """
    seen = []
    for worker in workers:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect((worker.host, worker.port))
            seen.append(probe.getsockname()[0])
    return next((host for host in seen if not is_loopback(host)), seen[0])


def free_ports(number: int) -> list[int]:
    """Returns ports of loopback that nobody hears now, nor their next ones."""
    with contextlib.ExitStack() as held:
        return [_free_pair(held) for _ in range(number)]


def _free_pair(held: contextlib.ExitStack) -> int:
    for first in _candidates(held):
        second = held.enter_context(socket.socket())
        try:
            second.bind((LOOPBACK, first + 1))
        except (OSError, OverflowError):
            continue
        return first
    raise AssertionError("there is always another candidate")


def _candidates(held: contextlib.ExitStack) -> Iterator[int]:
    while True:
        first = held.enter_context(socket.socket())
        first.bind((LOOPBACK, 0))
        yield first.getsockname()[1]
