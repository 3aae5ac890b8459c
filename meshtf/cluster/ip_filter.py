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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from meshtf.cluster.addresses import ANY, is_loopback
from meshtf.errors import ClusterError, explain_error

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of <asm-generic/socket.h>
# SKF_NET_OFF: added to the offset of a byte in the IP header, not in the TCP header.
_IP_HEADER = 2**32 - 0x100000
# Codes of BPF instructions.
_LOAD_BYTE = 0x30
_LOAD_WORD = 0x20
_SHIFT_RIGHT = 0x74
_JUMP_IF_EQUAL = 0x15
_JUMP = 0x05
_RETURN = 0x06
# States of connections in /proc/net/tcp.
_LISTENING = "0A"
_ESTABLISHED = "01"
# Offsets of the destination address in the headers of IPv4 and IPv6.
_IPV4_DESTINATION = 16
_IPV6_DESTINATION = 24


class _Instruction(NamedTuple):
    """A BPF instruction: struct sock_filter of <linux/filter.h>.

    Attributes:
      code: what the instruction does.
      if_true: the count of instructions to skip if a comparison is true.
      if_false: the count of instructions to skip if it is false.
      operand: an offset, a value, or the count of instructions that `_JUMP` skips.
    """

    code: int
    if_true: int = 0
    if_false: int = 0
    operand: int = 0


class _AddressTest(NamedTuple):
    """A comparison of one or four bytes of a packet's destination address.

    Attributes:
      load: the code of the instruction that loads the bytes.
      offset: the offset of the bytes.
      value: the required value.
    """

    load: int
    offset: int
    value: int


class _TableRow(NamedTuple):
    """A TCP connection, or listening socket, of /proc/net/tcp or tcp6.

    Attributes:
      local_address: the local IP address, as hexadecimal words in native byte order.
      inode: the inode of the socket.
    """

    local_address: str
    inode: str


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
    # struct sock_filter: 16 bits, twice 8 bits, 32 bits.
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


def _program(address: ipaddress.IPv4Address) -> list[_Instruction]:
    """Returns the BPF program: it accepts packets to `address`; if that is a loopback
    address, packets to all loopback addresses.

    The program tests the version of IP, then the destination as an IPv4 address or as an
    IPv6 address. Its last two instructions accept and drop the packet.
    """
    ipv4_tests = [_AddressTest(_LOAD_WORD, _IPV4_DESTINATION, int(address))]
    ipv6_tests = []
    if address.is_loopback:
        ipv4_tests = [_AddressTest(_LOAD_BYTE, _IPV4_DESTINATION, value=127)]  # 127.*
        for i, word in enumerate((0, 0, 0, 1)):  # ::1
            offset = _IPV6_DESTINATION + 4 * i
            ipv6_tests.append(_AddressTest(_LOAD_WORD, offset, value=word))
    # The counts of instructions: each test has two.
    version_size = 3
    ipv4_size = 2 * len(ipv4_tests) + 1  # with a jump after the tests
    ipv6_size = 2 * len(ipv6_tests)
    accept_index = version_size + ipv4_size + ipv6_size
    drop_index = accept_index + 1
    # Jumps are counted from the next instruction.
    to_ipv6_tests = ipv4_size
    to_drop = drop_index - version_size
    if_not_ipv4 = to_ipv6_tests if ipv6_tests else to_drop
    # The version of IP is the upper half of the header's first byte.
    code = [
        _Instruction(_LOAD_BYTE, operand=_IP_HEADER),
        _Instruction(_SHIFT_RIGHT, operand=4),
        _Instruction(_JUMP_IF_EQUAL, if_false=if_not_ipv4, operand=4),  # IPv4?
    ]
    _add_tests(code, ipv4_tests, drop_index)
    code.append(_Instruction(_JUMP, operand=ipv6_size))  # to accept
    _add_tests(code, ipv6_tests, drop_index)
    code.append(_Instruction(_RETURN, operand=2**32 - 1))  # accept all bytes
    code.append(_Instruction(_RETURN, operand=0))  # drop
    return code


def _add_tests(
    code: list[_Instruction], tests: Sequence[_AddressTest], drop_index: int
) -> None:
    """Appends instructions that jump to `drop_index` unless all tests succeed."""
    for test in tests:
        code.append(_Instruction(test.load, operand=_IP_HEADER + test.offset))
        to_drop = drop_index - len(code) - 1
        code.append(_Instruction(_JUMP_IF_EQUAL, if_false=to_drop, operand=test.value))


def _table_rows(port: int, state: str) -> Iterator[_TableRow]:
    """Yields the system's TCP connections with a local port and a state."""
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
                yield _TableRow(local_address, inode=fields[9])


def _listening_descriptors(port: int) -> Iterator[int]:
    """Yields the file descriptors of this process that listen on a port."""
    links = {f"socket:[{row.inode}]" for row in _table_rows(port, _LISTENING)}
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
    for row in _table_rows(port, _ESTABLISHED):
        # 32-bit words in native byte order; an address is in network byte order.
        native = bytes.fromhex(row.local_address)
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
