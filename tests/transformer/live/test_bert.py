"""Fifty steps of BERT's pretraining on live meshes of eight devices: losses, norms and
variables are those of one device under the placed runtime.
"""

from __future__ import annotations

import functools

import pytest

from tests.transformer.live.training import Training, check_equal, train

TENSOR = "heads:model; d_ff:model; vocab:model"
LAYOUTS = {
    "data": {"axes": "data:8", "layout": "batch:data"},
    "data and tensor": {
        "axes": "data:4; model:2",
        "layout": f"batch:data; {TENSOR}",
    },
    "FSDP": {
        "axes": "data:8",
        "layout": "batch:data",
        "variable_layout": "d_model:data",
    },
    "FSDP and tensor": {
        "axes": "data:2; model:4",
        "layout": f"batch:data; {TENSOR}",
        "variable_layout": "d_model:data",
    },
    "ZeRO-1": {
        "axes": "data:8",
        "layout": "batch:data",
        "optimizer_layout": "d_model:data",
    },
}


@functools.cache
def train_on_one_device() -> Training:
    return train("BERT")


@pytest.mark.slow
@pytest.mark.sampled(3, together="long runs")
@pytest.mark.parametrize("name", LAYOUTS)
def test_fifty_steps_equal_one_device(name):
    live = train("BERT", devices="spmd:cpu", **LAYOUTS[name])
    check_equal(live, train_on_one_device())
