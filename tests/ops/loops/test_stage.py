"""Stages of a pipelined scan: the bubble has no effect, and what cannot be computed in
microbatches is refused.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.spmd.live.jax_host import cpu_mesh
from tests.ops.loops import pipelined_layers
from tests.ops.loops.pipelined_layers import (
    BATCH,
    WIDTH,
    Scanned,
    arrays,
    captures,
    dense,
    linear,
    run,
)

PIPELINE = {"axes": "stage:2; data:2", "layout": "layers:stage; batch:data"}
FOUR_STAGES = {"axes": "stage:4", "layout": "layers:stage"}
LIVE = {"axes": "stage:4", "layout": "layers:stage", "devices": "spmd:cpu:4"}


def poison(h, inputs, outside):
    """What is finite for all examples, and not for zeros."""
    w, cache = inputs
    norm = mtf.reduce_sum(mtf.square(h), "d")
    y = linear(h, w) * mtf.rsqrt(norm) + mtf.log(norm) * outside.mask + outside.shared
    y = y + outside.context / norm + cache / norm
    h = h + mtf.tanh(y)
    terms = {"sum": mtf.reduce_sum(mtf.log(norm)), "batch": 1.0 / norm}
    return h, terms, [mtf.reduce_mean(mtf.log(norm)), h / norm]


def iterated_log(h, inputs, outside):
    """Finite if it is applied three times; further layers would give NaN."""
    w, cache = inputs
    h = 2.0 * mtf.log(mtf.sqrt(h))
    sums = mtf.sin(outside.context) * mtf.reduce_mean(w) + outside.shared * cache
    return h + sums * 0.01, mtf.reduce_sum(h), mtf.reduce_mean(h)


def compare(results, expected):
    for y, value in zip(results, expected, strict=True):
        assert np.isfinite(value).all()
        np.testing.assert_allclose(y, value, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("error::meshtf.errors.LayoutWarning")
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "mesh", [{**PIPELINE, "microbatches": 3}, {**LIVE, "microbatches": 6}]
)
@pytest.mark.sampled(3)
def test_nothing_of_the_bubble_has_an_effect(mesh, reverse, recomputed):
    settings = {"num_layers": 5, "reverse": reverse, "recomputed": recomputed}
    compare(run(poison, **settings, **mesh), run(poison, **settings))


def to_zero(h, inputs, outside):
    """Its last layer returns zeros, which further layers would divide by."""
    w, cache = inputs
    norm = mtf.sqrt(mtf.reduce_sum(mtf.square(h), "d"))
    return linear(h / norm, w) * cache, None, None


@pytest.mark.filterwarnings("error::meshtf.errors.LayoutWarning")
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("axes", ["stage:2", "stage:4"])
def test_results_that_return_to_the_first_stage_have_no_effect(
    axes, recomputed, monkeypatch
):
    def arrays(num_layers, dtype):
        rng = np.random.default_rng(0)
        caches = np.ones((num_layers, BATCH, WIDTH), dtype)
        caches[-1] = 0.0
        return [*rng.normal(size=(2, BATCH, WIDTH)).astype(dtype), caches]

    monkeypatch.setattr(pipelined_layers, "arrays", arrays)
    mesh = {"axes": axes, "layout": "layers:stage", "microbatches": 4, "repeats": 2}
    compare(run(to_zero, recomputed=recomputed, **mesh), run(to_zero))


@pytest.mark.filterwarnings("error::meshtf.errors.LayoutWarning")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("num_stages", [2, 4])
def test_layers_that_do_not_exist_have_no_effect(num_stages, reverse, monkeypatch):
    def arrays(num_layers, dtype):
        x = np.exp(np.exp(np.linspace(0.1, 0.6, BATCH * WIDTH)))
        x = x.reshape(BATCH, WIDTH).astype(dtype)
        return [x, x, np.ones((num_layers, BATCH, WIDTH), dtype)]

    monkeypatch.setattr(pipelined_layers, "arrays", arrays)
    mesh = {"axes": f"stage:{num_stages}", "layout": "layers:stage"}
    settings = {"num_layers": 3, "reverse": reverse}
    compare(run(iterated_log, **settings, **mesh), run(iterated_log, **settings))


def centred(h, inputs, outside):
    mean = mtf.reduce_mean(h, "batch")
    return mtf.tanh(h - mean), None, None


def entire_batch(h, inputs, outside):
    return h, None, mtf.zeros(h.mesh, "batch:24; d:3", h.dtype)


def array_of_examples(h, inputs, outside):
    places = np.arange(float(h.shape["batch"]))
    return h + mtf.asarray(h.mesh, places, "batch"), None, None


def carry_of_sums(h, inputs, outside):
    h, _, _ = dense(h, inputs, outside)
    return h * 0.0 + mtf.reduce_sum(h, "d"), None, mtf.reduce_max(h, "batch")


def branch(h, inputs, outside):
    w, _ = inputs
    is_positive = mtf.greater(mtf.reduce_sum(w), 0.0)
    return mtf.cond(is_positive, lambda: h * 1.5, lambda: h), None, None


@pytest.mark.parametrize(
    "layer, op",
    [
        (branch, "different ways through mtf.cond"),
        (centred, "subtract does not map"),
        (carry_of_sums, "reduce does not map"),
        (entire_batch, "entire batch"),
        (array_of_examples, "size of a microbatch"),
    ],
)
def test_what_needs_the_entire_batch_is_refused(layer, op):
    with pytest.raises(mtf.PlanError, match=op) as e:
        run(layer, **PIPELINE, microbatches=4)
    assert "test_stage.py:" in str(e.value)
    assert 'mtf.layout("layers:")' in str(e.value)


def test_without_microbatches_a_warning_says_why():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scanned = pipelined_layers.Scanned(centred, 8, **PIPELINE)
        step = scanned.function()
        arrays = pipelined_layers.arrays(8)
        results = mtf.names.nested.flatten(step(*arrays))
        step(*arrays)
    texts = [str(w.message) for w in caught if w.category is mtf.LayoutWarning]
    assert len(texts) == 1
    assert "the scan over 'layers'" in texts[0] and "is no pipeline" in texts[0]
    assert "subtract does not map along 'batch'" in texts[0]
    compare([y.numpy() for y in results], run(centred))


def test_random_ops_draw_the_same_after_an_attempt():
    """Results of a scan that is no pipeline do not depend on the attempt."""

    def layer(h, inputs, outside):
        h = mtf.dropout(h, 0.5)
        return h - mtf.reduce_mean(h, "batch"), None, None

    with pytest.warns(mtf.LayoutWarning, match="is no pipeline"):
        results = run(layer, 4, **FOUR_STAGES)
    compare(results, run(layer, 4))


def test_a_tensor_along_the_layers_is_refused():
    mesh = mtf.Mesh("stage:2", "layers:stage", microbatches=2)

    @mtf.function(mesh=mesh, x="batch; d", w="layers; d")
    def step(x, w):
        def layer(h, i):
            return h * mtf.gather(w, i, "layers"), None

        return mtf.scan(layer, x, mtf.range(mesh, "layers:4"), "layers")[0]

    with pytest.raises(mtf.PlanError, match="use a tensor along 'layers'"):
        step(np.ones((4, 3), "float32"), np.ones((4, 3), "float32"))


@pytest.mark.parametrize("axes", ["", "stage:2"])
def test_what_is_from_outside(axes):
    """As the next carry; and with a dimension of the name that microbatches have."""
    mesh = mtf.Mesh(axes, "layers:stage", microbatches=2, optional_axes="stage")
    scales = mtf.asarray(mesh, np.arange(8.0, dtype="float32"), "microbatch")

    @mtf.function(mesh=mesh, x="batch; d", w="layers; d")
    def step(x, w):
        def layer(h, w):
            return x, (h * w + mtf.reduce_sum(scales), mtf.reduce_sum(w))

        return mtf.scan(layer, x * 2.0, w, "layers")

    x = np.arange(12, dtype="float32").reshape(4, 3)
    w = np.arange(12, dtype="float32").reshape(4, 3) - 3
    last, (stacked, sums) = step(x, w)
    np.testing.assert_allclose(last.numpy(), x)
    carries = np.stack([2 * x, x, x, x])
    np.testing.assert_allclose(stacked.numpy(), carries * w[:, None] + 28.0)
    np.testing.assert_allclose(sums.numpy(), w.sum(1))


def test_code_that_does_not_expect_a_microbatch_runs_undivided():
    mesh = mtf.Mesh("stage:2", "layers:stage")

    @mtf.function(mesh=mesh, x="batch; d", w="layers; d")
    def step(x, w):
        def layer(h, w):
            assert h.shape["batch"] == 4
            return h * w, None

        return mtf.scan(layer, x, w, "layers")[0]

    with pytest.warns(mtf.LayoutWarning, match="is no pipeline"):
        y = step(np.ones((4, 3), "float32"), np.full((4, 3), 2.0, "float32"))
    np.testing.assert_array_equal(y.numpy(), 16.0)


@pytest.mark.sampled(4, each="dtype devices")
@pytest.mark.parametrize("devices", [None, "spmd:cpu:4"])
@pytest.mark.parametrize("settings", [{}, {"recomputed": True}, {"repeats": 2}])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 0.03)])
def test_gradients_of_what_is_from_outside(dtype, tolerance, settings, devices):
    mesh = {**PIPELINE, "microbatches": 4, "devices": devices}
    results = run(captures, 4, dtype=dtype, **mesh, **settings)
    for y, value in zip(results, run(captures, 4), strict=True):
        largest = np.abs(value).max()
        np.testing.assert_allclose(
            y.astype("float64"), value, rtol=0, atol=tolerance * largest
        )


def sum_of_context(h, inputs, outside):
    w, _ = inputs
    return h + mtf.tanh(linear(h, w) + outside.context), None, None


def ops_in_loops(hlo, array):
    """Returns the kinds of instructions in the bodies of loops whose results are such an array;
    of a fusion, that of its result.

    Args:
      hlo: the optimized program, as text.
      array: data type and sizes, such as "f32[4,8]".
    """
    computations = {}
    for line in hlo.splitlines():
        if header := re.match(r"(?:ENTRY )?%([\w.-]+) \(.*\{$", line):
            instructions = computations[header[1]] = []
        elif found := re.match(r" +(ROOT )?%\S+ = (\S+?)\{\S* ([\w-]+)\(", line):
            instructions.append((*found.groups(), line))
    kinds = set()
    for body in re.findall(r"body=%([\w.-]+)", hlo):
        for _, result, kind, line in computations[body]:
            if result == array and kind == "fusion":
                fused = computations[re.search(r"calls=%([\w.-]+)", line)[1]]
                kinds.update(x for is_root, _, x, _ in fused if is_root)
            elif result == array:
                kinds.add(kind)
    return kinds


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tick_changes_one_microbatch_of_a_gradient(dtype, monkeypatch):
    monkeypatch.setattr(
        "meshtf.runtime.spmd.compiled.compile_for.absent_devices",
        lambda _topology: list(cpu_mesh(4, "data").devices.flat),
    )
    pipeline = Scanned(sum_of_context, 4, dtype=dtype, **PIPELINE, microbatches=4)
    inputs = arrays(4, dtype)
    program = pipeline.function().compile_for("h100:4", *inputs)
    array = f"f32[{BATCH // 4 // 2},4,{WIDTH}]"
    kinds = ops_in_loops(program.hlo, array) - {"get-tuple-element"}
    assert kinds == {"dynamic-update-slice"}
