"""AmoebaNet-D of the examples: its published sizes, its cells by hand, and pipelines of
it.
"""

from __future__ import annotations

import itertools
import re
import runpy
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from examples.amoebanet.network import NORMAL, REDUCTION, Cell, amoebanet_d
from meshtf.graph import Graph, executing
from tests.pipeline import amoebanet_costs

IMAGE = "batch:1;height:224;width:224;color:3"


def recorded(layers, mesh, image=IMAGE):
    """Returns of each layer what it makes of an image, and the multiplications of its
    kernels.
    """
    x = mtf.zeros(mesh, image)
    graph = Graph(mesh)
    results = []
    with executing(graph):
        for layer in layers:
            before = len(graph.nodes)
            x = layer(x)
            flops = sum(
                node.op.flops(*(y.spec for y in node.inputs))
                for node in graph.nodes[before:]
                if type(node.op).__name__ in ("Conv", "Einsum")
            )
            results.append((x, flops // 2))
    return results


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "cells, filters, parameters, giga_macs",
    [
        (18, 128, 31_694_440, 3.80),
        (18, 208, 81_505_540, 10.02),
        (18, 256, 122_470_120, 15.17),
        (18, 416, 319_024_120, 40.03),
        (18, 512, 481_268_200, 60.63),
        (18, 544, 542_734_840, 68.44),
        (36, 544, 1_055_832_376, 125.86),
        (72, 512, 1_844_858_344, 213.23),
    ],
)
def test_sizes_are_as_published(cells, filters, parameters, giga_macs):
    mesh = mtf.Mesh("", devices="abstract")
    layers = amoebanet_d(mesh, cells, filters, classes=1000)
    assert len(layers) == cells + 6
    own = [sum(v.shape.size for v in layer.trainable_variables) for layer in layers]
    macs = [macs for _, macs in recorded(layers, mesh)]
    counts = amoebanet_costs.amoebanet_d(cells, filters)
    assert own == [count.parameters for count in counts]
    assert macs == [count.macs for count in counts]
    assert sum(own) == parameters
    assert round(sum(macs) / 1e9, 2) == giga_macs


@pytest.mark.parametrize(
    "size, sizes", [(224, (112, 56, 28, 14, 7)), (30, (15, 8, 4, 2, 1))]
)
def test_a_reduction_halves_rows_and_columns(size, sizes):
    mesh = mtf.Mesh("", devices="abstract")
    layers = amoebanet_d(mesh, cells=3, filters=32, classes=10)
    *pairs, (logits, _) = recorded(
        layers, mesh, f"batch:2;height:{size};width:{size};color:3"
    )
    rows = [sizes[i] for i in (0, 1, 2, 2, 3, 3, 4, 4)]
    channels = [8, 3 * 16, 3 * 32, 4 * 32, 3 * 64, 4 * 64, 3 * 128, 4 * 128]
    for i, ((result, last), _) in enumerate(pairs):
        j = max(
            i - 1, 0
        )  # the stem's result stands for that of the layer before it, too
        for x, k in ((result, i), (last, j)):
            assert x.shape.names == ("batch", "height", "width", "channels")
            assert x.shape.sizes == (2, rows[k], rows[k], channels[k])
    assert logits.shape == mtf.Shape("batch:2;classes:10")


def conv(layer, x):
    """Returns a ReluConvNorm or Convolutions of x, by TensorFlow, with averages as at
    first.
    """
    for module in getattr(layer, "convs", [layer]):
        strides = [module.conv.stride[dim] for dim in ("height", "width")]
        x = (
            tf.nn.conv2d(tf.nn.relu(x), module.conv.kernel.numpy(), strides, "SAME")
            / 1.001**0.5
        )
    return x


def pool(x, kind, size, stride=1):
    """Returns a pool of x."""
    return tf.nn.pool(x, [size, size], kind, strides=[stride, stride], padding="SAME")


def normal_cell(cell, s0, s1):
    """Returns what a normal cell makes of its first two states."""
    (a, _), (_, b), (c, d), _, (_, e) = cell.operations
    s2 = conv(a, s1) + pool(s1, "MAX", 3)
    s3 = s1 + conv(b, s0)
    s4 = conv(c, s0) + conv(d, s0)
    s5 = pool(s2, "MAX", 3) + s2
    s6 = pool(s1, "AVG", 3) + conv(e, s5)
    return tf.concat([s0, s3, s4, s6], -1)


def reduction_cell(cell, s0, s1):
    """Returns what a reduction cell makes of its first two states."""
    _, (_, a), (b, _), _, (_, c) = cell.operations
    s2 = pool(s0, "MAX", 2, 2) + pool(s0, "MAX", 3, 2)
    s3 = s2 + conv(a, s1)
    s4 = conv(b, s2) + pool(s2, "MAX", 3)
    s5 = s3 + pool(s1, "MAX", 2, 2)
    s6 = pool(s2, "AVG", 3) + conv(c, s3)
    return tf.concat([s4, s5, s6], -1)


def halved(layer, x):
    """Returns a FactorizedReduce of x."""
    x = tf.nn.relu(x)
    behind = tf.pad(x, [[0, 0], [0, 1], [0, 1], [0, 0]])[:, 1:, 1:]
    return (
        tf.concat(
            [
                tf.nn.conv2d(y, module.kernel.numpy(), 2, "SAME")
                for y, module in ((x, layer.even), (behind, layer.odd))
            ],
            -1,
        )
        / 1.001**0.5
    )


@pytest.mark.parametrize(
    "cell_type, want", [(NORMAL, normal_cell), (REDUCTION, reduction_cell)]
)
@pytest.mark.parametrize("reduced", [False, True])
def test_a_cell_is_what_it_was_found_to_be(cell_type, want, reduced, rng):
    mesh = mtf.Mesh("")
    cell = Cell(
        mesh,
        cell_type,
        channels=8,
        in_channels=(6, 12),
        after_reduction=reduced,
        name="cell",
    )
    arrays = [
        rng.normal(size=(2, n, n, c)).astype("float32")
        for n, c in ((5, 6), (10 if reduced else 5, 12))
    ]
    result, last = cell(
        tuple(mtf.asarray(mesh, x, "batch;height;width;channels") for x in arrays)
    )
    before = halved if reduced else conv
    expected = want(cell, conv(cell.last, arrays[0]), before(cell.before, arrays[1]))
    np.testing.assert_allclose(result.numpy(), expected, 1e-4, 1e-5)
    np.testing.assert_array_equal(last.numpy(), arrays[0])


def test_it_is_split_by_what_layers_cost():
    mesh = mtf.Mesh("", devices="abstract")
    layers = amoebanet_d(mesh, 18, 256, classes=1000)
    macs = [count.macs for count in amoebanet_costs.amoebanet_d(18, 256)]
    counted = None
    for stages, sizes, largest in (
        (2, (12, 12), 0.521),
        (4, (7, 5, 5, 7), 0.266),
        (8, (5, 3, 2, 3, 2, 2, 3, 4), 0.145),
    ):
        inputs = mtf.zeros(mesh, IMAGE) if counted is None else None
        pipe = mtf.pipeline.GPipe(
            layers, stages, microbatches=32, inputs=inputs, cost=counted
        )
        counted = [layer.cost for layer in pipe.costs]
        for costs, exact in ((macs, 5e-4), (counted, 2e-3)):
            ends = itertools.pairwise([0, *itertools.accumulate(pipe.sizes)])
            share = max(sum(costs[first:last]) for first, last in ends) / sum(costs)
            assert share == pytest.approx(largest, abs=exact)
        assert (
            pipe.sizes
            == mtf.pipeline.GPipe(layers, stages, 32, cost=macs).sizes
            == sizes
        )


def trained(axes, stages, rng):
    """Returns the losses of two steps and all variables after them."""
    mesh = mtf.Mesh(axes, "batch:data" if "data" in axes else "")
    layers = amoebanet_d(mesh, cells=3, filters=16, classes=10, colors=1)
    pipe = mtf.pipeline.GPipe(
        [partial(layer, training=True) for layer in layers], stages, 2
    )
    variables = pipe.trainable_variables
    sgd = mtf.optimizers.SGD(variables, 0.001)

    @mtf.function(mesh=mesh, x="batch;height;width;color", labels="batch", number="")
    def step(x, labels, number):
        loss = pipe.loss(
            lambda y, labels: mtf.layers.softmax_cross_entropy(y, labels, "classes"),
            x,
            labels,
        )
        sgd.apply_gradients(mtf.gradients([loss], variables), variables, number)
        return loss

    x = rng.normal(size=(32, 32, 32, 1)).astype("float32")
    labels = rng.integers(0, 10, 32).astype("int32")
    losses = [float(step(x, labels, np.int32(i))) for i in range(2)]
    return losses, {v.name: v.numpy() for v in pipe.variables}, pipe.sizes


@pytest.mark.slow
@pytest.mark.sampled(3, together="long runs")
def test_stages_change_nothing(seed):
    one, expected, _ = trained("", 1, np.random.default_rng(seed))
    two, got, sizes = trained("stage:2;data:2", 2, np.random.default_rng(seed))
    assert len(sizes) == 2
    assert one[1] < one[0]
    np.testing.assert_allclose(two, one, 1e-4)
    assert len(expected) == len(got)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, 1e-4, 1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.sampled(3, together="long runs")
def test_digits_are_classified(capsys):
    runpy.run_module("examples.amoebanet", run_name="__main__")
    lines = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("epoch")
    ]
    losses, accuracies = zip(
        *(
            map(float, re.findall(r"loss ([\d.]+), .* ([\d.]+)%", line)[0])
            for line in lines
        )
    )
    assert losses[-1] < 0.1 * losses[0]
    assert accuracies[-1] > 90.0
