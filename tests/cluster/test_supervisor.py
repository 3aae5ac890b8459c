"""The supervisor: what it notices, whom it names, what it starts again, and how it
ends.

Workers are control ports without TensorFlow behind them, and drivers are a line of Python.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time

import pytest

from meshtf.cluster.addresses import LOOPBACK, Address, free_ports
from meshtf.cluster.connect import LOST
from meshtf.cluster.control_port import ControlPort
from meshtf.cluster.supervisor import (
    STALLED,
    Limits,
    RemoteWorkers,
    supervise,
    with_cluster,
)
from meshtf.runtime.heartbeat import VARIABLE

LIMITS = Limits(timeout=1.0, start=20.0, wait=5.0)


class Fake:
    """Workers, each of them a control port that can be closed as the end of a process would
    close it.
    """

    def __init__(self, num_workers=2):
        self.addresses = [Address(LOOPBACK, port) for port in free_ports(num_workers)]
        self.control_ports = [
            ControlPort(a.control_address, {}, lambda question: None, lambda: None)
            for a in self.addresses
        ]

    def restart_lost(self):
        """Does nothing: tests restart workers themselves."""

    def end(self, i):
        """Ends worker i: its port refuses."""
        self.control_ports[i].close()

    def silence(self, i):
        """Lets worker i hang: its port is open, and nobody answers."""
        self.end(i)
        self.silent = socket.create_server(self.addresses[i].control_address)

    def again(self, i):
        """Starts worker i anew."""
        if hasattr(self, "silent"):
            self.silent.close()
        self.control_ports[i] = ControlPort(
            self.addresses[i].control_address, {}, lambda question: None, lambda: None
        )


@pytest.fixture(autouse=True)
def signals():
    """Gives signals back, which a supervisor takes for itself."""
    before = {
        signal_number: signal.getsignal(signal_number)
        for signal_number in (signal.SIGINT, signal.SIGTERM)
    }
    yield
    for signal_number, handler in before.items():
        signal.signal(signal_number, handler)


@contextlib.contextmanager
def soon(seconds, action):
    timer = threading.Timer(seconds, action)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def python(code):
    return [sys.executable, "-c", code]


def beating(then):
    """Returns a driver that gives signs of life, and then does something else."""
    return python(
        "import os, sys, time\n"
        f"def beat(n, kind): open(os.environ[{VARIABLE!r}], 'w').write(f'{{n}} "
        f"{{kind}}')\n" + then
    )


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_command_that_ends_by_itself_is_not_begun_again(code, capfd):
    limits = LIMITS._replace(restarts=3)
    assert (
        supervise(python(f"print('once'); raise SystemExit({code})"), Fake(), limits)
        == code
    )
    assert capfd.readouterr().out == "once\n"


def test_the_command_knows_its_workers(capfd):
    fake = Fake()
    expected = ",".join(map(str, fake.addresses))
    supervise([*python("import sys; print(sys.argv[1:])"), "--steps=2"], fake, LIMITS)
    assert capfd.readouterr().out == f"['--steps=2', '--cluster={expected}']\n"
    assert with_cluster(["a", "--at={cluster}"], [Address("h", 1)]) == ["a", "--at=h:1"]


def test_a_worker_that_ends_is_named_soon(capfd):
    fake = Fake()
    began = time.monotonic()
    with soon(0.5, lambda: fake.end(1)):
        assert supervise(python("import time; time.sleep(60)"), fake, LIMITS) == LOST
    assert time.monotonic() - began < 10.0
    assert (
        f"worker 1 at {fake.addresses[1]} is lost: its process has ended"
        in capfd.readouterr().err
    )


def test_a_worker_that_hangs_is_named_after_the_limit(capfd):
    fake = Fake()
    with soon(0.5, lambda: fake.silence(0)):
        assert supervise(python("import time; time.sleep(60)"), fake, LIMITS) == LOST
    assert (
        "worker 0 at" in (said := capfd.readouterr().err)
        and "has not answered for" in said
    )


def test_a_worker_that_started_afresh_is_not_the_one_that_it_was(capfd):
    fake = Fake()

    def restart():
        fake.end(1)
        fake.again(1)

    with soon(0.6, restart):
        assert supervise(python("import time; time.sleep(60)"), fake, LIMITS) == LOST
    assert "worker 1" in capfd.readouterr().err


@pytest.mark.sampled(3, together="drivers")
def test_with_restarts_it_waits_for_the_worker_and_goes_on(tmp_path, capfd):
    fake = Fake()
    runs = tmp_path / "runs"
    code = (
        f"import pathlib, time; p = pathlib.Path({str(runs)!r})\n"
        "n = len(p.read_text()) if p.exists() else 0\n"
        "p.write_text('x' * (n + 1))\n"
        "time.sleep(0 if n else 60)"
    )
    with soon(1.5, lambda: fake.end(1)), soon(4.0, lambda: fake.again(1)):
        assert (
            supervise(python(code), fake, LIMITS._replace(restarts=1, wait=20.0)) == 0
        )
    assert runs.read_text() == "xx"
    assert "fault 1: going on" in capfd.readouterr().err


def test_restarts_are_counted(tmp_path, capfd):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert (
        supervise(python(code), Fake(), LIMITS._replace(restarts=2))
        == 128 + signal.SIGKILL
    )
    said = capfd.readouterr().err
    assert (
        said.count("the driver was ended by SIGKILL") == 3 and "after 3 faults" in said
    )


def test_a_driver_that_lost_a_worker_says_so_by_its_code():
    fake = Fake()
    assert supervise(python(f"raise SystemExit({LOST})"), fake, LIMITS) == LOST


@pytest.mark.sampled(3, together="drivers")
def test_a_driver_without_signs_of_life_is_stuck(capfd):
    code = beating(
        "beat(1, 'traces step'); time.sleep(2)\n"  # a first call may take long
        "beat(2, 'ran step'); beat(3, 'runs step'); time.sleep(60)"
    )
    assert supervise(code, Fake(), LIMITS) == STALLED
    assert (
        "is stuck: no sign of life for 1 s; last: runs step" in capfd.readouterr().err
    )


def test_a_start_has_a_limit_of_its_own(capfd):
    assert (
        supervise(
            python("import time; time.sleep(60)"), Fake(), LIMITS._replace(start=0.5)
        )
        == STALLED
    )
    assert "last: starting" in capfd.readouterr().err


@pytest.mark.sampled(3, together="drivers")
def test_a_driver_that_is_stopped_as_it_starts_is_noticed_long_before_that_limit(capfd):
    code = (
        "import meshtf.runtime.heartbeat, os, signal, time\n"
        "meshtf.runtime.heartbeat.beat('starting'); time.sleep(1)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    limits = LIMITS._replace(timeout=4.0, start=600.0)
    assert supervise(python(code), Fake(), limits) == STALLED
    assert (
        "is stuck: it has stood still for 4 s; last: starting" in capfd.readouterr().err
    )


@pytest.mark.sampled(3, together="drivers")
def test_signs_of_life_keep_it_going():
    code = beating("for n in range(15): beat(n, 'runs step'); time.sleep(0.2)")
    assert supervise(code, Fake(), LIMITS) == 0


def test_workers_that_do_not_come_are_named(capfd):
    fake = Fake()
    fake.end(1)
    assert (
        supervise(
            python("print('never')"),
            RemoteWorkers(fake.addresses),
            LIMITS._replace(wait=0.5),
        )
        == LOST
    )
    out, err = capfd.readouterr()
    assert (
        not out
        and f"worker 1 at {fake.addresses[1]}: no answer" in err
        and "--wait" in err
    )
    assert f"worker 0 at {fake.addresses[0]}: there" in err


@pytest.mark.sampled(3, together="drivers")
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_the_drivers_to_hear(signal_number, capfd):
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(signal_number)}, lambda *_: sys.exit(75))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    with soon(3.0, lambda: os.kill(os.getpid(), signal_number)):
        assert supervise(python(code), Fake(), LIMITS._replace(restarts=3)) == 75
    assert capfd.readouterr().out == "ready\n"


@pytest.mark.sampled(3, together="drivers")
def test_a_driver_that_does_not_stop_is_stopped():
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    with soon(2.0, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        assert supervise(python(code), Fake(), LIMITS) == 128 + signal.SIGTERM
