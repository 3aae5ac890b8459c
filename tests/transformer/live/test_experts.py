"""Fifty steps of a language model of experts on live meshes of 2, 8 and 32 devices: losses,
norms, the experts' loads and variables are those of one device under the placed runtime.

A token whose second and third expert are equally likely but for a rounding error could go
to another expert on another mesh. With this seed none does: the loads are compared.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.transformer.live.processes import train_apart
from tests.transformer.live.training import Training, check_equal, train

EXPERTS = {"count": 32}
LAYOUTS = {  # the devices that share the experts of a mixture
    "2": {"axes": "data:2", "layout": "batch:data; experts:data"},
    "32": {"axes": "data:32", "layout": "batch:data; experts:data"},
    "2 of 4 times 2": {
        "axes": "data:4; model:2",
        "layout": "batch:data; experts:model",
    },
    "4 of 4 times 2": {
        "axes": "data:4; model:2",
        "layout": "batch:data; experts:data; d_ff:model; heads:model; vocab:model",
    },
    "2 of 16 times 2": {
        "axes": "data:16; model:2",
        "layout": "batch:data; experts:model",
    },
    "16 of 16 times 2": {
        "axes": "data:16; model:2",
        "layout": "batch:data; experts:data; d_ff:model; heads:model; vocab:model",
    },
    "32 with FSDP": {
        "axes": "data:32",
        "layout": "batch:data; experts:data",
        "variable_layout": "d_ff:data",
    },
}


@functools.cache
def train_on_one_device() -> Training:
    return train("experts", EXPERTS)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_fifty_steps_equal_one_device(name, tmp_path):
    live = train_apart(tmp_path, "experts", options=EXPERTS, **LAYOUTS[name])
    placed = train_on_one_device()
    for block in ("block_0", "block_1"):
        loads = live.curves[f"{block} load"]
        np.testing.assert_allclose(loads, placed.curves[f"{block} load"], atol=1e-6)
        assert (placed.curves[f"{block} loss"] > 0.05).all()  # it counts
    check_equal(live, placed)
