"""The door of a worker: it tells that it lives, and lets in one driver at a time."""

from __future__ import annotations

import queue
import socket
import time

import pytest

from meshtf.cluster.addresses import LOOPBACK, free_ports
from meshtf.cluster.control_port import ControlPort, Drive, _ask, ask, release_driver
from meshtf.errors import ClusterError

QUESTION = {"driver": "me", "timeout": 5.0}


class Opened:
    """A door, what drivers asked, and a queue that is filled when one leaves."""

    def __init__(self):
        self.where, self.asked, self.left = (
            (LOOPBACK, free_ports(1)[0]),
            [],
            queue.Queue(),
        )
        ControlPort(
            self.where, {"devices": 2}, self.asked.append, lambda: self.left.put(True)
        )


@pytest.fixture
def door():
    return Opened()


def test_it_tells_about_the_worker_and_its_life(door):
    first, second = ask(door.where, 5.0), ask(door.where, 5.0)
    assert first == second and first["devices"] == 2 and first["driver"] == ""
    assert ask(Opened().where, 5.0)["life"] != first["life"]


def test_one_driver_is_let_in_and_its_end_is_noticed(door):
    drive = Drive(door.where, QUESTION, 5.0)
    assert ask(door.where, 5.0)["driver"] == "me" and door.asked[0]["driver"] == "me"
    with pytest.raises(ClusterError, match="taken by the driver me"):
        Drive(door.where, {**QUESTION, "driver": "you"}, 5.0)
    assert door.left.empty() and len(door.asked) == 1
    drive.close()
    assert door.left.get(timeout=5.0)


def test_it_leaves_a_driver_when_it_is_told_to_in_this_life(door):
    release_driver(door.where, ask(door.where, 5.0)["life"], 5.0)
    drive = Drive(door.where, QUESTION, 5.0)
    release_driver(door.where, "another life", 5.0)
    time.sleep(0.1)
    assert door.left.empty()
    release_driver(door.where, drive.state["life"], 5.0)
    assert door.left.get(timeout=5.0)


def test_who_only_asks_may_leave(door):
    ask(door.where, 5.0)
    time.sleep(0.1)
    assert door.left.empty()


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
def test_strangers_do_no_harm(door, said):
    with socket.create_connection(door.where, 5.0) as stranger:
        stranger.sendall(said)
    assert ask(door.where, 5.0)["driver"] == ""
    Drive(door.where, QUESTION, 5.0).close()


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
