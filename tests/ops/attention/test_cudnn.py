"""cuDNN's kernels for attention: what they are called with, by a stand-in that computes what they
do of tensors [batch, heads, length, key]; and that in whole programs for CUDA no array is as large
as the scores, [length, kv_length]: in the module that is handed to XLA, and in what XLA makes of it
for an H100, where its compiler is here.
"""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.ops.attention import query_blocks
from meshtf.ops.attention.attention_dims import AttentionDims, Mask, Result
from meshtf.ops.attention.cudnn import kernel_for
from tests.support.stablehlo_traffic import text_of
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

# The order of names differs from that of the kernels.
Q, KV = "b:2;l:6;h:4;k:8", "m:6;b:2;h:4;k:8"
GROUPED_Q, GROUPED_KV = "b:2;g:2;l:6;h:3;k:8", "b:2;m:6;g:2;k:8"
BIAS, MASK_BIAS = "l:6;h:4;m:6", "b:2;l:6;m:6"


def dims_of(*shapes):
    q, k, v, *bias = (mtf.Shape(x).names for x in shapes)
    return AttentionDims("l", "m", "k", q, k, v, bias[0] if bias else None)


class Context:
    """A shard on a CUDA device whose kernels are `attend` and its gradient, below."""

    platform = "cuda"

    def __init__(self, *shapes, shards=()):
        self.inputs = tuple(map(mtf.Shape, shapes))
        self.shards = dict(shards)
        self.calls = []

    def num_shards(self, name):
        return self.shards.get(name, 1)

    def call_kernel(self, call, xs):
        config = json.loads(call.configuration)["cudnn_fmha_backend_config"]
        self.calls.append((call.name, config))
        mask = Mask(config["mask_type"] == "CAUSAL", config["sliding_window_length"])
        q, k = xs[:2]
        # Several heads of queries share one of keys.
        group = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x.numpy(), group, axis=1) for x in xs[1:3])
        has_bias = "Bias" in call.name
        named = ["b", "h", "l", "k"]
        of_keys = ("b", "h", "m", "k")
        bias = (
            [
                np.broadcast_to(
                    xs[-2 if "Backward" in call.name else 3],
                    [q.shape[0], q.shape[1], q.shape[2], k.shape[2]],
                )
            ]
            if has_bias
            else []
        )
        dims = AttentionDims(
            "l",
            "m",
            "k",
            tuple(named),
            of_keys,
            of_keys,
            ("b", "h", "l", "m") if bias else None,
        )
        inputs = [q, *map(tf.constant, (k, v)), *map(tf.constant, bias)]
        if "Backward" not in call.name:
            results = query_blocks.attend(dims, mask, 256, 0, inputs, None)
        else:
            log_sums, dy, y = xs[3], xs[4], xs[-1]
            results = query_blocks.gradient(
                dims, mask, 256, 0, inputs, Result(y, log_sums, dy), bool(bias), None
            )
            dq, *of_group = results
            dk, dv = (
                tf.reduce_sum(
                    tf.reshape(x, [x.shape[0], -1, group, *x.shape[2:]]), axis=2
                )
                for x in of_group[:2]
            )
            d_bias = [tf.reduce_sum(x, axis=0, keepdims=True) for x in of_group[2:]]
            results = [dq, dk, dv, *d_bias]
        results = results[: len(call.results) - 1]
        for y, (sizes, dtype) in zip(results, call.results):
            assert (list(y.shape), y.dtype) == (list(sizes), tf.as_dtype(dtype))
        return [*results, tf.zeros([0], tf.uint8)]


CASES = [
    ((Q, KV, KV), Mask(False, 0), False, "fmhaSoftmax"),
    ((Q, KV, KV), Mask(True, 3), False, "fmhaSoftmax"),
    ((GROUPED_Q, GROUPED_KV, GROUPED_KV), Mask(True, 0), False, "fmhaSoftmax"),
    ((Q, KV, KV, BIAS), Mask(False, 0), True, "fmhaScaleBiasSoftmax"),
    ((Q, KV, KV, MASK_BIAS), Mask(False, 0), False, "fmhaScaleBiasSoftmax"),
]


@pytest.mark.parametrize("shapes, mask, bias_gradient, name", CASES)
def test_kernels_are_called_for_what_named_tensors_say(
    shapes, mask, bias_gradient, name, seed
):
    rng = np.random.default_rng(seed)
    inputs = [
        tf.constant(rng.normal(size=mtf.Shape(x).sizes), "float16") for x in shapes
    ]
    dims = dims_of(*shapes)
    context = Context(*shapes)
    kernel = kernel_for(context, dims, mask, bias_gradient, "bfloat16")
    y, log_sums = kernel.attend(*inputs)
    want_y, want_sums = query_blocks.attend(dims, mask, 256, 0, inputs, None)
    np.testing.assert_allclose(y, want_y, atol=2e-3)
    np.testing.assert_allclose(log_sums, want_sums, atol=2e-2)
    dy = tf.constant(rng.normal(size=y.shape), y.dtype)
    result = Result(y, log_sums, dy)
    got = kernel.gradient(inputs, result)
    want = query_blocks.gradient(
        dims, mask, 256, 0, inputs, result, bias_gradient, None
    )
    assert len(got) == len(want) == (4 if bias_gradient else 3)
    for dx, want_dx in zip(got, want):
        np.testing.assert_allclose(dx, want_dx, atol=2e-2)
    assert [n for n, _ in context.calls] == [
        f"__cudnn${name}",
        f"__cudnn${name}Backward",
    ]


def test_the_configuration_says_which_dimensions_are_summed_over():
    context = Context(Q, KV, KV)
    kernel = kernel_for(context, dims_of(Q, KV, KV), Mask(True, 0), False, "bfloat16")
    inputs = [tf.zeros(mtf.Shape(x).sizes, "float16") for x in (Q, KV, KV)]
    # The stand-in computes in float16, and the configuration would say so.
    kernel.attend(*inputs)
    ((_, config),) = context.calls
    assert config["intermediate_tensor_shape"]["dimensions"] == ["2", "4", "6", "6"]
    assert config["bmm1_dot_dimension_numbers"]["rhs_contracting_dimensions"] == ["3"]
    assert config["bmm2_dot_dimension_numbers"]["rhs_contracting_dimensions"] == ["2"]


@pytest.mark.parametrize(
    "shapes, mask, bias_gradient, settings",
    [
        ((Q, KV, KV), Mask(False, 0), False, {"dtype": "float32"}),
        ((Q, KV, KV), Mask(True, 0), False, {"shards": {"l": 2}}),
        (("b:2;h:4;l:5;k:8", KV, KV), Mask(False, 0), False, {}),
        (
            ("b:2;h:4;l:6;k:4", "b:2;h:4;m:6;k:4", "b:2;h:4;m:6;k:4"),
            Mask(False, 0),
            False,
            {},
        ),
        ((Q, KV, "m:6;b:2;k:8"), Mask(False, 0), False, {}),
        ((Q, KV, "m:6;b:2;h:4;v:16"), Mask(False, 0), False, {}),
        ((Q, KV, KV, MASK_BIAS), Mask(False, 0), True, {}),
        ((Q, KV, KV, "b:2;m:6"), Mask(False, 0), False, {}),
    ],
)
def test_what_the_kernels_do_not_take(shapes, mask, bias_gradient, settings):
    context = Context(*shapes, shards=settings.get("shards", {}))
    dtype = settings.get("dtype", "bfloat16")
    assert kernel_for(context, dims_of(*shapes), mask, bias_gradient, dtype) is None


def test_other_devices_have_no_such_kernels():
    context = Context(Q, KV, KV)
    for platform in ("", "cpu", "tpu"):
        context.platform = platform
        assert (
            kernel_for(context, dims_of(Q, KV, KV), Mask(True, 0), False, "bfloat16")
            is None
        )


# Whole models: no other size is 512.
LENGTH = 512
BASE = Architecture(
    vocab=384,
    d_model=64,
    d_ff=192,
    heads=4,
    d_kv=16,
    blocks=2,
    dtype="bfloat16",
)
STORING_NONE = {
    "causal": BASE,
    "grouped heads": dataclasses.replace(BASE, kv_heads=2),
    "window": dataclasses.replace(BASE, window=100),
    "learned positions, tied": dataclasses.replace(
        BASE, positions="learned", max_length=LENGTH, tied=True, norm="layer"
    ),
    "scanned, recomputed": dataclasses.replace(BASE, scanned=True, recompute=True),
}
STORING = {
    "dropout": (dataclasses.replace(BASE, dropout=0.1), LENGTH),
    "float32": (dataclasses.replace(BASE, dtype="float32"), LENGTH),
    "below the threshold": (BASE, LENGTH // 2),
    "long heads": (dataclasses.replace(BASE, d_kv=136), LENGTH),
}


def call(architecture, length):
    """Returns a function of a loss and all gradients, and its batch."""
    mesh = mtf.Mesh("data:2", "batch:data", devices="abstract")
    model = LanguageModel(mesh, architecture)
    dims = dict.fromkeys(("tokens", "targets"), "batch; length")

    @mtf.function(mesh=mesh, batch=dims)
    def step(batch):
        with mtf.seed(3):
            loss = model.loss(batch, training=True)
        return [loss, *mtf.gradients([loss], model.trainable_variables)]

    return step, dict.fromkeys(dims, tf.TensorSpec([6, length], tf.int32))


def score_arrays(text, length):
    """Returns all types of arrays [..., length, length] in a module, or in HLO."""
    return sorted(
        {
            *re.findall(rf"tensor<(?:\d+x)*{length}x{length}x[a-z]\w*>", text),
            *re.findall(rf"[a-z]\w*\[(?:\d+,)*{length},{length}\]", text),
        }
    )


@pytest.mark.parametrize("name", STORING_NONE)
def test_no_array_of_a_module_is_as_large_as_the_scores(name):
    step, batch = call(STORING_NONE[name], LENGTH)
    text = text_of(mtf.export(step, batch, platform="cuda").module)
    assert "__cudnn$fmhaSoftmaxBackward" in text
    assert f"x{LENGTH}x" in text  # types look like this
    assert score_arrays(text, LENGTH) == []


@pytest.mark.parametrize("name", STORING)
def test_arrays_of_scores_are_found_where_they_are(name):
    architecture, length = STORING[name]
    step, batch = call(architecture, length)
    text = text_of(mtf.export(step, batch, platform="cuda").module)
    assert "__cudnn" not in text
    assert f"tensor<3x4x{length}x{length}xf32>" in score_arrays(text, length)


@pytest.mark.parametrize("name", [*STORING_NONE, "dropout"])
def test_no_array_of_a_compiled_program_is_as_large_as_the_scores(name):
    architecture = STORING_NONE.get(name) or STORING[name][0]
    step, batch = call(architecture, LENGTH)
    try:
        text = mtf.compile_for(step, batch, topology="h100:2").compiled.hlo
    except mtf.MeshError as error:
        pytest.skip(f"no compiler for CUDA is here: {error}")
    assert f",{LENGTH}," in text  # types look like this
    assert bool(score_arrays(text, LENGTH)) == (name == "dropout")
