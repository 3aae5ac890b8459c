"""meshtf.runtime.heartbeat: what a watcher reads is the last sign of life."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from meshtf.runtime import heartbeat


def test_of_many_threads_the_last_sign_stays(tmp_path, monkeypatch):
    path = tmp_path / "beats"
    monkeypatch.setenv(heartbeat.VARIABLE, str(path))
    heartbeat.beat("begins")
    first = int(path.read_text().split()[0])
    for given in range(50, 1001, 50):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(heartbeat.beat, ["of a thread"] * 50))
        assert path.read_text() == f"{first + given} of a thread"
