"""jax's errors about memory become meshtf's; others stay."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.spmd.live import jax_slot
from meshtf.runtime.spmd.live.jax_errors import memory_errors

JAX_TEXT = "RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nAllocator: 3 lines"


def test_an_error_about_memory_has_the_name_and_the_first_line():
    with (
        pytest.raises(mtf.DeviceMemoryError, match="^train_step needs more") as caught,
        memory_errors("train_step"),
    ):
        raise RuntimeError(JAX_TEXT)
    assert caught.value.program == "train_step"
    assert caught.value.reason == JAX_TEXT.split("\n")[0]
    assert caught.value.__suppress_context__  # without jax's traceback


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("INTERNAL: gloo: connection closed"),
        mtf.DeviceMemoryError("the inner program", JAX_TEXT),
    ],
)
def test_other_errors_stay(error):
    with pytest.raises(type(error)) as caught, memory_errors("train_step"):
        raise error
    assert caught.value is error


def test_a_value_that_does_not_fit_when_it_is_assigned(monkeypatch):
    """As if a checkpoint were restored."""
    mesh = mtf.Mesh("data:2", devices="spmd:cpu")
    v = mtf.Variable(mesh, "d:4", "ones", "v")
    v.numpy()
    jax = jax_slot.load_jax()

    def full(*args, **kwargs):
        raise RuntimeError(JAX_TEXT)

    monkeypatch.setattr(jax, "device_put", full)
    with pytest.raises(mtf.DeviceMemoryError, match="the value of a variable needs"):
        v.slots()[0].assign(np.zeros(4, "float32"))
