"""Which stacks of inner loops are added to a sum at once, and that numbers stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.partition import summed_stack, values_in_sums, walk

MICROBATCHES, LAYERS, BATCH, WIDTH = 3, 4, 2, 6


def arrays():
    """Returns x[microbatch, batch, d] and w[layers, d, e]."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(MICROBATCHES, BATCH, WIDTH))
    w = rng.normal(size=(LAYERS, WIDTH, WIDTH)) * 0.3
    return x.astype("float32"), w.astype("float32")


def layers(w, x, reverse=False):
    def layer(x, w):
        return mtf.rename(mtf.tanh(mtf.einsum([x, w], "batch;e")), "e", "d"), None

    return mtf.scan(layer, x, w, dim="layers", reverse=reverse)[0]


def gradients(loss_of, x, w, **more):
    """Returns sums over microbatches: the loss, and the gradient of w."""

    def microbatch(_, x):
        loss = loss_of(w, x)
        (dw,) = mtf.gradients([loss], [w])
        return None, {"loss": loss, "dw": dw, **more}, None

    return mtf.scan_and_sum(microbatch, None, x, dim="microbatch")[1]


def plain(x, w):
    return gradients(lambda w, x: mtf.reduce_sum(mtf.square(layers(w, x))), x, w)


def renamed(x, w):
    def loss(w, x):
        w = mtf.rename(mtf.flatten(w, "layers;d", "rows"), "e", "columns")
        w = mtf.unflatten(w, "rows", f"layers:{LAYERS};d:{WIDTH}")
        return mtf.reduce_sum(layers(mtf.rename(w, "columns", "e"), x, reverse=True))

    return gradients(loss, x, w)


def mapped(x, w):
    """Two stages of two layers: a map lies between the loops."""

    def loss(w, x):
        w = mtf.unflatten(w, "layers", "stage:2;layers:2")
        outputs = mtf.map(lambda w: layers(w, x), w, "stage")
        return mtf.reduce_sum(mtf.square(outputs))

    return gradients(loss, x, w)


def read_twice(x, w):
    def microbatch(_, x):
        loss = mtf.reduce_sum(layers(w, x))
        (dw,) = mtf.gradients([loss], [w])
        return None, {"dw": dw, "total": mtf.reduce_sum(dw)}, None

    return mtf.scan_and_sum(microbatch, None, x, dim="microbatch")[1]


def converted(x, w):
    def loss(w, x):
        return mtf.reduce_sum(layers(mtf.cast(w, "bfloat16"), mtf.cast(x, "bfloat16")))

    return gradients(loss, x, w)


PROGRAMS = [plain, renamed, mapped, read_twice, converted]


def recorded(fn, devices=None):
    mesh = mtf.Mesh("data:2", "batch:data", devices=devices)
    return mtf.function(fn, mesh=mesh, x="microbatch;batch;d", w="layers;d;e")


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_stacks_that_only_the_sum_reads_are_never_stored(fn):
    (outer,) = [
        step.loop
        for step, _ in walk(recorded(fn).lower(*arrays()).program)
        if step.loop is not None and step.loop.op.num_sums
    ]
    never_stored = [x.spec.shape.size for x in values_in_sums(outer)]
    stack = LAYERS * WIDTH * WIDTH
    expected = {
        plain: [stack],
        renamed: [stack] * 5,  # and what has its elements by other names
        mapped: [stack, stack, stack // 2],  # of the map, and of the loop in it
        read_twice: [],
        converted: [],  # the sum has another data type
    }
    assert never_stored == expected[fn]
    terms = outer.body.results[outer.op.num_carries :]
    stacks = [summed_stack(outer.body, term) for term in terms]
    assert sum(stack is not None for stack in stacks) == bool(never_stored)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_numbers_are_those_of_stacks(fn):
    tolerance = 0.02 if fn is converted else 1e-5
    live, placed = (
        recorded(fn, devices)(*arrays()) for devices in ("spmd:cpu:2", None)
    )
    for name, y in placed.items():
        np.testing.assert_allclose(
            live[name].numpy(), y.numpy(), rtol=tolerance, atol=tolerance
        )
