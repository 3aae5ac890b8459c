"""Restricts a TensorFlow server to packets that are sent to one address of this machine.

TensorFlow's server listens on all addresses, whatever its configuration, and accepts every
connection. So a packet filter is attached to its listening socket (Linux: SO_ATTACH_FILTER,
classic BPF, which needs no privileges): the kernel drops packets to other addresses, as if
no process were listening there.

    server = tf.distribute.Server(...)
    hear_only(4000, "127.0.0.1")
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

_ATTACH_FILTER = 26  # of <asm-generic/socket.h>
_HEADER = 2**32 - 0x100000  # SKF_NET_OFF: the offset of the IP header
_BYTE = 0x30
_WORD = 0x20
_SHIFT = 0x74
_EQUAL = 0x15
_ALWAYS = 0x05
_RETURN = 0x06
_LISTENING = "0A"
_ESTABLISHED = "01"
# Offsets of the destination address in the headers of IPv4 and IPv6.
_DESTINATION_4 = 16
_DESTINATION_6 = 24


def accept_only(port: int, address: str) -> None:
    """Drops packets to a port of this process that are sent to other addresses.

    Args:
      port: on which a server of this process listens.
      address: an IPv4 address of this machine, or "0.0.0.0": then nothing is dropped.

    Raises:
      ClusterError: this system does not support it, or another address was connected to
        before the filter was attached.
    """
    if address == ANY:
        return
    if sys.platform != "linux":
        raise _impossible(port, address, "only Linux has filters on sockets")
    sockets = list(_own_sockets(port))
    program = _program(ipaddress.IPv4Address(address))
    instructions = ctypes.create_string_buffer(program)
    # struct sock_fprog: the number of instructions, and a pointer to them.
    filter_option = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))
    for fd in sockets:
        with socket.socket(fileno=os.dup(fd)) as listening:
            listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filter_option)
    if not sockets:
        raise _impossible(port, address, "no socket of this process listens there")
    for destination in _connected_addresses(port):
        if not _is_allowed(destination, address):
            raise _impossible(
                port, address, f"somebody called {destination} before it was closed"
            )


def _program(address: ipaddress.IPv4Address) -> bytes:
    """Returns the BPF program: it accepts packets to `address`; if that is a loopback
    address, packets to all loopback addresses.
    """
    # Tests of the destination: (load instruction, offset, required value).
    four = [(_WORD, _HEADER + _DESTINATION_4, int(address))]
    six = []
    if address.is_loopback:
        four = [(_BYTE, _HEADER + _DESTINATION_4, 127)]
        six = [
            (_WORD, _HEADER + _DESTINATION_6 + 4 * i, int(i == 3)) for i in range(4)
        ]  # ::1
    # Line numbers of the last two instructions, which accept and drop.
    accept = 3 + 2 * len(four) + 1 + 2 * len(six)
    drop = accept + 1
    code = [
        (_BYTE, 0, 0, _HEADER),
        (_SHIFT, 0, 0, 4),  # the version of IP
        (_EQUAL, 0, 2 * len(four) + 1 if six else drop - 3, 4),
    ]
    for tests, after in ((four, [(_ALWAYS, 0, 0, 2 * len(six))]), (six, [])):
        for load, offset, value in tests:
            code.append((load, 0, 0, offset))
            jump = drop - len(code) - 1  # counted from the next line
            code.append((_EQUAL, 0, jump, value))
        code += after
    code += [(_RETURN, 0, 0, 2**32 - 1), (_RETURN, 0, 0, 0)]
    return b"".join(struct.pack("HBBI", *line) for line in code)


def _connection_table(port: int, state: str) -> Iterator[list[str]]:
    """Yields the fields of the system's TCP connections of a local port in a state."""
    for name in ("tcp", "tcp6"):
        table = Path("/proc/self/net", name)
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            fields = line.split()
            local_port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == state and local_port == port:
                yield fields


def _own_sockets(port: int) -> Iterator[int]:
    """Yields the file descriptors of this process that listen on a port."""
    links = {f"socket:[{fields[9]}]" for fields in _connection_table(port, _LISTENING)}
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}") in links:
                yield int(fd)
        except OSError:
            continue  # the descriptor of the directory listing


def _connected_addresses(
    port: int,
) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Yields the addresses of this machine to which a port has connections."""
    for fields in _connection_table(port, _ESTABLISHED):
        # 32-bit words in this machine's byte order.
        native = bytes.fromhex(fields[1].partition(":")[0])
        words = struct.unpack(f"={len(native) // 4}I", native)
        address = ipaddress.ip_address(struct.pack(f">{len(words)}I", *words))
        yield getattr(address, "ipv4_mapped", None) or address


def _is_allowed(
    destination: ipaddress.IPv4Address | ipaddress.IPv6Address, address: str
) -> bool:
    if is_loopback(address):
        return destination.is_loopback
    return str(destination) == address


def _impossible(port: int, address: str, reason: str) -> ClusterError:
    return ClusterError(
        explain_error(
            f"port {port} cannot be closed to all but {address}: {reason}.",
            way_out="TensorFlow listens on all addresses. If that is "
            f"intended, and the network is closed by other means, say so: --bind={ANY}.",
        )
    )
