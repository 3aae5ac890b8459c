"""Training with sizes that no axis divides: vocabulary, heads, width, batch. Losses and
variables are those of one device.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

pytestmark = pytest.mark.slow
STEPS, BATCH, LENGTH, VOCAB = 10, 5, 9, 17
TENSOR = "heads:model; d_ff:model; vocab:model"
LAYOUTS = {
    "data": {"axes": "data:4", "layout": "batch:data"},
    "tensor": {"axes": "model:4", "layout": TENSOR},
    "both": {"axes": "data:2;model:4", "layout": f"batch:data;{TENSOR}"},
    "FSDP": {
        "axes": "data:4",
        "layout": "batch:data",
        "variable_layout": "d_model:data",
    },
    "two axes": {
        "axes": "data:2;fsdp:2;model:2",
        "layout": f"batch:data+fsdp;{TENSOR}",
        "variable_layout": "d_model:data+fsdp",
    },
    "length": {"axes": "seq:4;data:2", "layout": "batch:data;length:seq"},
    "width": {"axes": "model:4", "layout": "d_model:model"},
    "experts": {"axes": "data:4", "layout": "batch:data;experts:data"},
}


def train(experts: int, **mesh):
    """Returns losses and norms [steps, 2], and all variables after the steps.

    Args:
      experts: the number of experts; 0: no mixtures of experts.
      **mesh: the arguments of the mesh.
    """
    mixture = functools.partial(MixtureOfExperts, experts=experts) if experts else None
    architecture = Architecture(
        VOCAB,
        d_model=14,
        d_ff=30,
        heads=3,
        d_kv=6,
        blocks=1,
        dropout=0.2,
        mixture=mixture,
    )
    trainer = Trainer(
        LanguageModel(mtf.Mesh(**mesh), architecture),
        # With a smaller epsilon Adam would make a whole step of a rounding error, where a
        # gradient is 0.
        lambda variables: mtf.optimizers.AdamW(
            variables, 0.01, weight_decay=0.1, epsilon=1e-4
        ),
        seed=7,
    )
    curve = []
    for step in range(STEPS):
        random = np.random.default_rng(step)
        sequences = random.integers(0, VOCAB, (BATCH, LENGTH + 1)).astype("int32")
        batch = {
            "tokens": np.ascontiguousarray(sequences[:, :-1]),
            "targets": np.ascontiguousarray(sequences[:, 1:]),
        }
        curve.append([float(x) for x in trainer.step(batch)])
    return np.array(curve), {name: v.numpy() for name, v in trainer.variables.items()}


@functools.cache
def train_on_one_device(experts: int):
    return train(experts, axes="")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("devices", [None, "separate:8", "spmd:cpu"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sizes_that_no_axis_divides(layout, devices):
    experts = 6 if layout == "experts" else 0
    mesh = LAYOUTS[layout]
    size = mtf.Mesh(mesh["axes"]).size
    if devices == "separate:8":
        devices = f"separate:{size}"
    expected_curve, expected = train_on_one_device(experts)
    curve, variables = train(experts, **mesh, devices=devices)
    np.testing.assert_allclose(curve, expected_curve, rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(
            variables[name], value, rtol=1e-4, atol=1e-5, err_msg=name
        )
