"""`fit` on a mesh of eight positions is Keras' `fit`: history, weights, slots and metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import pytest

import meshtf as mtf
from tests.keras.models import (
    Trained,
    assert_equal,
    batches,
    cnn,
    compiled,
    train,
    transformer,
)

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
}
FSDP = {"layout": "batch:data", "variable_layout": "channels_2:data"}
# The model, the optimizer, the mesh, its layouts, and the size of a batch.
PLACED = [
    (cnn, "adam", "data:8", {"layout": "batch:data"}, 14),
    (cnn, "sgd", "data:4; model:2", {"layout": "batch:data; channels_2:model"}, 8),
    (cnn, "adamw", "data:8", FSDP, 8),
    (cnn, "adam", "data:2; rows:4", {"layout": "batch:data; height:rows"}, 14),
    (transformer, "sgd", "data:8", {"layout": "batch:data"}, 14),
    (
        transformer,
        "adam",
        "data:4; model:2",
        {"layout": "batch:data; heads:model; vocab:model"},
        8,
    ),
    (
        transformer,
        "adamw",
        "data:8",
        {"layout": "batch:data", "variable_layout": "d_model:data"},
        14,
    ),
    (transformer, "adam", "data:2; seq:4", {"layout": "batch:data; length:seq"}, 8),
]
LIVE = [PLACED[1], PLACED[2], PLACED[5], PLACED[7]]


@functools.cache
def by_keras(build: Callable[[], keras.Model], optimizer: str, size: int) -> Trained:
    """Returns what Keras makes of three steps, the last of a smaller batch."""
    x, y = batches(build, size, 3)
    model = compiled(build, OPTIMIZERS[optimizer], metrics=["accuracy"])
    return train(model, x, y, batch_size=size)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("build,optimizer,axes,layouts,size", PLACED)
def test_placed(build, optimizer, axes, layouts, size) -> None:
    """To 1e-9 in float64."""
    mesh = mtf.Mesh(axes, **layouts)
    x, y = batches(build, size, 3)
    model = compiled(build, OPTIMIZERS[optimizer], mesh, metrics=["accuracy"])
    assert_equal(
        train(model, x, y, batch_size=size), by_keras(build, optimizer, size), 1e-9
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("build,optimizer,axes,layouts,size", LIVE)
def test_live(build, optimizer, axes, layouts, size) -> None:
    """To 1e-9 in float64, on devices of jax."""
    mesh = mtf.Mesh(axes, devices="spmd:cpu:8", **layouts)
    x, y = batches(build, size, 3)
    model = compiled(build, OPTIMIZERS[optimizer], mesh, metrics=["accuracy"])
    assert_equal(
        train(model, x, y, batch_size=size), by_keras(build, optimizer, size), 1e-9
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("build", [cnn, transformer])
def test_float32(build) -> None:
    """The loss to 1e-5."""
    keras.config.set_floatx("float32")
    x, y = batches(build, 14, 3)
    histories = []
    for mesh in (None, mtf.Mesh("data:4; model:2", "batch:data; d_model:model")):
        if build is cnn and mesh is not None:
            mesh = mtf.Mesh("data:4; model:2", "batch:data; channels_2:model")
        model = compiled(build, OPTIMIZERS["adam"], mesh)
        histories.append(train(model, x, y, batch_size=14).history["loss"])
    assert histories[1] == pytest.approx(histories[0], rel=1e-5)


def test_a_sharded_variable_is_sharded() -> None:
    """The layouts of these tests do what they say."""
    mesh = mtf.Mesh("data:4; model:2", "batch:data; heads:model; vocab:model")
    model = compiled(transformer, OPTIMIZERS["adam"])
    named = mtf.keras.distribute(model, mesh)
    model.train_on_batch(*batches(transformer, 8, 1))
    variables = named.placed.variables.values()
    sharded = [v.name for v in variables if "model" in v.placement.unreplicated]
    assert "embedding.embeddings" in sharded
    assert "multi_head_attention.query.kernel" in sharded
