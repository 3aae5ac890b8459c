"""Which terms of sums are added in place, and that numbers stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.partition import added_in_place, values_in_sums, walk
from tests.ops.loops import pipelined_layers

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


def loops_with_sums(program):
    """Returns the loops of a program that sum, outer ones first."""
    loops = [step.loop for step, _ in walk(program) if step.loop is not None]
    return [loop for loop in loops if loop.op.num_sums]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_stacks_that_only_the_sum_reads_are_never_stored(fn):
    (outer,) = loops_with_sums(recorded(fn).lower(*arrays()).program)
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
    addends = [added_in_place(outer.body, term) for term in terms]
    assert sum(addend is not None for addend in addends) == bool(never_stored)


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


ROWS = 7  # of the table; two devices have four and three of them
LOOKUPS = 5
# At most one of these is out of range.
IDS = np.array([2, 6, 2, 0, 5], "int32")


def scanned(lookup):
    """Returns a function of (table, x, ids) -> a loss and the gradient of the table, where a scan
    looks up rows: `lookup` is a function of (table, id, x [batch, d]) -> [...].
    """

    def fn(table, x, ids):
        def step(_, inputs):
            x, i = inputs
            return None, mtf.reduce_sum(mtf.square(lookup(table, i, x))), None

        loss = mtf.scan_and_sum(step, None, (x, ids), dim="lookup")[1]
        return [loss, *mtf.gradients([loss], [table])]

    fn.__name__ = lookup.__name__
    return fn


def once(table, i, x):
    return x * mtf.gather(table, i, "rows")


def ignored(table, i, x):
    """Ids of which one is negative, and one is too large."""
    return once(table, i, x) + x * mtf.gather(table, i - 2, "rows", zero_negative=True)


def zeros(table, i, x):
    return x * mtf.gather(table, i * 2 - 3, "rows", out_of_range="zeros")


def bfloat16(table, i, x):
    table = mtf.cast(table, "bfloat16")
    return once(table, i, mtf.cast(x, "bfloat16"))


def by_other_names(table, i, x):
    return once(mtf.rename(table, {"row": "rows"}), i, x)


def in_a_loop(table, i, x):
    def step(h, _):
        return h + once(table, i, mtf.sin(h)), None

    return mtf.scan(step, x, None, "steps", length=2)[0]


def in_two_loops(table, i, x):
    def step(h, _):
        return in_a_loop(table, i, h), None

    return mtf.scan(step, x, None, "more", length=2)[0]


def transposed(table, i, x):
    return x * mtf.gather(mtf.transpose(table, "d;rows"), i, "rows")


def of_several_ids(table, i, x):
    ids = (i + mtf.range(table.mesh, "batch:2")) % ROWS
    return x * mtf.gather(table, ids, "rows")


def twice(table, i, x):
    return once(table, i, x) + once(table, ROWS - 1 - i, x)


SIZE = ROWS * WIDTH
# Lookup -> how many values as large as the table are never stored.
IN_PLACE = {
    once: 1,
    zeros: 1,
    bfloat16: 2,  # and that converted to float32
    in_a_loop: 2,  # and the sum of that loop
    in_two_loops: 3,
    transposed: 0,  # what lies between is no view
    of_several_ids: 0,
    twice: 0,  # the sum of two
    ignored: 0,
}


def with_table(fn, axes="", layout="", devices=None):
    mesh = mtf.Mesh(axes, layout, devices=devices)
    return mtf.function(fn, mesh=mesh, table="rows;d", x="lookup;batch;d", ids="lookup")


def table_and_inputs():
    """Returns table[rows, d], x[lookup, batch, d] and ids[lookup]."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(ROWS, WIDTH)).astype("float32")
    return table, rng.normal(size=(LOOKUPS, 2, WIDTH)).astype("float32"), IDS


@pytest.mark.parametrize("lookup", IN_PLACE, ids=lambda fn: fn.__name__)
def test_the_gradient_of_a_lookup_is_added_at_its_id(lookup):
    program = with_table(scanned(lookup)).lower(*table_and_inputs()).program
    outer = loops_with_sums(program)[-1 if lookup is once else 1]
    in_place = [x.spec.shape.size for x in values_in_sums(outer)]
    assert in_place == [SIZE] * IN_PLACE[lookup]


@pytest.mark.parametrize("layout", ["batch:data", "rows:data", "d:data"])
@pytest.mark.parametrize("lookup", IN_PLACE, ids=lambda fn: fn.__name__)
def test_gradients_of_lookups(lookup, layout):
    """Partial sums, and tables of which shards have some rows, the last one fewer, or columns."""
    expected = with_table(scanned(lookup))(*table_and_inputs())
    tolerance = 0.02 if lookup is bfloat16 else 1e-5
    for devices in (None, "spmd:cpu:2"):
        fn = with_table(scanned(lookup), "data:2", layout, devices)
        for got, y in zip(fn(*table_and_inputs()), expected, strict=True):
            np.testing.assert_allclose(
                got.numpy(), y.numpy(), rtol=tolerance, atol=tolerance
            )


def test_an_id_out_of_range_is_an_error_on_live_devices():
    fn = with_table(scanned(once), "data:2", "rows:data", "spmd:cpu:2")
    table, x, _ = table_and_inputs()
    with pytest.raises(mtf.IndexRangeError, match="7"):
        fn(table, x, np.array([0, 1, 7, 2, 3], "int32"))[1].numpy()


def of_context(h, inputs, outside):
    w, _ = inputs
    return h + mtf.tanh(pipelined_layers.linear(h, w) + outside.context), None, None


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_a_stage_adds_to_one_microbatch(repeats, dtype, recomputed):
    mesh = {"axes": "stage:2", "layout": "layers:stage", "microbatches": 4}
    pipeline = pipelined_layers.Scanned(
        of_context, 4, dtype=dtype, recomputed=recomputed, **mesh, repeats=repeats
    )
    program = pipeline.function().lower(*pipelined_layers.arrays(4, dtype)).program
    ticks = next(loop for loop in loops_with_sums(program) if loop.is_pipeline)
    of_batch = pipelined_layers.BATCH * pipelined_layers.WIDTH
    sizes = [x.spec.shape.size for x in values_in_sums(ticks)]
    # The sum over stages, and a stage's term of it; in bfloat16 that is converted.
    assert sizes.count(of_batch) == (2 if dtype == "float32" else 3)
    if repeats == 2 and dtype == "float32":
        # The gradients of all groups of stages, and of a stage.
        weights = 4 * pipelined_layers.WIDTH**2
        assert weights in sizes and weights // 2 in sizes
    reduced = [step for step, runs in walk(program) if step.reductions and runs > 1]
    assert not reduced
