"""Training a scanned model, whose variables stack those of all blocks, gives the variables of
the same model with separate blocks.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from transformer.experts.gating import switch
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

SIZES = {
    "vocab": 24,
    "d_model": 16,
    "d_ff": 32,
    "heads": 2,
    "d_kv": 8,
    "blocks": 3,
    "dtype": "float32",
}
# With a smaller epsilon, a rounding error would be a large step where a gradient is 0.
OPTIMIZERS = {
    "LAMB": lambda vs: optimizers.LAMB(vs, 0.02, weight_decay=0.1, epsilon=1e-3),
    "Adafactor": lambda vs: optimizers.Adafactor(
        vs, 0.02, min_dim_size_to_factor=3, weight_decay=0.1
    ),
    "AdamW": lambda vs: optimizers.AdamW(vs, 0.02, epsilon=1e-3),
}
MESHES = {
    "tensor parallelism, ZeRO over layers": {
        "axes": "data:3;model:2",
        "layout": "batch:data; heads:model; d_ff:model",
        "optimizer_layout": "layers:data",
    },
    "layers": {"axes": "data:2;model:3", "layout": "batch:data; layers:model"},
    "live FSDP": {
        "axes": "data:2;model:2",
        "layout": "batch:data; d_ff:model; vocab:model",
        "variable_layout": "d_model:data",
        "devices": "spmd:cpu:4",
    },
}


def make_model(mesh, scanned, experts):
    """Returns a language model; `experts` makes every feed-forward layer a mixture."""
    mixture = functools.partial(MixtureOfExperts, experts=2, gating=switch)
    architecture = Architecture(
        **SIZES, scanned=scanned, moe_every=int(experts), mixture=mixture
    )
    return LanguageModel(mesh, architecture)


def separate_name(name, block):
    """Returns the name of a scanned variable in a block of the model that is not scanned."""
    return name.replace("blocks/block/", f"block_{block}/")


def train(model, make_optimizer, batches):
    trainer = Trainer(model, make_optimizer)
    return [float(trainer.step(batch)[0]) for batch in batches]


@pytest.mark.parametrize(
    "name, mesh, experts",
    [
        ("LAMB", "tensor parallelism, ZeRO over layers", False),
        ("Adafactor", "layers", True),
        ("AdamW", "layers", False),
        pytest.param("LAMB", "live FSDP", True, marks=pytest.mark.slow),
        pytest.param("Adafactor", "live FSDP", False, marks=pytest.mark.slow),
    ],
)
def test_a_scanned_model_is_trained_as_separate_blocks(name, mesh, experts, rng):
    scanned = make_model(mtf.Mesh(**MESHES[mesh]), scanned=True, experts=experts)
    separate = make_model(mtf.Mesh(""), scanned=False, experts=experts)
    variables = {v.name: v for v in separate.variables}
    for variable in scanned.variables:
        array = variable.numpy()
        if "layers" in variable.shape:
            for block in range(SIZES["blocks"]):
                # Blocks have different norms; with much larger ones, rounding errors in the
                # start would be a thousandth of what a step changes.
                array[block] *= 1.25**block
                variables[separate_name(variable.name, block)].assign(array[block])
            variable.assign(array)
        else:
            variables[variable.name].assign(array)
    tokens = rng.integers(1, SIZES["vocab"], size=(2, 6, 9)).astype("int32")
    batches = [{"tokens": x[:, :-1], "targets": x[:, 1:]} for x in tokens]
    before = {name: variable.numpy() for name, variable in variables.items()}
    losses = train(scanned, OPTIMIZERS[name], batches)
    expected = train(separate, OPTIMIZERS[name], batches)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for variable in scanned.variables:
        for block in range(SIZES["blocks"]):
            name = separate_name(variable.name, block)
            array = variable.numpy()
            got = array[block] if "layers" in variable.shape else array
            change = np.linalg.norm(variables[name].numpy() - before[name])
            error = np.linalg.norm(got - variables[name].numpy())
            assert error < 5e-4 * change, name
