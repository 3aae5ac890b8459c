"""Fifty steps in two processes of four devices each, or in four of two: losses, norms and
variables are those of one process of eight devices.
"""

from __future__ import annotations

import pytest

from tests.transformer.live.processes import train_together
from tests.transformer.live.training import check_equal, train

TENSOR = "heads:model; d_ff:model; vocab:model"
CASES = {
    "data": (
        "language model",
        {"axes": "data:8", "layout": "batch:data", "options": {"blocks": 1}},
    ),
    "FSDP and tensor": (
        "language model",
        {
            "axes": "data:4; model:2",
            "layout": f"batch:data; {TENSOR}",
            "variable_layout": "d_model:data",
            "options": {"blocks": 1},
        },
    ),
    "pipeline": (
        "language model",
        {
            "axes": "stage:4; data:2",
            "layout": "layers:stage; batch:data; vocab:stage",
            "options": {"blocks": 4, "scanned": True},
        },
    ),
    "pipeline across processes, FSDP": (
        "language model",
        {
            "axes": "stage:2; data:2; model:2",
            "layout": f"layers:stage; batch:data; {TENSOR}",
            "variable_layout": "d_model:data",
            "microbatches": 4,
            "options": {"blocks": 3, "scanned": True, "recompute": True},
        },
    ),
    "pipeline of repeats": (
        "language model",
        {
            "axes": "stage:4; data:2",
            "layout": "layers:stage; batch:data; vocab:stage",
            "microbatches": 4,
            "repeats": 2,
            "options": {"blocks": 8, "scanned": True},
        },
    ),
    "experts": (
        "experts",
        {
            "axes": "data:8",
            "layout": "batch:data; experts:data",
            "options": {"count": 32},
        },
    ),
}


@pytest.mark.slow
@pytest.mark.sampled(4, together="long runs")
@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_equal_one_process(name, tmp_path):
    model, settings = CASES[name]
    workers = 4 if "repeats" in settings else 2
    together = train_together(tmp_path, model, workers, **settings)
    check_equal(together, train(model, devices="spmd:cpu", **settings))
    if "pipeline" in name:
        check_equal(together, train(model, settings["options"]))
