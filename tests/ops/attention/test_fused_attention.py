"""Attention as one op: the numbers and gradients of the two einsums with a softmax between them,
under every layout, and without scores that are stored.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.ops.attention.fused_attention import fused_attention
from meshtf.ops.random.mask_words import mask_words

Q, KV = "b:2;h:4;l:512;k:8", "b:2;h:4;m:512;k:8"
GROUPED_Q, GROUPED_KV = "b:2;g:2;h:2;l:512;k:8", "b:2;g:2;m:512;k:8"
# What attention does -> the shapes of its inputs, and the arguments of `fused_attention`.
CASES = {
    "plain": ((Q, KV, KV), {}),
    "causal": ((Q, KV, KV), {"causal": True}),
    "window": ((Q, KV, KV), {"causal": True, "window": 100}),
    "grouped": ((GROUPED_Q, GROUPED_KV, GROUPED_KV), {"causal": True}),
    "bias": ((Q, KV, KV, "h:4;l:512;m:512"), {}),
    "padding": ((Q, "b:2;h:4;m:256;k:8", "b:2;m:256;v:6", "b:2;m:256"), {}),
    "dropout": ((Q, KV, KV), {"causal": True, "dropout": 0.2}),
}


def names(shape):
    return ";".join(mtf.Shape(shape).names)


def two_einsums(q, k, v, bias, causal=False, window=None, dropout=0.0):
    scores = mtf.einsum([q, k], [*q.shape.without("k").names, "m"])
    if bias is not None:
        scores = mtf.outer(scores, bias, mtf.add)
    if causal:
        positions = [mtf.range(q.mesh, x.shape.dim(n)) for x, n in ((q, "l"), (k, "m"))]
        distance = mtf.outer(*positions, mtf.subtract)
        visible = distance >= 0
        if window:
            visible = visible & (distance < window)
        scores = mtf.where(visible, scores, -1e9)
    weights = mtf.dropout(mtf.softmax(scores, "m"), dropout)
    value = v.shape.names[-1]
    return mtf.einsum([weights, v], [*q.shape.without("k").names, value])


def one_op(q, k, v, bias, dropout=0.0, **settings):
    words = None
    if dropout:
        scores = q.shape.without("k") + k.shape.only(["m"])
        words = mask_words(q.mesh, scores)
    return fused_attention(
        q, k, v, "l", "m", "k", bias=bias, dropout=dropout, words=words, **settings
    )


def results(function, case, seed, layout="", **settings):
    """Returns the result of attention, and its gradients."""
    shapes, arguments = CASES[case]
    rng = np.random.default_rng(seed)
    mesh = mtf.Mesh("x:2;y:2", layout, **settings)
    tensors = [
        mtf.asarray(mesh, rng.normal(size=mtf.Shape(shape).sizes), names(shape))
        for shape in shapes
    ]

    @mtf.function
    def attend(q, k, v, bias=None):
        with mtf.seed(3):
            y = function(q, k, v, bias, **arguments)
        inputs = [q, k, v] if bias is None else [q, k, v, bias]
        return [y, *mtf.gradients([mtf.reduce_sum(mtf.sin(y))], inputs)]

    return [y.numpy() for y in attend(*tensors)]


@pytest.mark.sampled(8, each="case")
@pytest.mark.parametrize("devices", [None, "separate:4", "spmd:cpu:4"])
@pytest.mark.parametrize(
    "layout", ["", "b:x;h:y", "l:x;b:y", "m:x;h:y", "m:x+y", "g:x;b:y", "l:x;m:y"]
)
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_two_einsums(case, layout, devices, seed, monkeypatch):
    # Two or more blocks of queries.
    monkeypatch.setattr("meshtf.ops.attention.query_blocks._MAX_SCORES", 2**18)
    expected = results(two_einsums, case, seed)
    for y, want in zip(results(one_op, case, seed, layout, devices=devices), expected):
        np.testing.assert_allclose(y, want, rtol=1e-9, atol=1e-11)


def tensors_16_bit(mesh, length):
    shapes = [f"b:2;h:2;{name}:{length};key:8" for name in ("length", "kv_length")]
    rng = np.random.default_rng(0)
    q, k, v = (
        mtf.cast(
            mtf.asarray(mesh, rng.normal(size=mtf.Shape(x).sizes), names(x)), "bfloat16"
        )
        for x in (shapes[0], shapes[1], shapes[1])
    )
    return q, k, v


@pytest.mark.parametrize(
    "devices, length, is_fused",
    [
        ("abstract", 512, True),
        ("abstract", 256, False),
        (None, 512, False),
        ("spmd:cpu:2", 512, False),
        (None, 4096, True),
    ],
)
def test_dot_product_attention_is_one_op_where_it_is_long(devices, length, is_fused):
    mesh = mtf.Mesh("x:2", "b:x", devices=devices)

    @mtf.function
    def attend(q, k, v):
        return mtf.layers.dot_product_attention(
            q, k, v, length_dim="length", causal=True
        )

    forecast = attend.explain(*tensors_16_bit(mesh, length))
    assert ("fusedattention" in str(forecast)) == is_fused


@pytest.fixture
def fused_on_cpus(monkeypatch):
    module = "meshtf.layers.attention.dot_product"
    monkeypatch.setattr(f"{module}.FUSED_LENGTH_ON_CPUS", 512)


@pytest.mark.parametrize("window", [None, 7])
def test_both_ways_of_dot_product_attention_agree(window, fused_on_cpus):
    mesh = mtf.Mesh("")
    q, k, v = tensors_16_bit(mesh, 512)
    settings = {"length_dim": "length", "causal": True, "window": window}
    fused = mtf.layers.dot_product_attention(q, k, v, **settings)
    wide = [mtf.cast(x, "float32") for x in (q, k, v)]
    two = mtf.layers.dot_product_attention(*wide, **settings)
    np.testing.assert_allclose(
        fused.numpy().astype("float32"), two.numpy(), rtol=0.02, atol=0.02
    )


def test_scores_are_not_stored(monkeypatch):
    mesh = mtf.Mesh("x:2", "b:x", devices="abstract")

    def loss(q, k, v, **settings):
        y = mtf.layers.dot_product_attention(q, k, v, **settings)
        return mtf.reduce_sum(mtf.cast(y, "float32"))

    def step(hardware, **settings):
        @mtf.function
        def gradients(q, k, v):
            return mtf.gradients([loss(q, k, v, **settings)], [q, k, v])

        tensors = tensors_16_bit(mesh, 2048)
        return mtf.explain(gradients, *tensors, hardware=hardware).memory.peak

    assert step("h100", length_dim="length") < 0.1 * step("h100")
    # Without a kernel: the scores and the weights of a block, in bfloat16.
    monkeypatch.setattr("meshtf.ops.attention.query_blocks._MAX_SCORES", 2**19)
    less = step("tpu_v5e", length_dim="length") - step("h100", length_dim="length")
    assert less == 2 * (2 * 128 * 2048) * 2


def test_mistakes_are_errors_that_name_the_dimension():
    mesh = mtf.Mesh("")
    q, k = mtf.ones(mesh, "b:2;l:4;k:8"), mtf.ones(mesh, "b:2;m:4;k:8")
    for arguments, message in [
        ((q, mtf.rename(k, "m", "n"), k), 'k of attention lacks "m"'),
        ((mtf.rename(q, "k", "e"), k, k), 'q of attention lacks "k"'),
        ((q, mtf.ones(mesh, "c:2;m:4;k:8"), k), "dimensions that q lacks"),
        ((q, mtf.ones(mesh, "b:2;m:4;k:6"), k), "two sizes"),
        ((q, k, mtf.ones(mesh, "b:2;m:4")), "one dimension of values"),
    ]:
        with pytest.raises(mtf.ShapeError, match=message):
            fused_attention(*arguments, "l", "m", "k")
    with pytest.raises(mtf.DTypeError, match="cast them"):
        fused_attention(mtf.cast(q, "float16"), k, k, "l", "m", "k")
    with pytest.raises(mtf.ShapeError, match='length_dim="length"'):
        mtf.layers.dot_product_attention(
            q, k, k, kv_length_dim="m", key_dim="k", causal=True
        )


def test_a_gradient_of_a_gradient_says_what_to_do(fused_on_cpus):
    mesh = mtf.Mesh("")

    @mtf.function
    def second(q, k, v):
        y = mtf.layers.dot_product_attention(q, k, v, length_dim="length")
        (dq,) = mtf.gradients([mtf.reduce_sum(y)], [q])
        return mtf.gradients([mtf.reduce_sum(dq * dq)], [q])

    with pytest.raises(mtf.PlanError, match="Compute attention in float32"):
        second(*tensors_16_bit(mesh, 512))


@pytest.mark.parametrize(
    "platform, calls", [("cuda", True), ("tpu", False), ("", False)]
)
def test_a_module_for_cuda_calls_cudnn(platform, calls, fused_on_cpus):
    mesh = mtf.Mesh("x:2", "b:x")

    @mtf.function
    def step(q, k, v):
        y = mtf.layers.dot_product_attention(
            q, k, v, length_dim="length", causal=True, window=64
        )
        return mtf.gradients([mtf.reduce_sum(y)], [q, k, v])

    exported = mtf.export(step, *tensors_16_bit(mesh, 512), platform=platform)
    for kernel in (b"__cudnn$fmhaSoftmax", b"__cudnn$fmhaSoftmaxBackward"):
        assert (kernel in exported.module) == calls
    assert exported.manifest()["platform"] == platform


def test_an_unknown_platform_is_an_error():
    mesh = mtf.Mesh("")
    with pytest.raises(mtf.ArgumentError, match="cuda"):
        mtf.export(mtf.square, mtf.ones(mesh, "b:2"), platform="gpu")
