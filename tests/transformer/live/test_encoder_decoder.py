"""Fifty steps of an encoder-decoder on live meshes of eight devices: losses, norms and
variables are those of one device under the placed runtime.
"""

from __future__ import annotations

import functools

import pytest

from tests.transformer.live.training import Training, check_equal, train

TENSOR = "heads:model; d_ff:model; vocab:model"
LAYOUTS = {
    "data and tensor": {
        "axes": "data:4; model:2",
        "layout": f"batch:data; {TENSOR}",
    },
    "FSDP": {
        "axes": "data:8",
        "layout": "batch:data",
        "variable_layout": "d_model:data",
    },
    "lengths": {
        "axes": "data:2; seq:4",
        "layout": "batch:data; length:seq; inputs_length:seq",
    },
}


@functools.cache
def train_on_one_device() -> Training:
    return train("encoder-decoder")


@pytest.mark.slow
@pytest.mark.sampled(3, together="long runs")
@pytest.mark.parametrize("name", LAYOUTS)
def test_fifty_steps_equal_one_device(name):
    live = train("encoder-decoder", devices="spmd:cpu", **LAYOUTS[name])
    check_equal(live, train_on_one_device())
