"""Which callers a server of TensorFlow hears: those that call one address of this
machine.

TensorFlow's server listens on all addresses, whatever it is told, and lets in whoever
comes. So a packet filter is hung on its listening socket (Linux: SO_ATTACH_FILTER,
classic BPF, which needs no rights): what was not sent to the address is dropped by the
kernel, as if nobody listened there.

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
_HEADER = 2**32 - 0x100000  # SKF_NET_OFF: where the IP header begins
_BYTE, _WORD, _SHIFT, _EQUAL, _ALWAYS, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x05, 0x06
_LISTENING, _ESTABLISHED = "0A", "01"
_CALLED_4, _CALLED_6 = 16, 24  # where in the header the address is that is called


def accept_only(port: int, address: str) -> None:
    """Drops what comes to a port that this process listens on, but was not sent to an
    address.

    Args:
      port: where a server of this process listens.
      address: an IPv4 address of this machine, or "0.0.0.0": then nothing is dropped.

    Raises:
      ClusterError: this system cannot do it, or somebody else came in before it was
        done.
    """
    if address == ANY:
        return
    if sys.platform != "linux":
        raise _impossible(port, address, "only Linux has filters on sockets")
    sockets = list(_own_sockets(port))
    program = _program(ipaddress.IPv4Address(address))
    held = ctypes.create_string_buffer(program)
    wanted = struct.pack("HP", len(program) // 8, ctypes.addressof(held))
    for fd in sockets:
        with socket.socket(fileno=os.dup(fd)) as listening:
            listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, wanted)
    if not sockets:
        raise _impossible(port, address, "no socket of this process listens there")
    strangers = [called for called in _called(port) if not _fits(called, address)]
    if strangers:
        raise _impossible(
            port, address, f"somebody called {strangers[0]} before it was closed"
        )


def _program(address: ipaddress.IPv4Address) -> bytes:
    """Returns the filter: packets to `address`, of loopback to any address of loopback,
    pass.
    """
    four, six = [(_WORD, _HEADER + _CALLED_4, int(address))], []
    if address.is_loopback:
        four = [(_BYTE, _HEADER + _CALLED_4, 127)]
        six = [
            (_WORD, _HEADER + _CALLED_6 + 4 * i, int(i == 3)) for i in range(4)
        ]  # ::1
    take = 3 + 2 * len(four) + 1 + 2 * len(six)
    drop = take + 1
    code = [
        (_BYTE, 0, 0, _HEADER),
        (_SHIFT, 0, 0, 4),  # the version of IP
        (_EQUAL, 0, 2 * len(four) + 1 if six else drop - 3, 4),
    ]
    for tests, after in ((four, [(_ALWAYS, 0, 0, 2 * len(six))]), (six, [])):
        for load, place, value in tests:
            code.append((load, 0, 0, place))
            code.append(
                (_EQUAL, 0, drop - len(code) - 1, value)
            )  # jumps count from the next line
        code += after
    code += [(_RETURN, 0, 0, 2**32 - 1), (_RETURN, 0, 0, 0)]
    return b"".join(struct.pack("HBBI", *line) for line in code)


def _rows(port: int, state: str) -> Iterator[list[str]]:
    for name in ("tcp", "tcp6"):
        table = Path("/proc/self/net", name)
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            row = line.split()
            if row[3] == state and int(row[1].rpartition(":")[2], 16) == port:
                yield row


def _own_sockets(port: int) -> Iterator[int]:
    """Yields the descriptors by which this process listens on a port."""
    wanted = {f"socket:[{row[9]}]" for row in _rows(port, _LISTENING)}
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}") in wanted:
                yield int(fd)
        except OSError:
            continue  # that of the listing itself


def _called(port: int) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Yields the addresses of this machine that callers of a port have reached."""
    for row in _rows(port, _ESTABLISHED):
        written = bytes.fromhex(row[1].partition(":")[0])
        words = struct.unpack(f"={len(written) // 4}I", written)
        raw = struct.pack(
            f">{len(words)}I", *words
        )  # the words are in this machine's order
        found = ipaddress.ip_address(raw)
        mapped = getattr(found, "ipv4_mapped", None)
        yield mapped or found


def _fits(called: ipaddress.IPv4Address | ipaddress.IPv6Address, address: str) -> bool:
    return called.is_loopback if is_loopback(address) else str(called) == address


def _impossible(port: int, address: str, why: str) -> ClusterError:
    return ClusterError(
        explain_error(
            f"port {port} cannot be closed to all but {address}: {why}.",
            way_out="TensorFlow listens on all addresses by itself. Where that is "
            f"wanted, and the network is closed by other means, say so: --bind={ANY}.",
        )
    )
