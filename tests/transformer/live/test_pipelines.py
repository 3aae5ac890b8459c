"""Fifty steps of layers that differ, in stages on live meshes, under several schedules: losses,
norms and variables are those of one device under the placed runtime.
"""

from __future__ import annotations

import functools

import pytest

from tests.transformer.live.training import Training, check_equal, train

TENSOR = "d_ff:model; vocab:model"
CASES = {
    "two stages": (
        {"axes": "stage:2"},
        {"microbatches": 4, "schedule": "1f1b"},
    ),
    "four stages": (
        {"axes": "stage:4"},
        {"microbatches": 8, "schedule": "gpipe"},
    ),
    "four stages and data": (
        {"axes": "stage:4; data:2", "layout": "batch:data"},
        {"microbatches": 8, "schedule": "1f1b", "recompute": True},
    ),
    "interleaved and data": (
        {"axes": "stage:2; data:4", "layout": "batch:data"},
        {"microbatches": 2, "schedule": "1f1b", "chunks": 2},
    ),
    "tensor": (
        {"axes": "stage:2; model:4", "layout": TENSOR},
        {"microbatches": 4, "schedule": "gpipe"},
    ),
    "data and tensor": (
        {"axes": "stage:2; data:2; model:2", "layout": f"batch:data; {TENSOR}"},
        {"microbatches": 4, "schedule": "1f1b"},
    ),
    "FSDP": (
        {
            "axes": "stage:2; data:4",
            "layout": "batch:data",
            "variable_layout": "d_model:data",
        },
        {"microbatches": 4, "schedule": "gpipe", "recompute": True},
    ),
}


@functools.cache
def train_on_one_device() -> Training:
    return train("pipeline")


@pytest.mark.slow
@pytest.mark.sampled(3, together="long runs")
@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_equal_one_device(name):
    mesh, options = CASES[name]
    live = train("pipeline", options, devices="spmd:cpu", **mesh)
    check_equal(live, train_on_one_device())
