"""The control port of a worker: a second port, which answers health checks and accepts
one driver at a time.

    port = ControlPort((address, 4001), about, prepare, restart)   # in the worker
    ask(("host1", 4001), {"ask": "state"}, timeout=5.0)            # {"life": "1f0c...", ...}

The protocol is lines of JSON, one response to each request. A driver keeps its connection
open: when the connection ends, the driver has ended, and the worker restarts, so that no
state of that driver remains. TCP keep-alive detects a driver whose host or network has
failed. A supervisor that has killed a driver can ask the worker to release it.

A worker draws an id when it starts, its "life": a different one means that it restarted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from meshtf.errors import ClusterError

_MAX_LINE = 2**16  # bytes of a request or response
Answer = dict[str, Any]


class ControlPort:
    """Answers requests in separate threads.

    Args:
      address: (host, port) to listen on; connections to other addresses are not accepted.
      about: fields of each response: what the worker offers.
      prepare: called with the request of a driver before it is accepted.
      on_driver_end: called when the driver has ended.

    Raises:
      OSError: the port is in use, or the address is not one of this machine.
    """

    def __init__(
        self,
        address: tuple[str, int],
        about: Mapping[str, Any],
        prepare: Callable[[Answer], None],
        on_driver_end: Callable[[], None],
    ) -> None:
        self._about = about
        self._prepare = prepare
        self._on_driver_end = on_driver_end
        self._life = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._driver = ""
        self._socket = socket.create_server(address)
        thread = threading.Thread(target=self._serve, daemon=True, name="control port")
        thread.start()

    def close(self) -> None:
        """Accepts no more connections."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # interrupts `accept`
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(
                    target=self._answer, args=(connection,), daemon=True
                ).start()

    def _answer(self, connection: socket.socket) -> None:
        """Answers the requests of one connection until it ends."""
        is_driver = False
        with connection, connection.makefile("rwb") as lines:
            try:
                while line := lines.readline(_MAX_LINE):
                    request = json.loads(line)
                    if request["ask"] == "drive":
                        is_driver = (
                            self._accept_driver(connection, request) or is_driver
                        )
                    response = self._state() | {"granted": is_driver}
                    lines.write(json.dumps(response).encode() + b"\n")
                    lines.flush()
                    if request["ask"] == "leave":
                        self._release(request)
            except (OSError, ValueError, LookupError, TypeError):
                pass  # not a client of ours, or the connection is lost
            finally:
                if is_driver:
                    self._on_driver_end()

    def _accept_driver(self, connection: socket.socket, request: Answer) -> bool:
        """Returns whether the driver is accepted: no other one is connected."""
        with self._lock:
            if self._driver:
                return False
            self._driver = str(request["driver"])
        keep_alive(connection, float(request["timeout"]))
        self._prepare(request)
        return True

    def _release(self, request: Answer) -> None:
        if request["life"] == self._life and self._driver:
            self._on_driver_end()

    def _state(self) -> Answer:
        return {
            **self._about,
            "life": self._life,
            "driver": self._driver,
            "process": os.getpid(),
        }


class Drive:
    """The connection of a driver to a worker's control port, open while the driver lives.

    Args:
      address: (host, port) of the control port.
      request: the fields "driver", "timeout" and "deterministic".
      timeout: seconds to wait for the response.

    Raises:
      OSError: the worker does not answer in time.
      ClusterError: it has another driver.
    """

    def __init__(
        self, address: tuple[str, int], request: Answer, timeout: float
    ) -> None:
        with socket.create_connection(address, timeout) as connection:
            self.state = _ask(connection, {"ask": "drive", **request})
            if not self.state["granted"]:
                raise ClusterError(f"it is taken by the driver {self.state['driver']}")
            # A duplicate that only `close` or the end of the process closes: Python may
            # close its sockets long before the process ends.
            self._descriptor = os.dup(connection.fileno())

    def close(self) -> None:
        """Releases the worker."""
        os.close(self._descriptor)


def ask(address: tuple[str, int], timeout: float) -> Answer:
    """Returns the state of a worker. Raises OSError if it does not answer in time."""
    with socket.create_connection(address, timeout) as connection:
        return _ask(connection, {"ask": "state"})


def release_driver(address: tuple[str, int], life: str, timeout: float) -> None:
    """Makes a worker release its driver and restart, if it has not restarted since `life`
    was read. Raises OSError if it does not answer.
    """
    with socket.create_connection(address, timeout) as connection:
        _ask(connection, {"ask": "leave", "life": life})


def keep_alive(connection: socket.socket, timeout: float) -> None:
    """Makes the system close a connection whose other side does not respond for `timeout`
    seconds.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        interval = max(1, round(timeout / 4))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _ask(connection: socket.socket, request: Answer) -> Answer:
    connection.sendall(json.dumps(request).encode() + b"\n")
    with connection.makefile("rb") as lines:
        line = lines.readline(_MAX_LINE)
    if not line:
        raise ConnectionResetError("the connection was closed without an answer")
    try:
        response = json.loads(line)
        return {**response, "life": str(response["life"])}
    except (ValueError, LookupError, TypeError):
        port = connection.getpeername()[1]
        raise ConnectionError(
            f"what answers on port {port} is no worker of meshtf; a worker says which "
            "port to name, and its control port is the next one"
        ) from None
