"""Two runs in one folder: the second is refused, and the error names who has it; a killed one has
nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import meshtf as mtf
from meshtf.checkpoints import lock, only_run

HOLD = """
import os, sys, time, types
from importlib import util
package = types.ModuleType("meshtf")                 # without its vocabulary: no TensorFlow
package.__path__ = [os.path.dirname(os.path.dirname(sys.argv[1]))]
sys.modules["meshtf"] = package
spec = util.spec_from_file_location("lock", sys.argv[1])
lock = util.module_from_spec(spec)
spec.loader.exec_module(lock)
with lock.only_run(sys.argv[2]):
  print("held", flush=True)
  time.sleep(600)
"""


def test_a_folder_is_held_by_one(tmp_path):
    folder = str(tmp_path / "new" / "run")
    with only_run(folder):
        with pytest.raises(
            mtf.CheckpointError,
            match=rf"{folder} is in use by process {os.getpid()} "
            rf"on host {socket.gethostname()}, since 20",
        ):
            with only_run(folder):
                raise AssertionError("two runs")
    with only_run(folder):
        pass


def test_a_killed_process_holds_nothing(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, lock.__file__, str(tmp_path)],
        text=True,
        stdout=subprocess.PIPE,
        cwd=Path(mtf.__file__).parents[1],
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(mtf.CheckpointError, match=f"process {holder.pid} on host"):
            with only_run(str(tmp_path)):
                raise AssertionError("two runs")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    with only_run(str(tmp_path)):
        pass


def test_an_empty_lock_file_of_another_process_is_named(tmp_path):
    with only_run(str(tmp_path)):
        (tmp_path / lock.FILE).write_text("")
        with pytest.raises(mtf.CheckpointError, match="in use by another process"):
            with only_run(str(tmp_path)):
                raise AssertionError("two runs")
