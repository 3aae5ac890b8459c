"""Fifty steps in two processes of four devices each: losses, norms and variables are those of
one process of eight devices.
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
@pytest.mark.sampled(3, together="long runs")
@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_equal_one_process(name, tmp_path):
    model, settings = CASES[name]
    together = train_together(tmp_path, model, **settings)
    check_equal(together, train(model, devices="spmd:cpu", **settings))
