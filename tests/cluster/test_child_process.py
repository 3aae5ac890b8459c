"""Children: they end with their parent, whatever ends that, and their lines have
labels.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshtf.cluster.child_process import Child

ROOT = Path(__file__).resolve().parents[2]
PARENT = """
import sys, time
import meshtf.cluster.child_process as children
child = children.Child([sys.executable, "-c", "import time; time.sleep(100)"])
print(child.pid, flush=True)
time.sleep(100)
"""


def alive(pid):
    """Returns whether a process runs; one that ended, and that nobody asked about, does
    not.
    """
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def python(code, **settings):
    return Child([sys.executable, "-c", code], **settings)


@pytest.mark.skipif(sys.platform != "linux", reason="ties of Linux")
def test_a_child_ends_when_its_parent_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with parent:
        child = int(parent.stdout.readline())
        assert within(
            5.0, lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes()
        )
        parent.kill()
    assert within(5.0, lambda: not alive(child))


def test_lines_have_labels(capfd):
    child = python(
        "import sys; print('one'); print('two', file=sys.stderr)", label="worker 3"
    )
    assert child.wait(20.0) == 0
    assert within(5.0, lambda: not child.printing)
    out, err = capfd.readouterr()
    assert (out, err) == ("[worker 3] one\n", "[worker 3] two\n")


def test_exit_codes_signals_and_the_group(tmp_path):
    assert python("import sys; sys.exit(3)").wait(20.0) == 3
    assert Child(["no-such-program-here"]).wait(20.0) == 1
    code = (
        "import pathlib, subprocess, sys, time\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(100)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(inner.pid))\n"
        "time.sleep(100)"
    )
    child = python(code)
    assert within(20.0, (tmp_path / "pid").exists) and within(
        5.0, lambda: (tmp_path / "pid").read_text()
    )
    assert child.code is None and child.wait(0.05) is None
    child.kill()
    assert child.code == -signal.SIGKILL
    assert within(5.0, lambda: not alive(int((tmp_path / "pid").read_text())))
    child.kill()  # once more does no harm
