"""What a driver is told when its workers are not there."""

from __future__ import annotations

import pytest

import meshtf as mtf
from meshtf.cluster.addresses import LOOPBACK, free_ports
from meshtf.cluster.control_port import ControlPort, DriverConnection

QUESTION = {"driver": "another one", "timeout": 5.0, "deterministic": False}


def connect(port):
    with pytest.raises(mtf.ClusterError) as error:
        mtf.connect(f"{LOOPBACK}:{port}", wait=0.1)
    assert not mtf.connected() and mtf.lost_workers() == []
    return str(error.value)


def test_a_worker_that_is_not_there_is_to_be_started():
    said = connect(free_ports(1)[0])
    assert "refused" in said and "python -m meshtf worker --port=PORT" in said


def test_a_worker_that_is_taken_is_not():
    port = free_ports(1)[0]
    ControlPort((LOOPBACK, port + 1), {"devices": 1}, lambda _: None, lambda: None)
    drive = DriverConnection((LOOPBACK, port + 1), QUESTION, 5.0)
    said = connect(port)
    assert (
        "taken by the driver another one" in said
        and "Wait until that driver has ended" in said
    )
    assert "Start" not in said
    drive.close()


def test_a_text_that_names_no_worker_is_refused():
    with pytest.raises(mtf.ParseError, match="names no worker"):
        mtf.connect("localhost")
