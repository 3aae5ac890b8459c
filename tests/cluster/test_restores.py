"""Checkpoints of two workers in one process, of one process on two workers, and among
these.
"""

from __future__ import annotations

import json
import sys

import pytest

import meshtf as mtf
from tests.checkpoints.models import MESHES, bits, variables
from tests.cluster.processes import restores
from tests.cluster.processes.launched import Launched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="workers close their ports on Linux"
    ),
]
ONES = ("one device", "fsdp of 8", "tensor parallel")
EVERY = [True] * len(restores.MESHES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("restores")


@pytest.fixture(scope="module")
def results(folder):
    """What the program finds on two workers with two devices each, given checkpoints of
    one.
    """
    for k, key in enumerate(ONES):
        mtf.checkpoints.save(str(folder / f"one_{k}"), 3, variables(key, seed=1))
    command = [sys.executable, "-m", "tests.cluster.processes.restores", str(folder)]
    with Launched(command, "--workers=2", "--devices_each=2") as launched:
        assert launched.wait() == 0, launched.text
    return json.loads(next(line for line in launched.lines if line.startswith("{")))


@pytest.mark.sampled(3, together="several processes")
def test_one_process_to_two_workers(results):
    assert results["one to two"] == [EVERY] * len(ONES)


@pytest.mark.sampled(3, together="several processes")
def test_two_workers_to_two_workers_in_all_layouts(results):
    assert results["hosts"] == [2] * len(EVERY)
    assert results["two to two"] == [EVERY] * len(EVERY)


@pytest.mark.parametrize("k", range(len(EVERY)), ids=list(restores.MESHES))
def test_two_workers_to_one_process(results, folder, k):
    expected = bits(variables("one device", seed=2))
    assert len(set(expected.values())) == len(expected)
    for key in MESHES:
        state = variables(key, seed=3)
        mtf.checkpoints.restore(restores.saved(str(folder / f"two_{k}"), 3), state)
        assert bits(state) == expected, key


def test_a_folder_that_workers_do_not_see_is_refused(results):
    assert "not all workers see the folder" in results["unshared"]
    assert "task:0" in results["unshared"] and "task:1" in results["unshared"]
