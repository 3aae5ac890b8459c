"""What the parts of a module compute on 2, 4 and 8 CPU devices: windows, moves, random
bits.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.graph import Window, apply_all
from meshtf.names import Shape
from meshtf.ops.random.random_ops import Random
from meshtf.runtime.lowering.padding.element_ranges import take_elements
from meshtf.runtime.spmd.live.jax_host import cpu_mesh
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.module_call import ModuleCall
from meshtf.runtime.spmd.live.stacked_layout import StackedLayout
from meshtf.runtime.spmd.module.portable_module import portable
from meshtf.runtime.spmd.module.window_exchange import exchange
from meshtf.runtime.storage.asarray import asarray
from meshtf.runtime.tf_internals.xla_ops import replica_id
from meshtf.testing import difference
from meshtf.testing.conformance.exported_suite import run_exported
from meshtf.testing.conformance.layouts import (
    all_layouts,
    is_legal,
    layout_text,
    sample_layouts,
)
from tests.support.stablehlo_traffic import text_of

# Rows of a slice, rows of the factor in it, and which rows those read.
WINDOWS = {
    "own": (2, 2, lambda a: a, lambda b: b),
    "one on each side": (1, 1, lambda a: a - 1, lambda b: b + 1),
    "over several slices": (2, 2, lambda a: a - 3, lambda b: b + 3),
    "all of slices before": (2, 2, lambda a: a - 4, lambda b: b - 2),
    "from outside alone": (2, 2, lambda a: a + 1000, lambda b: b + 1000),
    "the same for all": (3, 3, lambda a: -5, lambda b: 4),
    "stride": (2, 1, lambda a: 2 * a - 1, lambda b: 2 * b + 2),
    "more than there is": (2, 3, lambda a: a - 2, lambda b: b - 2),
    "each thrice": (1, 3, lambda a: a // 3, lambda b: -(-b // 3)),
}


def expected_shards(array, window, size, num_shards, fill):
    """Returns the rows of each shard, as slices of the full array."""
    spans = [
        (window.low(j * size // num_shards), window.high((j + 1) * size // num_shards))
        for j in range(num_shards)
    ]
    length = max(high - low for low, high in spans)
    return [
        take_elements(tf.constant(array), 0, low, low + length, fill).numpy()
        for low, _ in spans
    ]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("num_shards", [2, 4, 8])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, num_shards, rng):
    rows, each, low, high = WINDOWS[name]
    array = rng.normal(size=(rows * num_shards, 2)).astype("float32")
    array[0], array[-1, 0] = np.nan, np.inf
    fn = tf.function(
        lambda x: exchange(
            x,
            0,
            Window(low, high),
            each * num_shards,
            len(array),
            -np.inf,
            replica_id(),
            [range(num_shards)],
        ),
        jit_compile=True,
    )
    slices = np.split(array, num_shards)
    text = fn.experimental_get_compiler_ir(tf.constant(slices[0]))(stage="stablehlo")
    concrete = fn.get_concrete_function(tf.constant(slices[0]))
    mesh = cpu_mesh(num_shards, "replica")
    kinds = [
        StackedLayout(sizes, np.dtype("float32"), mesh)
        for sizes in (slices[0].shape, tuple(concrete.structured_outputs.shape))
    ]
    call = ModuleCall("windows", portable(text), kinds[:1], kinds[1:], mesh)
    (results,) = call([load_jax().device_put(np.stack(slices), kinds[0].sharding)])
    for have, expected in zip(
        np.array(results),
        expected_shards(
            array, Window(low, high), each * num_shards, num_shards, -np.inf
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(have, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "axes, dtypes, sizes",
    [
        ("a:2;b:2", ["float32", "bool"], "n:8;h:8;k:4"),
        ("a:2;b:2;c:2", ["bfloat16", "int32"], "n:8;h:8;k:4"),
        ("a:2;b:2", ["float32"], "n:5;h:7;k:1"),
        ("a:3;b:2", ["int32", "bool"], "n:4;h:11;k:3"),
    ],
)
def test_moves_from_one_layout_to_others(axes, dtypes, sizes, rng):
    shape = Shape(sizes)
    mesh = mtf.Mesh(axes)
    legal = [
        layout_text(rules)
        for rules in all_layouts(shape.names, list(mesh.axes))
        if is_legal([shape], rules)
    ]
    targets = sample_layouts(legal, 40, rng)
    for dtype in dtypes:
        array = tf.cast(
            rng.integers(0, 2 if dtype == "bool" else 256, shape.sizes), dtype
        ).numpy()
        # From "n:a;h:b" to "n:b;h:a" devices swap their shards.
        for front in ["n:a;h:b", *sample_layouts(legal, 3, rng)]:
            with mtf.layout(front):
                x = asarray(mesh, array, shape)
            results = run_exported(
                lambda x: [mtf.shard(x, back) for back in targets], [x]
            )
            problems = {
                back: problem
                for back, y in zip(targets, results, strict=True)
                if (problem := difference(y, shape, array))
            }
            assert not problems, (front, problems)


@pytest.mark.parametrize(
    "op",
    [
        Random("uniform", Shape("b:8;d:37"), "float32"),
        Random("uniform", Shape("b:8"), "bfloat16"),
        Random("integers", Shape("b:8;d:37"), "int32", 1000, -3),
        Random("mask", Shape("b:8;d:37"), "bool", 0.3),
    ],
)
def test_random_bits_are_those_of_one_device_under_tensorflow(op):
    one = mtf.Mesh("")
    eight = mtf.Mesh("x:8", "b:x")
    seed, seeds = (asarray(mesh, np.int32(5), Shape("")) for mesh in (one, eight))
    expected = apply_all(op, seed, mesh=one)[0]
    (results,) = run_exported(lambda s: apply_all(op, s, mesh=eight), [seeds])
    assert difference(results, expected.shape, expected.numpy()) == ""


def test_entries_of_a_stack_are_gathered_in_the_order_of_the_stack():
    """What XLA gathers is flat before: so no other order in memory suits the stack better."""
    mesh = mtf.Mesh("x:4", "b:x", variable_layout="e:x")
    w = mtf.Variable(mesh, "layers:3;d:6;e:8", mtf.layers.initializers.zeros, "w")

    @mtf.function(mesh=mesh, x="b;d")
    def run(x):
        def layer(h, w):
            y = mtf.tanh(mtf.einsum([h, w], "b;e"))
            return mtf.einsum([y, w], "b;d"), None

        return mtf.scan(layer, x, w.tensor(), "layers")[0]

    text = text_of(mtf.export(run, np.ones((400, 6), "float32")).module)
    assert re.search(r"optimization_barrier %\S+ : tensor<12xf32>", text)
    assert re.search(r"\(tensor<6x2xf32>\) -> tensor<6x8xf32>", text)
