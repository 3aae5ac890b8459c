"""Two hundred steps of a language model on live meshes of eight devices, under thirteen layouts:
losses, norms and variables are those of one device under the placed runtime.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from tests.cluster.processes import steps
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.input_batches import batches
from transformer.training.trainer import Trainer

pytestmark = pytest.mark.slow
STEPS = 200
TENSOR = "heads:model; d_ff:model; vocab:model"
FSDP = {"variable_layout": "d_model:data"}
LAYOUTS = {
    "data": {"axes": "data:8", "layout": "batch:data"},
    "FSDP": {"axes": "data:8", "layout": "batch:data", **FSDP},
    "ZeRO-1": {
        "axes": "data:8",
        "layout": "batch:data",
        "optimizer_layout": "d_model:data",
    },
    "two axes": {
        "axes": "data:2; fsdp:4",
        "layout": "batch:data+fsdp",
        "variable_layout": "d_model:fsdp+data",
    },
    "tensor": {"axes": "data:2; model:4", "layout": TENSOR},
    "4x2": {"axes": "data:4; model:2", "layout": f"batch:data; {TENSOR}"},
    "2x4": {"axes": "data:2; model:4", "layout": f"batch:data; {TENSOR}"},
    "FSDP and tensor": {
        "axes": "data:4; model:2",
        "layout": f"batch:data; {TENSOR}",
        **FSDP,
    },
    "length": {"axes": "data:2; seq:4", "layout": "batch:data; length:seq"},
    "vocab": {"axes": "model:8", "layout": "vocab:model"},
    "width": {"axes": "data:2; model:4", "layout": "batch:data; d_model:model"},
    "d_ff": {"axes": "data:1; model:8", "layout": "d_ff:model"},
    "2x2x2": {
        "axes": "data:2; seq:2; model:2",
        "layout": f"batch:data; length:seq; {TENSOR}",
        **FSDP,
    },
}
Curve = list[tuple[float, float]]  # loss and norm of the gradients, of each step


def train(devices: str | None, axes: str, **layouts: str) -> tuple[Curve, Trainer]:
    """Returns the losses and norms of all steps, and the trainer after them.

    With a smaller epsilon, Adam would turn a rounding error into a large step where a
    gradient is 0.
    """
    model = LanguageModel(
        mtf.Mesh(axes, devices=devices, **layouts),
        Architecture(256, d_model=16, d_ff=32, heads=4, d_kv=8, blocks=2, dropout=0.2),
    )
    trainer = Trainer(
        model,
        lambda variables: mtf.optimizers.AdamW(
            variables, 1e-3, weight_decay=0.1, epsilon=1e-3
        ),
        seed=7,
    )
    results = [
        trainer.step(batch)
        for batch in batches(model, steps.text(), 16, 0, num_batches=STEPS)
    ]
    return [(float(loss), float(norm)) for loss, norm in results], trainer


@functools.cache
def train_on_one_device() -> tuple[Curve, Trainer]:
    """Returns the results of the placed runtime."""
    return train(None, axes="")


@pytest.mark.sampled(3, together="long runs")
@pytest.mark.parametrize("name", LAYOUTS)
def test_two_hundred_steps_equal_one_device(name):
    curve, live = train("spmd:cpu", **LAYOUTS[name])
    expected, placed = train_on_one_device()
    np.testing.assert_allclose(curve, expected, rtol=5e-5)
    assert expected[-1][0] < 0.9 * expected[0][0]  # it has learned something
    assert live.variables.keys() == placed.variables.keys()
    for path, variable in placed.variables.items():
        value = variable.numpy()
        scale = np.sqrt((value**2).mean())  # relative to the variable's size
        np.testing.assert_allclose(
            live.variables[path].numpy(),
            value,
            rtol=5e-5,
            atol=5e-5 * scale,
            err_msg=path,
        )
