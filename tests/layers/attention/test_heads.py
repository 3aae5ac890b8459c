"""One position after the other with a cache, against all positions at once, under many
layouts.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers

LAYOUTS = [
    "",
    "batch:x;heads:y",
    "kv_length:x;batch:y",
    "kv_length:y;d:x",
    "key:x",
]
LENGTH = 8


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout or "nothing is cut")
def mesh(request):
    return mtf.Mesh("x:2;y:2", request.param)


def steps(attention, mesh, x, rope=None, start=0, positions=None):
    """Returns what all steps give, side by side, as an array: a scan that carries the
    cache.
    """

    @mtf.function(
        mesh=mesh, x="batch;length;d", start="batch" if np.ndim(start) else ""
    )
    def walk(x, start):
        def body(state, row):
            keys, values, position = state
            y, cache = attention.decode_step(
                row, layers.Cache(keys, values), position, rope
            )
            return (*cache, position + 1), y

        cache = attention.init_cache(x, *([positions] if positions else []))
        return mtf.scan(body, (*cache, start), x, "length")[1]

    return mtf.transpose(walk(x, np.asarray(start, "int32")), "batch;length;d").numpy()


@pytest.mark.parametrize(
    "shared, is_rotated",
    [(None, True), ("", False)],
    ids=["multi-head rotary", "multi-query"],
)
def test_steps_equal_a_whole_pass(mesh, rng, shared, is_rotated):
    attention = layers.MultiHeadAttention(
        mesh, "d:8", "heads:2", "key:4", kv_heads_dim=shared
    )
    x = rng.normal(size=(2, LENGTH, 8)).astype("float32")
    rope = (
        layers.rope(mtf.range(mesh, f"length:{LENGTH}"), "key:4")
        if is_rotated
        else None
    )
    full_pass = attention(
        mtf.asarray(mesh, x, "batch;length;d"),
        rope=rope,
        bias=layers.causal_bias(mesh, f"length:{LENGTH}", f"kv_length:{LENGTH}"),
    )
    np.testing.assert_allclose(
        steps(attention, mesh, x, rope, positions=LENGTH),
        full_pass.numpy(),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "layout, radius",
    [
        ("", ""),
        ("", "length:1"),
        ("", "length:2"),
        ("batch:x;heads:y", ""),
        ("batch:x;heads:y", "length:1"),
        ("length_context:x;d:y", ""),
    ],
)
def test_local_steps_equal_a_whole_pass_with_a_small_cache(layout, radius, rng):
    mesh = mtf.Mesh("x:2;y:2", layout)
    attention = layers.LocalAttention(
        mesh, "d:8", "heads:2", "key:4", "length:2", radius
    )
    x = rng.normal(size=(2, LENGTH, 8)).astype("float32")
    full_pass = attention(mtf.asarray(mesh, x, "batch;length;d")).numpy()
    size = attention.init_cache(mtf.asarray(mesh, x[:, 0], "batch;d")).keys.shape
    assert size["length_context"] == {"": 4, "length:1": 2, "length:2": 3}[radius]
    np.testing.assert_allclose(
        steps(attention, mesh, x), full_pass, rtol=1e-4, atol=1e-5
    )


def test_each_example_may_be_at_a_position_of_its_own(mesh, rng):
    attention = layers.MultiHeadAttention(mesh, "d:8", "heads:2", "key:4")
    x = rng.normal(size=(2, 4, 8)).astype("float32")
    all_steps = steps(attention, mesh, x, positions=LENGTH)
    separate = steps(
        attention, mesh, x, start=np.array([0, 0], "int32"), positions=LENGTH
    )
    np.testing.assert_allclose(separate, all_steps, rtol=1e-5, atol=1e-6)
    # The second starts at 4: positions 0 to 3 of its cache are zeros, which it attends to.
    shifted = steps(
        attention, mesh, x, start=np.array([0, 4], "int32"), positions=LENGTH
    )
    np.testing.assert_allclose(shifted[0], all_steps[0], rtol=1e-5, atol=1e-6)
    assert np.abs(shifted[1] - all_steps[1]).max() > 1e-3


def test_a_full_cache_forgets_the_oldest(mesh, rng):
    attention = layers.MultiHeadAttention(mesh, "d:8", "heads:2", "key:4")
    x = rng.normal(size=(2, LENGTH, 8)).astype("float32")
    results = steps(attention, mesh, x, positions=4)
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    visible = mtf.asarray(mesh, (distance >= 0) & (distance < 4), "length;kv_length")
    full_pass = attention(
        mtf.asarray(mesh, x, "batch;length;d"), bias=layers.mask_bias(visible)
    )
    np.testing.assert_allclose(results, full_pass.numpy(), rtol=1e-4, atol=1e-5)


def test_a_decoder_attends_to_given_keys_and_values(mesh, rng):
    attention = layers.MultiHeadAttention(mesh, "d:8", "heads:2", "key:4")
    x, context = rng.normal(size=(2, 2, 4, 8)).astype("float32")
    x, context = (mtf.asarray(mesh, a, "batch;length;d") for a in (x, context))
    bias = mtf.asarray(mesh, np.array([0, 0, -1e9, 0], "float32"), "kv_length")
    full_pass = attention(x, context, bias).numpy()
    cache = attention.project_keys_values(context)
    for i in range(4):
        row = mtf.asarray(mesh, x.numpy()[:, i], "batch;d")
        np.testing.assert_allclose(
            attention.attend_cached(row, cache, bias).numpy(),
            full_pass[:, i],
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize("use_bias, output_bias", [(True, False), (False, True)])
def test_the_output_layer_may_differ_in_its_bias(use_bias, output_bias):
    mesh = mtf.Mesh("")
    settings = {"use_bias": use_bias, "output_bias": output_bias}
    for attention in (
        layers.MultiHeadAttention(mesh, "d:4", "heads:2", "key:2", **settings),
        layers.LocalAttention(
            mesh, "d:4", "heads:2", "key:2", blocks="length:2", **settings
        ),
    ):
        biases = {
            v.name.split("/")[-2] for v in attention.variables if "bias" in v.name
        }
        expected = {"query", "key", "value"} if use_bias else {"output"}
        assert biases == expected
