"""Ring attention: the numbers of plain attention under every layout, keys and values that
no device holds entirely, and just the bytes of the ring.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers

LENGTH = 16
MESHES = [
    ("", ""),
    ("seq:2", "length:seq;kv_length:seq"),
    ("seq:4", "length:seq"),
    ("data:2;seq:2", "batch:data;length:seq"),
    ("seq:2;model:2", "length:seq;heads:model"),
    ("data:2;seq:2;model:2", "length:data+seq;heads:model"),
    ("seq:3", "length:seq"),  # does not divide the chunks
    ("seq:8", "length:seq"),  # more devices than chunks
]
NAMES = {
    "q": "batch;groups;heads;length;key",
    "k": "batch;groups;kv_length;key",
    "v": "batch;groups;kv_length;value",
    "dy": "batch;groups;heads;length;value",
    "segments": "batch;length",
    "table": "buckets;heads",
}
FEATURES = ["none", "causal", "window", "segments", "table"]


def inputs_of(rng):
    shapes = [(2, 2, 2, LENGTH, 4), (2, 2, LENGTH, 4), (2, 2, LENGTH, 3)]
    shapes.append((2, 2, 2, LENGTH, 3))
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    segments = np.sort(rng.integers(0, 3, (2, LENGTH)), axis=1).astype("int32")
    return [*arrays, segments, rng.normal(size=(LENGTH, 2)).astype("float32")]


def bias_of(feature):
    """Returns the bias of the scores as a function of inputs of queries and of keys."""

    def bias(queries, keys):
        positions, segments, table = queries
        kv_positions, kv_segments = keys
        behind = mtf.outer(positions, kv_positions, mtf.subtract)
        visible = behind >= 0
        if feature == "window":
            visible = visible & (behind < 5)
        if feature == "segments":
            visible = mtf.outer(
                visible, mtf.outer(segments, kv_segments, mtf.equal), mtf.logical_and
            )
        masked = layers.mask_bias(visible)
        if feature == "table":
            learned = mtf.gather(table, mtf.maximum(behind, 0), dim="buckets")
            return mtf.outer(learned, masked, mtf.add)
        return masked

    return None if feature == "none" else bias


def step_of(mesh, feature, chunk, zigzag, dropout=0.0):
    """Returns a function that computes attention and its gradients; chunk None: by all
    scores at once.
    """
    bias = bias_of(feature)

    def step(q, k, v, dy, segments, table):
        positions = mtf.range(mesh, f"length:{LENGTH}")
        queries = [positions, segments, table]
        if chunk is None:
            keys = [mtf.rename(x, "length", "kv_length") for x in queries[:2]]
            scores_bias = bias(queries, keys) if bias else None
            y = layers.dot_product_attention(q, k, v, bias=scores_bias)
        else:
            y = ring(q, k, v, queries)
        loss = mtf.reduce_sum(y * dy)
        return [y, *mtf.gradients([loss], [q, k, v, table])]

    def ring(q, k, v, queries):
        order = layers.ZigzagOrder(f"length:{LENGTH}", LENGTH // chunk)

        def ordered(x):
            name = "kv_length" if "kv_length" in x.shape else "length"
            if name not in x.shape or not zigzag:
                return x
            x = order.apply(mtf.rename(x, name, "length"))
            return mtf.rename(x, "length", name)

        queries = [ordered(x) for x in queries]
        keys = [mtf.rename(x, "length", "kv_length") for x in queries[:2]]
        drop = (lambda weights: mtf.dropout(weights, dropout)) if dropout else None
        with mtf.seed(3):
            y = layers.ring_attention(
                ordered(q),
                ordered(k),
                ordered(v),
                f"length:{chunk}",
                bias_of=bias,
                query_inputs=queries,
                kv_inputs=keys,
                zigzag=zigzag,
                dropout=drop,
            )
        return order.undo(y) if zigzag else y

    return mtf.function(step, mesh=mesh, **NAMES)


def numbers(step, inputs):
    return [None if x is None else x.numpy() for x in step(*inputs)]


def assert_equal(have, expected):
    for x, y in zip(have, expected, strict=True):
        if x is None or y is None:
            # A table that no bias reads has no gradient.
            assert y is None and (x is None or not x.any())
        else:
            np.testing.assert_allclose(x, y, atol=3e-6)


CASES = [
    (axes, layout, feature, chunk, zigzag)
    for axes, layout in MESHES
    for feature in FEATURES
    for chunk in (4, 8, 16)
    for zigzag in (False, True)
    if not (zigzag and feature == "none")
]


@pytest.mark.sampled(8, each="feature")
@pytest.mark.parametrize("axes, layout, feature, chunk, zigzag", CASES)
def test_chunks_change_no_number(rng, axes, layout, feature, chunk, zigzag):
    inputs = inputs_of(rng)
    expected = numbers(step_of(mtf.Mesh(""), feature, None, False), inputs)
    mesh = mtf.Mesh(axes, layout)
    assert_equal(numbers(step_of(mesh, feature, chunk, zigzag), inputs), expected)


@pytest.mark.sampled(1, together="rings")
@pytest.mark.parametrize("feature", ["causal", "table"])
@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("axes, layout", MESHES[2:5])
def test_on_a_live_mesh(rng, axes, layout, zigzag, feature):
    inputs = inputs_of(rng)
    expected = numbers(step_of(mtf.Mesh(""), feature, None, False), inputs)
    mesh = mtf.Mesh(axes, layout, devices="spmd:cpu")
    assert_equal(numbers(step_of(mesh, feature, 4, zigzag), inputs), expected)


@pytest.mark.sampled(1, together="rings")
def test_every_layout_drops_the_same_weights(rng):
    inputs = inputs_of(rng)
    expected = numbers(step_of(mtf.Mesh(""), "causal", 4, True, 0.4), inputs)
    step = step_of(mtf.Mesh("seq:4", "length:seq"), "causal", 4, True, 0.4)
    assert_equal(numbers(step, inputs), expected)
    without = numbers(step_of(mtf.Mesh(""), "causal", 4, True), inputs)
    assert np.abs(expected[0] - without[0]).max() > 0.1


def test_gradients_are_those_of_the_weights_that_were_dropped(rng):
    """The backward pass draws the dropout again: it must be that of the forward pass."""
    inputs = inputs_of(rng)
    step = step_of(mtf.Mesh(""), "causal", 4, True, 0.4)
    y, *_, d_v, _ = numbers(step, inputs)
    # The output is linear in the values, so its product with `dy` is that of gradients and
    # values.
    np.testing.assert_allclose(
        (y * inputs[3]).sum(), (d_v * inputs[2]).sum(), rtol=1e-4
    )


def explained(axes, layout, zigzag, length=64, chunk=8):
    """Returns the forecast of attention and its gradient with 4 heads of 16 elements."""
    mesh = mtf.Mesh(axes, layout, devices="abstract")

    def step(q, k, v):
        positions = mtf.range(mesh, f"length:{length}")

        def bias(queries, keys):
            return layers.mask_bias(mtf.outer(queries, keys, mtf.greater_equal))

        y = layers.ring_attention(
            q,
            k,
            v,
            f"length:{chunk}",
            bias_of=bias,
            query_inputs=positions,
            kv_inputs=mtf.rename(positions, "length", "kv_length"),
            zigzag=zigzag,
        )
        return mtf.gradients([mtf.reduce_sum(y)], [q, k, v])

    q = mtf.zeros(mesh, f"heads:4;length:{length};key:16")
    k = mtf.zeros(mesh, f"heads:4;kv_length:{length};key:16")
    return mtf.explain(mtf.function(step, mesh=mesh), q, k, k)


@pytest.mark.parametrize("zigzag", [False, True])
def test_a_device_receives_each_chunk_of_keys_and_values_once(zigzag):
    forecast = explained("seq:8", "length:seq;kv_length:seq", zigzag)
    chunk = 4 * 8 * 16 * 4  # bytes of the keys of a chunk
    positions = 8 * 4
    forward = 7 * (2 * chunk + positions)
    # Keys and values once more, and their cotangents, which at the end go home.
    backward = 7 * (2 * chunk + positions) + 8 * 2 * chunk
    received = sum(c.total for c in forecast.collectives)
    assert received == pytest.approx(forward + backward)
    assert {c.kind for c in forecast.collectives} == {"window"}


def test_zigzag_order_halves_the_scores():
    flops = [
        explained("seq:8", "length:seq", zigzag, length=512, chunk=64).flops()
        for zigzag in (False, True)
    ]
    assert flops[1] < 0.6 * flops[0]


def test_memory_is_that_of_a_chunk():
    """Twice as many devices and tokens need no more memory for each device."""
    peaks = [
        explained(
            f"seq:{size}", "length:seq;kv_length:seq", True, length=size * 64, chunk=64
        ).memory.peak
        for size in (4, 8, 16)
    ]
    assert peaks[2] < 1.05 * peaks[0]


def test_a_gradient_of_the_gradient_is_refused(rng):
    mesh = mtf.Mesh("")
    q, k, v = (
        mtf.ones(mesh, f"{name}:8;key:2") for name in ("length", *2 * ["kv_length"])
    )
    y = layers.ring_attention(q, k, v, "length:4")
    (dq,) = mtf.gradients([mtf.reduce_sum(mtf.sin(y))], [q])
    with pytest.raises(mtf.PlanError, match=r"(?s)gradient of its gradient.*blockwise"):
        mtf.gradients([mtf.reduce_sum(dq)], [q])


def test_sizes_that_have_no_chunks_are_refused():
    mesh = mtf.Mesh("")
    q = mtf.zeros(mesh, "length:12;key:2")
    k = mtf.zeros(mesh, "kv_length:12;key:2")
    with pytest.raises(mtf.ShapeError, match=r"length:12.*chunks of 8"):
        layers.ring_attention(q, k, k, "length:8")
    with pytest.raises(mtf.ShapeError, match=r"kv_length:10"):
        layers.ring_attention(q, mtf.zeros(mesh, "kv_length:10;key:2"), k, "length:3")
    with pytest.raises(mtf.ShapeError, match=r"two halves"):
        layers.ring_attention(q, k, k, "length:3", zigzag=True)


def test_a_bias_of_all_scores_is_refused():
    mesh = mtf.Mesh("")
    q = mtf.zeros(mesh, "length:8;key:2")
    k = mtf.zeros(mesh, "kv_length:8;key:2")
    scores_bias = mtf.zeros(mesh, "length:8;kv_length:8")
    with pytest.raises(mtf.ShapeError, match="goes around no ring"):
        layers.ring_attention(
            q, k, k, "length:4", bias_of=lambda x, _: x, query_inputs=scores_bias
        )


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("zigzag", [False, True])
def test_float64_is_computed_in_float64(zigzag, devices, rng):
    mesh = mtf.Mesh("x:2", "length:x;kv_length:x", devices=devices)
    order = layers.ZigzagOrder("length:8", 2)

    def attend(q, k, chunk):
        def ordered(x):
            return order.apply(x) if zigzag and chunk else x

        positions = ordered(mtf.range(q.mesh, "length:8"))
        q_ordered = ordered(q)
        k_ordered = mtf.rename(ordered(k), "length", "kv_length")
        kv_positions = mtf.rename(positions, "length", "kv_length")

        def bias(x, y):
            return layers.mask_bias(mtf.outer(x, y, mtf.greater_equal), "float64")

        if chunk is None:
            scores_bias = bias(positions, kv_positions)
            y = layers.dot_product_attention(
                q_ordered, k_ordered, k_ordered, bias=scores_bias
            )
        else:
            y = layers.ring_attention(
                q_ordered,
                k_ordered,
                k_ordered,
                f"length:{chunk}",
                bias_of=bias,
                query_inputs=positions,
                kv_inputs=kv_positions,
                zigzag=zigzag,
            )
            y = order.undo(y) if zigzag else y
        return [y, *mtf.gradients([mtf.reduce_sum(mtf.square(y))], [q, k])]

    q, k = rng.normal(size=(2, 8, 4))
    by_chunks = mtf.function(attend, mesh=mesh, q="length;key", k="length;key")
    at_once = mtf.function(attend, mesh=mtf.Mesh(""), q="length;key", k="length;key")
    for have, want in zip(by_chunks(q, k, 4), at_once(q, k, None), strict=True):
        assert have.dtype == "float64"
        np.testing.assert_allclose(have.numpy(), want.numpy(), rtol=1e-12, atol=1e-12)


def test_a_bias_without_chunks_is_refused():
    mesh = mtf.Mesh("")
    q = mtf.ones(mesh, "length:8;key:2")
    k = mtf.ones(mesh, "kv_length:8;key:2")

    def summed_over_chunks(q, k):
        return mtf.einsum([q, k], "length;kv_length")

    with pytest.raises(
        mtf.ShapeError, match=r"without \"length_chunks\"(.|\n)*test_ring"
    ):
        layers.ring_attention(
            q, k, k, "length:4", summed_over_chunks, query_inputs=q, kv_inputs=k
        )
