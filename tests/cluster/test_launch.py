"""Workers for real: one process's numbers, where data go, and an end whatever ends the
launcher.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import meshtf as mtf
from tests.cluster.processes import steps
from tests.cluster.processes.launched import Launched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="workers close their ports on Linux"
    ),
]


@pytest.fixture(scope="module")
def results():
    """What `steps` finds on two workers with two devices each."""
    command = [sys.executable, "-m", "tests.cluster.processes.steps"]
    with Launched(command, "--workers=2", "--devices_each=2") as launched:
        assert launched.wait() == 0, launched.text
    print(launched.text)
    return json.loads(next(line for line in launched.lines if line.startswith("{")))


@pytest.mark.sampled(3, together="several processes")
def test_all_devices_of_all_workers_are_visible(results):
    assert results["devices"] == [
        f"/job:worker/replica:0/task:{w}/device:CPU:{i}" for w in (0, 1) for i in (0, 1)
    ]


@pytest.mark.parametrize("case", range(len(steps.MESHES)), ids=map(str, steps.MESHES))
def test_losses_are_those_of_one_process(results, case):
    own = steps.losses(mtf.Mesh(layout=steps.LAYOUT, **steps.MESHES[case]))
    np.testing.assert_allclose(results["losses"][case], own, rtol=1e-5)
    assert len(set(own)) == len(own)


@pytest.mark.parametrize("axes", ["data:4", "data:8"])
def test_a_reduction_crosses_the_network_once_for_each_host(results, axes):
    assert results["reductions"][axes] == {"all_reduce": 2 * (2 - 1) * 1000 * 4}


def test_less_crosses_where_the_chatty_axis_stays_within_a_host(results):
    assert results["chatty"]["model"] < results["chatty"]["data"] / 4


def test_each_host_reads_its_own_examples(results):
    assert results["read"] == {
        "equal": True,
        "devices": [True] * 4,
        "hosts": ["task:0", "task:0", "task:1", "task:1"],
    }


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.sampled(3, together="several processes")
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_and_command_end_with_the_launcher(signal_number):
    waiting = [
        sys.executable,
        "-c",
        "import time; print('ready', flush=True); time.sleep(600)",
    ]
    with Launched(waiting, "--workers=2") as launched:
        assert launched.wait_for("^ready"), launched.text
        launched_pids = [
            int(pid)
            for child in (launched.pid,)
            for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split()
        ]
        assert len(launched_pids) == 3 and set(launched.workers.values()) < set(
            launched_pids
        )
        os.kill(launched.pid, signal_number)
        assert launched.wait() == (
            -signal_number if signal_number == signal.SIGKILL else 128 + signal_number
        )
    end = time.monotonic() + 10.0
    while any(map(alive, launched_pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, launched_pids))
    assert "TensorFlow's protocol has no authentication" in launched.text
