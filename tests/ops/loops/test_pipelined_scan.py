"""A pipelined scan gives the results and gradients of the same scan on one device."""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest

import meshtf as mtf
from tests.ops.loops.pipelined_layers import (
    LAYERS,
    Scanned,
    arrays,
    dense,
    dropped,
    half,
    linear,
    outputs,
    run,
    terms,
)

# A scan that is no pipeline would pass many of these tests.
pytestmark = pytest.mark.filterwarnings("error::meshtf.errors.LayoutWarning")

PIPELINE = "layers:stage; batch:data"
MESHES = {
    "2 stages": {"axes": "stage:2", "layout": "layers:stage"},
    "2 stages, 1": {"axes": "stage:2", "layout": "layers:stage", "microbatches": 1},
    "2 stages, 24": {
        "axes": "stage:2; data:2",
        "layout": PIPELINE,
        "microbatches": 24,
    },
    "4 stages": {"axes": "stage:4; data:2", "layout": PIPELINE},
    "4 stages, 2": {"axes": "stage:4", "layout": "layers:stage", "microbatches": 2},
    "4 stages, 6": {
        "axes": "data:2; stage:4",
        "layout": PIPELINE,
        "microbatches": 6,
    },
    "width": {
        "axes": "stage:2; model:2",
        "layout": "layers:stage; d:model",
        "microbatches": 3,
    },
    "weights": {
        "axes": "stage:2; data:2",
        "layout": PIPELINE,
        "variable_layout": "d:data",
        "microbatches": 4,
    },
    "two axes": {
        "axes": "a:2; b:2; data:2",
        "layout": "layers:a+b; batch:data",
        "microbatches": 8,
    },
    "repeats": {
        "axes": "stage:2; data:2",
        "layout": PIPELINE,
        "microbatches": 8,
        "repeats": 2,
    },
    "repeats, 3": {
        "axes": "stage:2",
        "layout": "layers:stage",
        "microbatches": 3,
        "repeats": 2,
    },
    "repeats, 1": {
        "axes": "model:2; stage:2",
        "layout": "layers:stage; d:model",
        "microbatches": 1,
        "repeats": 2,
    },
    "live, repeats": {
        "axes": "stage:2; data:2",
        "layout": PIPELINE,
        "variable_layout": "d:data",
        "microbatches": 4,
        "repeats": 2,
        "devices": "spmd:cpu:4",
    },
    "live, 3": {
        "axes": "stage:2; data:2",
        "layout": PIPELINE,
        "microbatches": 3,
        "devices": "spmd:cpu:4",
    },
    "live, 8": {
        "axes": "stage:4; data:2",
        "layout": PIPELINE,
        "microbatches": 8,
        "devices": "spmd:cpu:8",
    },
}
SCANS = {
    "8 layers": {"num_layers": 8},
    "recomputed": {"num_layers": 4, "recomputed": True},
    "5 layers": {"num_layers": 5},
    "in reverse": {"num_layers": 5, "reverse": True},
    "3 layers": {"num_layers": 3, "reverse": True, "recomputed": True},
}


@functools.cache
def expected(layer, scan):
    """Returns the results of a scan on one device."""
    return run(LAYERS[layer], **SCANS[scan])


def compare(got, expected, tolerance=1e-10):
    for i, (y, value) in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_allclose(
            y, value, rtol=tolerance, atol=tolerance, err_msg=f"result {i}"
        )


@pytest.mark.sampled(14, each="layer mesh scan")
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("layer", LAYERS)
def test_results_and_gradients(layer, mesh, scan):
    results = run(LAYERS[layer], **SCANS[scan], **MESHES[mesh])
    compare(results, expected(layer, scan))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 6, 8, 12, 24])
def test_numbers_of_microbatches(microbatches):
    mesh = {"axes": "stage:4", "layout": "layers:stage", "microbatches": microbatches}
    compare(run(outputs, 8, **mesh), expected("outputs", "8 layers"))


@pytest.mark.parametrize("devices", [None, "spmd:cpu:4"])
def test_dropout_masks_are_those_of_the_batch(devices):
    settings = {"num_layers": 5, "dtype": "float32"}
    *_, values = run(dropped, **settings)
    mesh = {"axes": "stage:4", "layout": "layers:stage", "devices": devices}
    *_, of_pipeline = run(dropped, **settings, **mesh, microbatches=3)
    np.testing.assert_array_equal(of_pipeline == 0, values == 0)
    assert 0.4 < (values == 0).mean() < 0.6


@pytest.mark.parametrize("recomputed", [False, True])
def test_bfloat16_within_layers(recomputed):
    mesh = {"axes": "stage:2; data:2", "layout": PIPELINE, "microbatches": 4}
    settings = {"dtype": "float32", "recomputed": recomputed}
    compare(run(half, **settings, **mesh), run(half, **settings), tolerance=2e-2)


def test_bfloat16_carry():
    mesh = {"axes": "stage:2; data:2", "layout": PIPELINE, "microbatches": 4}
    loss, *_ = run(outputs, dtype="bfloat16", **mesh)
    expected_loss, *_ = run(outputs, dtype="bfloat16")
    np.testing.assert_allclose(float(loss), float(expected_loss), rtol=2e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mesh", ["2 stages, 1", "4 stages, 2", "live, 3"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_gradients_of_gradients(mesh, recomputed):
    def results(**mesh):
        scanned = Scanned(terms, 3, recomputed=recomputed, **mesh)

        @mtf.function(mesh=scanned.mesh, x="batch; d", context="batch; d")
        def step(x, context, caches):
            _, grads, _ = scanned.step(x, context, caches)
            loss = mtf.add_n([mtf.reduce_sum(mtf.square(g)) for g in grads])
            return mtf.gradients([loss], [scanned.w, x])

        arguments = arrays(3)
        caches = mtf.asarray(scanned.mesh, arguments[2], "layers; batch; d")
        return [g.numpy() for g in step(*arguments[:2], caches)]

    compare(results(**MESHES[mesh]), results(), tolerance=1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mesh", ["4 stages, 2", "2 stages", "live, 3"])
def test_within_other_loops(mesh):
    def results(**mesh):
        scanned = Scanned(dropped, 6, **mesh)

        @mtf.function(mesh=scanned.mesh, x="batch; d", context="batch; d")
        def step(x, context, caches):
            def again(h, _):
                (h, _, stacks) = scanned.scan(h, context, caches)
                return h, mtf.reduce_sum(stacks)

            def more(h, i):
                return mtf.less(i, 2)

            def once(h, i):
                return scanned.scan(h, context, caches)[0], i + 1

            with mtf.seed(3):
                h, sums = mtf.scan(again, x, None, "times", length=2)
            grads = mtf.gradients([mtf.reduce_sum(mtf.square(h))], [scanned.w, x])
            with mtf.seed(4):
                count = mtf.zeros(scanned.mesh, "", "int32")
                last, _ = mtf.while_loop(more, once, (x, count))
            return [h, sums, last, *grads]

        arguments = arrays(6)
        caches = mtf.asarray(scanned.mesh, arguments[2], "layers; batch; d")
        return [y.numpy() for y in step(*arguments[:2], caches)]

    compare(results(**MESHES[mesh]), results(), tolerance=2e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mesh", ["4 stages, 2", "2 stages, 1", "live, 3"])
def test_accumulated_gradients(mesh):
    def results(**mesh):
        scanned = Scanned(dropped, 6, **mesh)

        def loss_of(inputs):
            x, context, caches = inputs
            h, _, stacks = scanned.scan(x, context, caches)
            return mtf.reduce_mean(mtf.square(h)) + mtf.reduce_mean(stacks)

        @mtf.function(
            mesh=scanned.mesh,
            x="batch; d",
            context="batch; d",
            caches="layers; batch; d",
        )
        def step(x, context, caches):
            with mtf.seed(5):
                loss, grads = mtf.optimizers.accumulate_gradients(
                    loss_of, [scanned.w], (x, context, caches), "batch", 2
                )
            return [loss, *grads]

        return [y.numpy() for y in step(*arrays(6))]

    compare(results(**MESHES[mesh]), results())


def test_nothing_changes_outside_of_functions():
    scanned = Scanned(outputs, 4, **MESHES["4 stages, 6"])
    names = ("batch; d", "batch; d", "layers; batch; d")
    inputs = [mtf.asarray(scanned.mesh, a, n) for a, n in zip(arrays(4), names)]
    loss, grads, tensors = scanned.step(*inputs)
    compare([y.numpy() for y in (loss, *grads, *tensors)], run(outputs, 4))


@pytest.mark.parametrize("devices", [None, "spmd:cpu:4"])
def test_batch_that_all_devices_share(devices):
    """Before and after the pipeline, stages have examples of their own."""

    def results(axes="", layout="", devices=None):
        mesh = mtf.Mesh(axes, layout, devices=devices)
        weights = mtf.Variable(
            mesh, "layers:4; d:3; e:3", mtf.layers.initializers.normal(0.5), name="w"
        )

        @mtf.function(mesh=mesh, x="batch; d")
        def step(x):
            def layer(h, w):
                h, _, _ = dense(h, (w, None), None)
                return h, mtf.reduce_mean(h)

            y, means = mtf.scan(layer, mtf.sin(x), weights, "layers")
            loss = mtf.reduce_sum(mtf.square(y))
            return [loss, y, means, *mtf.gradients([loss], [weights, x])]

        return [y.numpy() for y in step(arrays(4, "float32")[0])]

    layout = "layers:stage; batch:data+stage"
    compare(results("stage:2; data:2", layout, devices), results(), tolerance=1e-5)


def collectives(**mesh):
    """Returns how often each kind of collective of the step of a scan runs over which axes."""
    scanned = Scanned(dense, 8, **mesh)
    step = scanned.function()
    counts = collections.Counter()
    for collective in step.lower(*arrays(8)).collectives:
        counts[" ".join(str(collective).split()[:3])] += 1
    return counts


@pytest.mark.parametrize("microbatches", [2, 4, 12])
def test_collectives(microbatches):
    """Ticks only pass on states and slots: gradients are reduced once."""
    counts = collectives(
        axes="stage:2; data:2", layout=PIPELINE, microbatches=microbatches
    )
    ticks = microbatches + 1
    permutes = counts.pop("window over stage")
    # The state and the slot, in the forward pass and in the backward pass.
    assert 4 * (ticks - 1) <= permutes <= 4 * ticks + 4
    assert set(counts) <= {
        "all_gather over stage",
        "all_reduce over stage",
        "all_reduce over data",
        "all_reduce over stage+data",
    }
    assert sum(counts.values()) < 8


def normalized(h, inputs, outside):
    """A function of nothing but what a layer is made for: 0 / 0 of zeros."""
    w, _ = inputs
    norm = mtf.sqrt(mtf.reduce_sum(mtf.square(h), "d"))
    return h / norm + mtf.tanh(linear(h, w)), None, None


@pytest.mark.parametrize("settings", [{}, {"repeats": 2}, {"microbatches": 3}])
def test_the_bubble_computes_what_layers_are_made_for(settings):
    mesh = {"axes": "stage:2", "layout": "layers:stage", "microbatches": 4}
    with mtf.check_numerics():
        results = run(normalized, 4, **{**mesh, **settings})
    compare(results, run(normalized, 4))


def test_integers_that_must_not_be_zero():
    mesh = mtf.Mesh("stage:2", "layers:stage", microbatches=2)
    w = mtf.Variable(mesh, "layers:4; d:3; e:3", "ones", dtype="float64", name="w")

    @mtf.function(mesh=mesh, x="b; d", count="b; d")
    def step(x, count):
        def layer(carry, w):
            h, count = carry
            return (h + linear(h, w) * mtf.cast(12 // count, h.dtype), count), None

        return mtf.scan(layer, (x, count), w, "layers")[0]

    x = np.ones((4, 3))
    h, count = step(x, np.full((4, 3), 5, "int32"))
    np.testing.assert_allclose(h.numpy(), np.full((4, 3), 7.0**4))
    np.testing.assert_array_equal(count.numpy(), 5)
