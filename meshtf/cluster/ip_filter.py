"""Restricts a TensorFlow server to packets that are sent to one address of this machine.

    server = tf.distribute.Server(...)              # with port 4000
    accept_only(4000, "127.0.0.1")

TensorFlow's server listens on all addresses, whatever its configuration, and accepts every
connection. So a packet filter is attached to its listening socket (Linux: SO_ATTACH_FILTER,
classic BPF, which needs no privileges). The kernel then drops packets to other addresses,
as if no process were listening there.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from meshtf.cluster.addresses import ANY, is_loopback
from meshtf.errors import ClusterError, explain_error

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of <asm-generic/socket.h>
# SKF_NET_OFF: added to the offset of a byte in the IP header, not in the TCP header.
_IP_HEADER = 2**32 - 0x100000
# Codes of BPF instructions.
_LOAD_BYTE = 0x30
_LOAD_WORD = 0x20
_AND = 0x54
_JUMP_IF_EQUAL = 0x15
_RETURN = 0x06
# States of connections in /proc/net/tcp.
_LISTENING = "0A"
_ESTABLISHED = "01"


def accept_only(port: int, address: str) -> None:
    """Drops packets to a port of this process that are not sent to one address.

    Args:
      port: a port on which a server of this process listens.
      address: an IPv4 address of this machine; "0.0.0.0": no packet is dropped.

    Raises:
      ClusterError: the operating system has no such filters, or there was a connection to
        another address before the filter was attached.
    """
    if address == ANY:
        return
    if sys.platform != "linux":
        raise _restriction_error(port, address, "only Linux has filters on sockets")
    descriptors = list(_listening_descriptors(port))
    if not descriptors:
        raise _restriction_error(
            port, address, "no socket of this process listens there"
        )
    program = _program(ipaddress.IPv4Address(address))
    # struct sock_filter of <linux/filter.h>: 16 bits, twice 8 bits, 32 bits.
    packed_program = b"".join(struct.pack("HBBI", *line) for line in program)
    program_buffer = ctypes.create_string_buffer(packed_program)
    # struct sock_fprog: the count of instructions, and a pointer to them.
    filter_option = struct.pack("HP", len(program), ctypes.addressof(program_buffer))
    for descriptor in descriptors:
        # A duplicate: closing it does not close the server's socket.
        with socket.socket(fileno=os.dup(descriptor)) as listening_socket:
            listening_socket.setsockopt(
                socket.SOL_SOCKET, _ATTACH_FILTER, filter_option
            )
    for destination in _connected_addresses(port):
        if not _is_allowed(destination, address):
            raise _restriction_error(
                port, address, f"somebody called {destination} before it was closed"
            )


def _program(address: ipaddress.IPv4Address) -> list[tuple[int, int, int, int]]:
    """Returns the BPF program: it accepts packets to `address`; if that is a loopback
    address, packets to all loopback addresses, 127.* and ::1.

    An instruction is its code, the counts of instructions to skip if a comparison is true
    and if it is false, and an offset or a value.
    """
    mask = 0xFF000000 if address.is_loopback else 0xFFFFFFFF
    if_not_ipv4 = 3 if address.is_loopback else 12  # to the test for ::1, or to the end
    return [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_AND, 0, 0, 0xF0),  # the version of IP is the upper half of the byte
        (_JUMP_IF_EQUAL, 0, if_not_ipv4, 0x40),
        (_LOAD_WORD, 0, 0, _IP_HEADER + 16),  # the destination in a header of IPv4
        (_AND, 0, 0, mask),
        (_JUMP_IF_EQUAL, 8, 9, int(address) & mask),
        (_LOAD_WORD, 0, 0, _IP_HEADER + 24),  # the destination in a header of IPv6
        (_JUMP_IF_EQUAL, 0, 7, 0),
        (_LOAD_WORD, 0, 0, _IP_HEADER + 28),
        (_JUMP_IF_EQUAL, 0, 5, 0),
        (_LOAD_WORD, 0, 0, _IP_HEADER + 32),
        (_JUMP_IF_EQUAL, 0, 3, 0),
        (_LOAD_WORD, 0, 0, _IP_HEADER + 36),
        (_JUMP_IF_EQUAL, 0, 1, 1),
        (_RETURN, 0, 0, 2**32 - 1),  # accept all bytes
        (_RETURN, 0, 0, 0),  # drop
    ]


def _table_rows(port: int, state: str) -> Iterator[tuple[str, str]]:
    """Yields the local IP address, as hexadecimal words in native byte order, and the inode
    of the system's TCP sockets with a local port and a state.
    """
    for name in ("tcp", "tcp6"):
        table = Path("/proc/self/net", name)
        if not table.exists():
            continue
        lines = table.read_text().splitlines()
        for line in lines[1:]:  # after the titles
            # Fields: number, local address, remote address, state, ..., inode, ...
            fields = line.split()
            local_address, _, local_port = fields[1].rpartition(":")
            if fields[3] == state and int(local_port, 16) == port:
                yield local_address, fields[9]


def _listening_descriptors(port: int) -> Iterator[int]:
    """Yields the file descriptors of this process that listen on a port."""
    links = {f"socket:[{inode}]" for _, inode in _table_rows(port, _LISTENING)}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") in links:
                yield int(descriptor)
        except OSError:
            continue  # the descriptor of the directory listing, which is closed


def _connected_addresses(
    port: int,
) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Yields the addresses of this machine to which there are connections of a port."""
    for local_address, _ in _table_rows(port, _ESTABLISHED):
        # 32-bit words in native byte order; an address is in network byte order.
        native = bytes.fromhex(local_address)
        words = struct.unpack(f"={len(native) // 4}I", native)
        address = ipaddress.ip_address(struct.pack(f">{len(words)}I", *words))
        # An IPv4 address as the socket of an IPv6 server sees it: ::ffff:127.0.0.1.
        yield getattr(address, "ipv4_mapped", None) or address


def _is_allowed(
    destination: ipaddress.IPv4Address | ipaddress.IPv6Address, address: str
) -> bool:
    """Returns whether the filter for `address` accepts packets to a destination."""
    if is_loopback(address):
        return destination.is_loopback
    return str(destination) == address


def _restriction_error(port: int, address: str, reason: str) -> ClusterError:
    """Returns an error that a port cannot be restricted to an address."""
    return ClusterError(
        explain_error(
            f"port {port} cannot be closed to all but {address}: {reason}.",
            way_out="TensorFlow listens on all addresses. If that is "
            f"intended, and the network is closed by other means, say so: --bind={ANY}.",
        )
    )
