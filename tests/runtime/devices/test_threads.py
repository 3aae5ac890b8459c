"""Positions share the processor's threads out where that was asked for, unless somebody
said otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from meshtf.runtime.devices import threads

_TOLD = """
import tensorflow as tf
{before}
import meshtf as mtf
{configure}
{mesh}
mtf.ones(mesh, "d:64").numpy()
print(tf.config.threading.get_intra_op_parallelism_threads())
"""


def threads_in_process(mesh, before="", configure="mtf.configure_process()", **env):
    clean = {k: v for k, v in os.environ.items() if k != "TF_NUM_INTRAOP_THREADS"}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _TOLD.format(before=before, configure=configure, mesh=mesh),
        ],
        check=True,
        text=True,
        capture_output=True,
        env=clean | env,
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    "cores, positions, share", [(2, 8, 1), (16, 8, 2), (16, 1, 0), (6, 4, 1)]
)
def test_each_position_has_its_share(cores, positions, share, monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda _: set(range(cores)), raising=False
    )
    assert threads.threads_of(positions) == share


@pytest.mark.parametrize(
    "configured_threads, variable, expected_threads",
    [(3, "5", 3), (0, "5", 5), (0, "0", 2), (0, "many", 2), (0, None, 2)],
)
def test_how_many_there_are(
    configured_threads, variable, expected_threads, monkeypatch
):
    monkeypatch.setattr(
        tf.config.threading,
        "get_intra_op_parallelism_threads",
        lambda: configured_threads,
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", variable)
    assert threads.op_threads() == expected_threads


@pytest.mark.slow
@pytest.mark.sampled(3, together="long runs")
@pytest.mark.parametrize(
    "mesh",
    [
        'mesh = mtf.Mesh("data:64", "d:data")',
        'mesh = mtf.Mesh("data:64", devices="logical:64")',
    ],
)
def test_ops_of_many_positions_have_one_thread(mesh):
    assert threads_in_process(mesh) == max(1, len(os.sched_getaffinity(0)) // 64)


@pytest.mark.slow
@pytest.mark.sampled(3, together="long runs")
def test_what_the_user_said_stays():
    mesh = 'mesh = mtf.Mesh("data:8")'
    assert (
        threads_in_process(
            mesh, "tf.config.threading.set_intra_op_parallelism_threads(3)"
        )
        == 3
    )
    # TensorFlow has started after the process was configured.
    assert (
        threads_in_process(mesh, configure="mtf.configure_process(); tf.zeros([])") == 0
    )
    assert threads_in_process(mesh, TF_NUM_INTRAOP_THREADS="2") == 0
    assert threads_in_process('mesh = mtf.Mesh("")') == 0
    assert threads_in_process(mesh, configure="") == 0  # nobody asked
