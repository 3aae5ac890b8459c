"""Initial values on live meshes: the host computes small ones for CPU devices, equal layers
share a program, and errors lose nothing.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.spmd import initial_values

NORMAL = mtf.layers.initializers.normal(0.5)


@pytest.fixture
def no_values_on_host(monkeypatch):
    """Has programs compute all values, as on accelerators."""
    monkeypatch.setattr(initial_values, "_MAX_ELEMENTS_ON_HOST", 0)


@pytest.fixture
def programs(monkeypatch):
    """The names of the programs that compute initial values, in order."""
    names = []

    class Program(initial_values.LiveProgram):
        def __init__(self, recorded, stores, runs_once=False):
            super().__init__(recorded, stores, runs_once)
            names.append(recorded.name)

    monkeypatch.setattr(initial_values, "LiveProgram", Program)
    return names


def variables_on(devices):
    """Five equal random variables, two of them over other axes, and three more."""
    mesh = mtf.Mesh("data:2;model:2", "e:model", devices=devices, seed=3)
    variables = [mtf.Variable(mesh, "d:4;e:6", NORMAL, f"v{i}") for i in range(5)]
    by_data = mtf.Layout.changes("d:data")
    variables += [
        mtf.Variable(mesh, "d:4;e:6", NORMAL, f"w{i}", layout=by_data) for i in range(2)
    ]
    variables.append(mtf.Variable(mesh, "e:6;d:4", NORMAL, "x"))
    variables += [mtf.Variable(mesh, "d:4;e:6", "zeros", f"z{i}") for i in range(4)]
    return variables


def test_the_host_computes_small_values_for_cpu_devices(programs):
    live = [v.numpy() for v in variables_on("spmd:cpu")]
    assert not programs  # nothing is compiled
    for a, b in zip(live, [v.numpy() for v in variables_on(None)], strict=True):
        np.testing.assert_array_equal(a, b)


def test_large_values_need_no_memory_of_the_host(programs, monkeypatch):
    monkeypatch.setattr(initial_values, "_MAX_ELEMENTS_ON_HOST", 23)
    mesh = mtf.Mesh("data:2;model:2", "e:model", devices="spmd:cpu", seed=3)
    small = mtf.Variable(mesh, "d:4", NORMAL, "small")
    large = mtf.Variable(mesh, "d:4;e:6", NORMAL, "large")
    assert small.numpy().any() and large.numpy().any()
    assert programs == ["initial_values"]


@pytest.mark.usefixtures("no_values_on_host")
def test_equal_variables_share_a_program(programs):
    live = [v.numpy() for v in variables_on("spmd:cpu")]
    assert programs == ["initial_value", "initial_values"]
    placed = [v.numpy() for v in variables_on(None)]
    for a, b in zip(live, placed, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)
    distinct = {v.tobytes() for v in live}
    assert len(distinct) == 9  # all zeros are equal


@pytest.mark.sampled(3)
@pytest.mark.parametrize("limit", [0, 1 << 22], ids=["programs", "host"])
@pytest.mark.parametrize("failing_use", range(8))
def test_after_an_error_values_are_as_without_it(monkeypatch, failing_use, limit):
    monkeypatch.setattr(initial_values, "_MAX_ELEMENTS_ON_HOST", limit)
    expected = [v.numpy() for v in variables_on("spmd:cpu")]
    variables = variables_on("spmd:cpu")
    use = initial_values._use_result
    uses = []

    def interrupted_use(pending, result):
        uses.append(pending)
        if len(uses) == failing_use + 1:
            raise KeyboardInterrupt
        use(pending, result)

    monkeypatch.setattr(initial_values, "_use_result", interrupted_use)
    with pytest.raises(KeyboardInterrupt):
        variables[0].numpy()
    for v, value in zip(variables, expected, strict=True):
        np.testing.assert_array_equal(v.numpy(), value)
