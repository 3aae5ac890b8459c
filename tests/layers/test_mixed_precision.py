"""Layers in bfloat16 beside float32: numbers, gradients of float32 variables, what is
gathered.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.layer_agreement import place


def attention(mesh):
    layer = layers.MultiHeadAttention(mesh, "d:8", "heads:2", "key:4", use_bias=True)
    bias = layers.causal_bias(mesh, "length:8", "kv_length:8")
    rope = layers.rope(mtf.range(mesh, "length:8"), "key:4")
    return layer, lambda x: layer(x, bias=bias, rope=rope)


def embedding(mesh):
    layer = layers.Embedding(mesh, "vocab:8", "d:8", dtype="bfloat16")
    ids = mtf.range(mesh, "length:8") // 3
    return layer, lambda x: x + mtf.cast(layer(ids), x.dtype)


def attend(mesh):
    layer = layers.Embedding(mesh, "vocab:4", "d:8")
    return layer, layer.attend


def dropout(mesh):
    return None, lambda x: layers.Dropout(0.5)(x, training=True)


def one(make):
    """Returns what makes a layer, and the function that it is."""

    def pair(mesh):
        layer = make(mesh)
        return layer, layer

    return pair


LAYERS = {
    "Dense": one(lambda mesh: layers.Dense(mesh, "d:8", "channels:4")),
    "FeedForward": one(
        lambda mesh: layers.FeedForward(mesh, "d:8", "d_ff:8", "swiglu", use_bias=True)
    ),
    "MultiHeadAttention": attention,
    "LocalAttention": one(
        lambda mesh: layers.LocalAttention(mesh, "d:8", "heads:2", "key:4", "length:4")
    ),
    "LayerNorm": one(lambda mesh: layers.LayerNorm(mesh, "d:8", epsilon=0.1)),
    "RMSNorm": one(lambda mesh: layers.RMSNorm(mesh, "d:8", epsilon=0.1)),
    "GroupNorm": one(
        lambda mesh: layers.GroupNorm(mesh, "d:8", 2, "length", epsilon=0.1)
    ),
    "Conv": one(lambda mesh: layers.Conv(mesh, "length:3", "d:8", "channels:4")),
    "ConvTranspose": one(
        lambda mesh: layers.ConvTranspose(
            mesh, "length:3", "d:8", "channels:4", stride=2
        )
    ),
    "SeparableConv": one(
        lambda mesh: layers.SeparableConv(mesh, "length:3", "d:8", "channels:4")
    ),
    "Embedding": embedding,
    "Embedding.attend": attend,
    "Dropout": dropout,
}
LAYOUTS = ["", "batch:x;channels:y;heads:y;vocab:y", "length:x;d:y"]


def run(make, dtype, layout=""):
    """Returns what a layer makes of numbers of a type, and gradients of its input and
    variables.
    """
    mesh = mtf.Mesh("x:2;y:2", layout)
    layer, call = make(mesh)
    variables = layer.trainable_variables if layer else ()

    @mtf.function(mesh=mesh, x="batch;length;d")
    def step(x):
        with mtf.seed(0):
            y = call(mtf.cast(x, dtype))
        assert y.dtype == dtype
        y = mtf.cast(y, "float32")
        return y, *mtf.gradients(
            [mtf.reduce_sum(mtf.square(y + place(y)))], [x, *variables]
        )

    y, *grads = step(np.random.default_rng(0).normal(size=(4, 8, 8)).astype("float32"))
    assert all(g.dtype == "float32" for g in grads)
    return [t.numpy() for t in (y, *grads)]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_in_the_type_of_its_input(name):
    expected = run(LAYERS[name], "float32")
    for layout in LAYOUTS:
        for have, expected_value in zip(
            run(LAYERS[name], "bfloat16", layout), expected, strict=True
        ):
            np.testing.assert_allclose(
                have,
                expected_value,
                atol=0.03 * np.abs(expected_value).max(),
                err_msg=layout,
            )


def test_batch_norm_keeps_its_averages_in_float32():
    mesh = mtf.Mesh("x:2", "batch:x")
    norm = layers.BatchNorm(mesh, "d:4", momentum=0.0)
    x = mtf.cast(mtf.random_normal(mesh, "batch:64;d:4", seed=1) + 3.0, "bfloat16")
    y = norm(x, training=True)
    assert y.dtype == norm(x).dtype == "bfloat16"
    np.testing.assert_allclose(
        norm.moving_mean.numpy(), x.numpy().astype("float32").mean(0), rtol=1e-5
    )


@pytest.mark.parametrize("layout", ["", "d:x", "batch:x"])
@pytest.mark.parametrize(
    "make",
    [
        lambda mesh: layers.LayerNorm(mesh, "d:512"),
        lambda mesh: layers.GroupNorm(mesh, "d:512", 1),
    ],
)
def test_statistics_are_float32(make, layout):
    mesh = mtf.Mesh("x:2", layout)
    x = np.random.default_rng(0).normal(30, 1, (2, 512)).astype("float32")
    x = mtf.asarray(mesh, x, "batch;d", dtype="bfloat16")
    have = make(mesh)(x).numpy().astype("float32")
    exact = x.numpy().astype("float32")
    centred = exact - exact.mean(-1, keepdims=True)
    expected_value = centred / np.sqrt((centred**2).mean(-1, keepdims=True))
    np.testing.assert_allclose(have, expected_value, rtol=0.01, atol=1e-3)


def test_rows_that_are_often_looked_up_get_all_of_their_gradient():
    mesh = mtf.Mesh("x:2", "batch:x")
    embed = layers.Embedding(mesh, "vocab:4", "d:2", dtype="bfloat16")
    y = embed(mtf.zeros(mesh, "batch:1024", "int32"))
    (grad,) = mtf.gradients([mtf.reduce_sum(mtf.cast(y, "float32"))], [embed.table])
    assert y.dtype == "bfloat16" and grad.dtype == "float32"
    np.testing.assert_array_equal(grad.numpy(), [[1024, 1024], [0, 0], [0, 0], [0, 0]])


def test_losses_of_half_floats_are_float32():
    mesh = mtf.Mesh("")
    logits = mtf.cast(mtf.random_normal(mesh, "batch:4;vocab:8", seed=1), "bfloat16")
    labels = mtf.range(mesh, "batch:4")
    have = layers.softmax_cross_entropy(logits, labels, "vocab", z_loss=0.1)
    expected_value = layers.softmax_cross_entropy(
        mtf.cast(logits, "float32"), labels, "vocab", z_loss=0.1
    )
    assert have.dtype == "float32"
    np.testing.assert_allclose(float(have), float(expected_value), rtol=1e-6)


def test_integers_are_no_numbers_to_compute_in():
    mesh = mtf.Mesh("")
    with pytest.raises(mtf.DTypeError, match="float32 and int32"):
        layers.Dense(mesh, "d:4", "channels:2")(mtf.zeros(mesh, "d:4", "int32"))


def collectives_of_fsdp(dtype, kind, recomputed=None, **options):
    """Returns the collectives of one kind in an FSDP step of two layers: phases, data types,
    bytes. `recomputed` (true or false): the layers are those of one `Repeat`.
    """
    mesh = mtf.Mesh("data:4", "batch:data", "d:data", devices="abstract", **options)
    if recomputed is None:
        blocks = [
            layers.FeedForward(mesh, "d:8", "e:16", name=f"block_{i}") for i in range(2)
        ]
    else:
        make = functools.partial(layers.FeedForward, mesh, "d:8", "e:16")
        blocks = [layers.Repeat(make, "layers:2", recomputed)]
    variables = [v for block in blocks for v in block.trainable_variables]

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        x = mtf.cast(x, dtype)
        for block in blocks:
            x = block(x)
        for v, g in zip(variables, mtf.gradients([mtf.reduce_sum(x * x)], variables)):
            v.assign(v - g)

    collectives = [
        m
        for op in mtf.explain(step, np.ones((256, 8), "float32")).ops
        for m in op.collectives
    ]
    return [(m.phase, m.tensor.dtype, m.bytes) for m in collectives if m.kind == kind]


def test_a_sharded_variable_is_cast_then_gathered_and_freed_after_use():
    num_values = 8 * 16 * 3 / 4
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        # The first kernel has no use for the gradient of x, so it is gathered once.
        assert collectives_of_fsdp(dtype, "all_gather") == (
            [("forward", dtype, num_values * size)] * 4
            + [("backward", dtype, num_values * size)] * 3
        )
        assert (
            collectives_of_fsdp(dtype, "all_gather", keep_gathered=True)
            == [("forward", dtype, num_values * size)] * 4
        )


@pytest.mark.parametrize("recomputed", [None, False, True])
def test_the_gradient_of_a_sharded_variable_is_reduced_then_cast(recomputed):
    received = 2 * 8 * 16 * 3 / 4
    reductions = collectives_of_fsdp("bfloat16", "reduce_scatter", recomputed)
    assert set(reductions) == {("backward", "bfloat16", received)}
