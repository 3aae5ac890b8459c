"""meshtf.runtime.heartbeat: what a watcher reads is the last sign of life."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from meshtf.runtime import heartbeat


def pulses():
    return sum(thread.name == "pulse" for thread in threading.enumerate())


def test_the_first_sign_starts_the_pulse(tmp_path, monkeypatch):
    monkeypatch.delenv(heartbeat.VARIABLE, raising=False)
    path = tmp_path / "beats"
    before = pulses()
    heartbeat.beat("nobody watches")
    assert pulses() == before
    monkeypatch.setenv(heartbeat.VARIABLE, str(path))
    for _ in range(2):
        heartbeat.beat("begins")
    assert pulses() == before + 1
    end = time.monotonic() + 30.0
    while not heartbeat.pulse_file(path).exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert heartbeat.pulse_file(path).exists()


def test_of_many_threads_the_last_sign_stays(tmp_path, monkeypatch):
    path = tmp_path / "beats"
    monkeypatch.setenv(heartbeat.VARIABLE, str(path))
    heartbeat.beat("begins")
    first = int(path.read_text().split()[0])
    for milliseconds in range(50, 1001, 50):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(heartbeat.beat, ["of a thread"] * 50))
        assert path.read_text() == f"{first + milliseconds} of a thread"
