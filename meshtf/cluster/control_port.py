"""The control port of a worker: a second port besides TensorFlow's, which answers health
checks and accepts one driver at a time.

    # In the worker:
    ControlPort((address, 4001), about, prepare=prepare, on_driver_end=restart)
    # In a driver or a supervisor:
    ask(("host1", 4001), timeout=5.0)          # {"life": "1f0c...", "driver": "", ...}

Requests and responses are lines of JSON, with one response to each request:

    {"ask": "state"}                 asks for the state of the worker
    {"ask": "drive", "driver": ...}  asks to become the worker's driver
    {"ask": "leave", "life": ...}    asks to release the driver, and to restart

A driver keeps its connection open. When the connection ends, the driver has ended, and the
worker restarts, so that no state of that driver remains. TCP keep-alive detects a driver
whose host or network has failed. A supervisor that has killed a driver can ask the worker
to release it.

A worker draws a random id when it starts, its "life": a different life means that the
worker has restarted.
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

_MAX_LINE = 2**16  # the maximum bytes of a request or response
Message = dict[str, Any]  # a request or response


class ControlPort:
    """Answers requests in separate threads.

    Args:
      address: the pair (host, port) to listen on; connections to other addresses are not
        accepted.
      about: fields of each response, such as the devices of the worker.
      prepare: a function that is called with the request of a driver before the driver is
        accepted.
      on_driver_end: a function that is called when the driver has ended.

    Raises:
      OSError: the port is in use, or the host is no address of this machine.
    """

    def __init__(
        self,
        address: tuple[str, int],
        about: Mapping[str, Any],
        prepare: Callable[[Message], None],
        on_driver_end: Callable[[], None],
    ) -> None:
        self._about = about
        self._prepare = prepare
        self._on_driver_end = on_driver_end
        self._life = secrets.token_hex(8)
        self._lock = threading.Lock()  # while `_driver` is read and set
        self._driver = ""  # the driver in words; "": there is none
        self._socket = socket.create_server(address)
        thread = threading.Thread(target=self._serve, daemon=True, name="control port")
        thread.start()

    def close(self) -> None:
        """Closes the port: further connections are refused."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # interrupts `accept`
        self._socket.close()

    def _serve(self) -> None:
        """Answers each connection in a separate thread, until the port is closed."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                thread = threading.Thread(
                    target=self._answer, args=(connection,), daemon=True
                )
                thread.start()

    def _answer(self, connection: socket.socket) -> None:
        """Answers the requests of one connection until it ends."""
        is_driver = False
        with connection, connection.makefile("rwb") as lines:
            try:
                while line := lines.readline(_MAX_LINE):
                    request = json.loads(line)
                    if request["ask"] == "drive":
                        if self._accept_driver(connection, request):
                            is_driver = True
                    # Decided before the response: the client may connect as a driver as
                    # soon as it has read it, and that driver must not be released.
                    must_release = self._must_release(request)
                    response = self._state() | {"granted": is_driver}
                    lines.write(json.dumps(response).encode() + b"\n")
                    lines.flush()
                    if must_release:
                        self._on_driver_end()
            except (OSError, ValueError, LookupError, TypeError):
                pass  # not a client of ours, or the connection is lost
            finally:
                if is_driver:
                    self._on_driver_end()

    def _accept_driver(self, connection: socket.socket, request: Message) -> bool:
        """Accepts a driver unless another one is connected; returns whether it did."""
        with self._lock:
            if self._driver:
                return False
            self._driver = str(request["driver"])
        keep_alive(connection, float(request["timeout"]))
        self._prepare(request)
        return True

    def _must_release(self, request: Message) -> bool:
        """Returns whether a request asks to release the present driver, and is not about an
        earlier life.
        """
        is_about_this_life = request.get("life") == self._life
        return request["ask"] == "leave" and is_about_this_life and bool(self._driver)

    def _state(self) -> Message:
        """Returns the state of the worker."""
        return {
            **self._about,
            "life": self._life,
            "driver": self._driver,
            "process": os.getpid(),
        }


class DriverConnection:
    """The connection of a driver to a worker's control port, which stays open until the
    driver ends.

    Args:
      address: the pair (host, port) of the control port.
      request: the fields "driver", "timeout" and "deterministic" of the request.
      timeout: seconds to wait for the response.

    Attributes:
      state: the state of the worker when it accepted the driver.

    Raises:
      OSError: the worker does not answer in time.
      ClusterError: the worker has another driver.
    """

    def __init__(
        self, address: tuple[str, int], request: Message, timeout: float
    ) -> None:
        with socket.create_connection(address, timeout) as connection:
            self.state = _ask(connection, {"ask": "drive", **request})
            if not self.state["granted"]:
                raise ClusterError(f"it is taken by the driver {self.state['driver']}")
            # A duplicate, which only `close` or the end of the process closes. Python may
            # close its own sockets long before the process ends.
            self._descriptor = os.dup(connection.fileno())

    def close(self) -> None:
        """Releases the worker."""
        os.close(self._descriptor)


def ask(address: tuple[str, int], timeout: float) -> Message:
    """Returns the state of a worker.

    Args:
      address: the pair (host, port) of the control port.
      timeout: seconds to wait for the response.

    Raises:
      OSError: the worker does not answer in time.
    """
    with socket.create_connection(address, timeout) as connection:
        return _ask(connection, {"ask": "state"})


def release_driver(address: tuple[str, int], life: str, timeout: float) -> None:
    """Makes a worker release its driver and restart, unless it has already restarted.

    Args:
      address: the pair (host, port) of the control port.
      life: the life of the worker whose driver is to be released.
      timeout: seconds to wait for the response.

    Raises:
      OSError: the worker does not answer in time.
    """
    with socket.create_connection(address, timeout) as connection:
        _ask(connection, {"ask": "leave", "life": life})


def keep_alive(connection: socket.socket, timeout: float) -> None:
    """Makes the operating system close a connection whose other side does not respond for
    about `timeout` seconds.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not on all systems
        # A quarter until the first probe, and another after each of three probes.
        interval = max(1, round(timeout / 4))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _ask(connection: socket.socket, request: Message) -> Message:
    """Sends a request, and returns the response.

    Raises:
      OSError: the other side does not answer, or is no worker of meshtf.
    """
    connection.sendall(json.dumps(request).encode() + b"\n")
    with connection.makefile("rb") as lines:
        line = lines.readline(_MAX_LINE)
    if not line:
        raise ConnectionResetError("the connection was closed without an answer")
    try:
        response = json.loads(line)
        return {**response, "life": str(response["life"])}
    except (ValueError, LookupError, TypeError):
        _, port, *_ = connection.getpeername()
        raise ConnectionError(
            f"what answers on port {port} is no worker of meshtf; a worker says which "
            "port to name, and its control port is the next one"
        ) from None
