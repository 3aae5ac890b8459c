"""The control port of a worker: it answers health checks, and accepts one driver at a time."""

from __future__ import annotations

import io
import json
import queue
import socket
import time

import pytest

from meshtf.cluster.addresses import LOOPBACK, free_ports
from meshtf.cluster.control_port import (
    ControlPort,
    DriverConnection,
    _ask,
    ask,
    release_driver,
)
from meshtf.errors import ClusterError

QUESTION = {"driver": "me", "timeout": 5.0}


class Opened:
    """A control port, what drivers asked, and a queue that is filled when one leaves."""

    def __init__(self):
        self.where = LOOPBACK, free_ports(1)[0]
        self.asked = []
        self.left = queue.Queue()
        self.port = ControlPort(
            self.where, {"devices": 2}, self.asked.append, lambda: self.left.put(True)
        )


@pytest.fixture
def opened():
    return Opened()


def test_it_tells_about_the_worker_and_its_life(opened):
    first = ask(opened.where, 5.0)
    second = ask(opened.where, 5.0)
    assert first == second and first["devices"] == 2 and first["driver"] == ""
    assert ask(Opened().where, 5.0)["life"] != first["life"]


def test_one_driver_is_let_in_and_its_end_is_noticed(opened):
    drive = DriverConnection(opened.where, QUESTION, 5.0)
    assert (
        ask(opened.where, 5.0)["driver"] == "me" and opened.asked[0]["driver"] == "me"
    )
    with pytest.raises(ClusterError, match="taken by the driver me"):
        DriverConnection(opened.where, {**QUESTION, "driver": "you"}, 5.0)
    assert opened.left.empty() and len(opened.asked) == 1
    drive.close()
    assert opened.left.get(timeout=5.0)


def test_it_ends_a_driver_on_request_of_the_same_incarnation(opened):
    release_driver(opened.where, ask(opened.where, 5.0)["life"], 5.0)
    drive = DriverConnection(opened.where, QUESTION, 5.0)
    release_driver(opened.where, "another life", 5.0)
    time.sleep(0.1)
    assert opened.left.empty()
    release_driver(opened.where, drive.state["life"], 5.0)
    assert opened.left.get(timeout=5.0)


class LeaveThenDrive(io.BytesIO):
    """A connection that asks to leave; as soon as it is answered, a driver connects."""

    def __init__(self, opened):
        life = ask(opened.where, 5.0)["life"]
        super().__init__(json.dumps({"ask": "leave", "life": life}).encode() + b"\n")
        self.opened = opened

    def makefile(self, mode):
        return self

    def write(self, response):
        return len(response)

    def flush(self):
        self.driver = DriverConnection(self.opened.where, QUESTION, 5.0)


def test_a_release_leaves_the_next_driver_alone(opened):
    connection = LeaveThenDrive(opened)
    opened.port._answer(connection)
    assert opened.left.empty()
    connection.driver.close()
    assert opened.left.get(timeout=5.0)


def test_who_only_asks_may_leave(opened):
    ask(opened.where, 5.0)
    time.sleep(0.1)
    assert opened.left.empty()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b'{"ask": 1',
        b'{"ask": "drive"}\n',
        b"\xff" * 70000,
    ],
)
def test_strangers_do_no_harm(opened, said):
    with socket.create_connection(opened.where, 5.0) as stranger:
        stranger.sendall(said)
    assert ask(opened.where, 5.0)["driver"] == ""
    DriverConnection(opened.where, QUESTION, 5.0).close()


def test_what_answers_otherwise_is_no_worker():
    with socket.create_server((LOOPBACK, 0)) as other:
        with (
            socket.create_connection(other.getsockname()) as caller,
            other.accept()[0] as answering,
        ):
            answering.sendall(b"220 smtp ready\n")
            with pytest.raises(
                ConnectionError, match=r"on port \d+ is no worker of meshtf"
            ):
                _ask(caller, {"ask": "state"})


def test_silence_has_a_limit():
    with socket.create_server((LOOPBACK, 0)) as silent:
        with pytest.raises(TimeoutError):
            ask(silent.getsockname(), 0.2)
