"""Memory: saving and restoring take less than one slice beside the run's own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIZE = 512  # MiB of each of two variables
PAIRS = [
    ("one device", "fsdp of 8", SIZE),
    ("fsdp of 8", "one device", SIZE),
    ("fsdp of 8", "tensor parallel", SIZE // 4),
    ("tensor parallel", "fsdp of 8", SIZE // 8),
]


# TensorFlow's own allocator, which oneDNN has too, takes memory in large regions, of
# which it may touch any part: what is resident then tells little about what is used.
ENVIRONMENT = (
    {"TF_CPP_MIN_LOG_LEVEL": "3"}
    | os.environ
    | {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPU_ALLOCATOR_USE_BFC": "0"}
)


def rise(*words):
    done = subprocess.run(
        [sys.executable, "-m", "tests.checkpoints.memory_worker", *map(str, words)],
        cwd=ROOT,
        env=ENVIRONMENT,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]) / 2**20


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns what saves under a layout, once, and tells the folder and how far memory
    rose.
    """

    @functools.cache
    def save(layout):
        folder = tmp_path_factory.mktemp("saved")
        return folder, rise("save", folder, layout, SIZE)

    return save


@pytest.mark.sampled(3, together="long runs")
@pytest.mark.slow
@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc"
)
@pytest.mark.parametrize("before, after, slice_", PAIRS)
def test_memory_rises_by_less_than_a_slice(before, after, slice_, saved, capsys):
    folder, saving = saved(before)
    restoring = rise("restore", folder, after, SIZE)
    with capsys.disabled():
        print(
            f"\n{before} -> {after}: saving {saving:.0f} MiB, restoring "
            f"{restoring:.0f} MiB more; "
            f"a slice has {slice_} MiB, all {2 * SIZE} MiB"
        )
    assert saving < slice_ and restoring < slice_
