"""CPUs keep freed memory with TensorFlow's own allocator, unless the user said
otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from meshtf.runtime.tf_internals.freed_memory import keep_freed_memory

_TOLD = """
import tensorflow as tf
import meshtf as mtf
mtf.ones(mtf.Mesh(""), "d:4096").numpy()
try:
  print(tf.config.experimental.get_memory_info("CPU:0")["peak"])
except ValueError:                     # of the system's allocator TensorFlow knows nothing
  print("unknown")
"""
_VARIABLES = "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"


def told(**env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", _TOLD],
        check=True,
        text=True,
        capture_output=True,
        env=clean | env,
    ).stdout.strip()


@pytest.mark.slow
def test_tensorflow_allocates_unless_the_user_said_otherwise():
    assert int(told()) >= 4 * 4096
    without = {
        "TF_CPU_ALLOCATOR_USE_BFC": "0",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }  # oneDNN has one, too
    assert told(**without) == "unknown"


def test_as_much_as_the_machine_has(monkeypatch):
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    keep_freed_memory()
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert int(os.environ[_VARIABLES[1]]) == there // 2**20


def test_what_the_user_said_stays(monkeypatch):
    for name in _VARIABLES:
        monkeypatch.setenv(name, "0")
    keep_freed_memory()
    assert [os.environ[name] for name in _VARIABLES] == ["0", "0"]
