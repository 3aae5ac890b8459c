"""The door of a worker: a second port, where it says that it lives and takes one driver
at a time.

    door = Door((address, 4001), {"devices": 2}, restart)          # in the worker
    ask(("host1", 4001), {"ask": "state"}, timeout=5.0)            # {"life": "1f0c...", ...}

Lines of JSON, one answer to each question. Who asks to drive keeps the connection open:
when it ends, the driver is gone, and the worker starts afresh, so that nothing of a
dead driver stays. The system's own keep-alive notices a driver whose host or network is
gone; and whoever has ended a driver may tell the worker to leave it.
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

_LONGEST = 2**16
Answer = dict[str, Any]


class ControlPort:
    """Answers questions in threads of its own.

    Args:
      where: the address to listen on: no other is heard.
      about: what the worker says of itself.
      prepare: called with the question of a driver before it is let in.
      left: called once the driver has gone.

    Raises:
      OSError: the port is taken, or the address is none of this machine.
    """

    def __init__(
        self,
        where: tuple[str, int],
        about: Mapping[str, Any],
        prepare: Callable[[Answer], None],
        left: Callable[[], None],
    ) -> None:
        self._about, self._prepare, self._left = about, prepare, left
        self._life, self._lock, self._driver = (
            secrets.token_hex(8),
            threading.Lock(),
            "",
        )
        self._socket = socket.create_server(where)
        threading.Thread(target=self._serve, daemon=True, name="door").start()

    def close(self) -> None:
        """Lets nobody in any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(
                socket.SHUT_RDWR
            )  # which wakes who waits for a caller
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._socket.accept()
                threading.Thread(target=self._hear, args=(caller,), daemon=True).start()

    def _hear(self, caller: socket.socket) -> None:
        drives = False
        with caller, caller.makefile("rwb") as lines:
            try:
                while line := lines.readline(_LONGEST):
                    question = json.loads(line)
                    if question["ask"] == "drive":
                        drives = self._let_in(caller, question) or drives
                    lines.write(
                        json.dumps(self._state() | {"granted": drives}).encode() + b"\n"
                    )
                    lines.flush()
                    if (
                        question["ask"] == "leave"
                        and question["life"] == self._life
                        and self._driver
                    ):
                        self._left()
            except (OSError, ValueError, LookupError, TypeError):
                pass  # whoever asks so is not one of ours, or is gone
            finally:
                if drives:
                    self._left()

    def _let_in(self, caller: socket.socket, question: Answer) -> bool:
        with self._lock:
            if self._driver:
                return False
            self._driver = str(question["driver"])
        keep_alive(caller, float(question["timeout"]))
        self._prepare(question)
        return True

    def _state(self) -> Answer:
        return {
            **self._about,
            "life": self._life,
            "driver": self._driver,
            "process": os.getpid(),
        }


class Drive:
    """The connection of a driver to a worker's door, held as long as the driver lives.

    Raises:
      OSError: the worker does not answer in time.
      ClusterError: it has another driver.
    """

    def __init__(
        self, where: tuple[str, int], question: Answer, timeout: float
    ) -> None:
        with socket.create_connection(where, timeout) as connection:
            self.state = _ask(connection, {"ask": "drive", **question})
            if not self.state["granted"]:
                raise ClusterError(f"it is taken by the driver {self.state['driver']}")
            # Only the end of the process closes it: Python's own end may come long
            # before.
            self._held = os.dup(connection.fileno())

    def close(self) -> None:
        """Lets the worker go."""
        os.close(self._held)


def ask(where: tuple[str, int], timeout: float) -> Answer:
    """Returns the state of a worker. Raises OSError: it does not answer in time."""
    with socket.create_connection(where, timeout) as connection:
        return _ask(connection, {"ask": "state"})


def release_driver(where: tuple[str, int], life: str, timeout: float) -> None:
    """Lets a worker start afresh, if this is its life still. Raises OSError: it does
    not answer.
    """
    with socket.create_connection(where, timeout) as connection:
        _ask(connection, {"ask": "leave", "life": life})


def keep_alive(connection: socket.socket, timeout: float) -> None:
    """Lets the system end a connection whose other side has not been there for so many
    seconds.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        every = max(1, round(timeout / 4))
        for option, value in (
            (socket.TCP_KEEPIDLE, every),
            (socket.TCP_KEEPINTVL, every),
            (socket.TCP_KEEPCNT, 3),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _ask(connection: socket.socket, question: Answer) -> Answer:
    connection.sendall(json.dumps(question).encode() + b"\n")
    with connection.makefile("rb") as lines:
        line = lines.readline(_LONGEST)
    if not line:
        raise ConnectionResetError("the connection was closed without an answer")
    try:
        found = json.loads(line)
        return {**found, "life": str(found["life"])}
    except (ValueError, LookupError, TypeError):
        port = connection.getpeername()[1]
        raise ConnectionError(
            f"what answers on port {port} is no worker of meshtf; a worker says which "
            "port to name, and its door is the next one"
        ) from None
