"""`mtf.map`: a function for each entry, on the devices that have the entries: the numbers of one
device, with no collective but those that the function itself needs.
"""

from __future__ import annotations

import collections
import re

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.lowering.filled_padding import poisoned_padding
from meshtf.testing.conformance.exported_suite import run_exported
from tests.support.stablehlo_traffic import received

# Kinds of collectives, as modules have them.
AS_ONE = {"window": "collective_permute", "gather_statistics": "all_gather"}

LAYOUTS = [
    "member:x",
    "member:x+y",
    "member:y+x",
    "member:y;batch:x",
    "member:x;e:y",
    "member:x;d:y",
    "batch:x",
    "e:x;member:y",
    "member:x;k:x+y",
]


def numbers(seed):
    """Returns x[member, batch, d], w[member, d, e], b[e]."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(8, 4, 6)),
        rng.normal(size=(8, 6, 4)) * 0.3,
        rng.normal(size=4),
    )


def tensors(layout, seed, axes="x:2;y:2", **settings):
    mesh = mtf.Mesh(axes, layout, **settings)
    names = ("member;batch;d", "member;d;e", "e")
    pairs = zip(numbers(seed), names, strict=True)
    return [mtf.asarray(mesh, array, dims) for array, dims in pairs]


def ensemble(x, w, b):
    """Members with a weight each and one that all share; one result is no member's own."""

    def member(entry):
        x, w = entry
        y = mtf.softmax(mtf.einsum([x, w], "batch;e") + b, "e")
        return {"y": y, "norm": mtf.reduce_max(mtf.square(y)), "b": b}

    out = mtf.map(member, (x, w), "member")
    loss = mtf.reduce_sum(out["norm"]) + mtf.reduce_sum(out["b"] * out["y"])
    return [loss, out["y"], out["b"], *mtf.gradients([loss], [x, w, b])]


def nested(x, w, b):
    """Loops with and without a state within the function, and a gradient of a gradient."""

    def member(entry):
        x, w = entry

        def turn(h, _):
            return mtf.tanh(h * 0.9 + mtf.einsum([x, w], "batch;e")), None

        h, _ = mtf.scan(turn, mtf.zeros(x.mesh, "batch:4;e:4", "float64"), length=2)
        rows = mtf.map(lambda row: mtf.reduce_sum(row * row * b), h, "batch")
        return mtf.reduce_sum(rows) + mtf.reduce_mean(h)

    loss = mtf.reduce_sum(mtf.map(member, (x, w), "member"))
    (dw,) = mtf.gradients([loss], [w])
    return [loss, dw, *mtf.gradients([mtf.reduce_sum(dw * dw)], [x, w, b])]


def noisy(x, w, b):
    """Random numbers, others for each member."""
    with mtf.seed(5):
        y = mtf.map(lambda x: mtf.dropout(x, 0.5), x, "member")
        z = mtf.map(
            lambda w: w + mtf.random_normal(w.mesh, "e:4", dtype="float64"), w, "member"
        )
    loss = mtf.reduce_sum(y * y) + mtf.reduce_sum(z)
    return [y, z, loss, *mtf.gradients([loss], [x])]


def recomputed(x, w, b):
    """The backward pass runs the function again."""

    @mtf.recompute
    def member(entry):
        x, w = entry
        return mtf.tanh(mtf.einsum([x, w], "batch;e") + b)

    loss = mtf.reduce_sum(mtf.square(mtf.map(member, (x, w), "member")))
    return [loss, *mtf.gradients([loss], [x, w, b])]


def in_branches(x, w, b):
    """Devices cannot go two ways: each runs all entries."""

    def member(x):
        return mtf.cond(mtf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: x - 1.0)

    y = mtf.map(member, x, "member")
    return [y, *mtf.gradients([mtf.reduce_sum(y * y)], [x])]


def in_a_loop(x, w, b):
    """The layouts of both loops may name one axis: the outer loop has it."""

    def member(w):
        numbers = mtf.range(w.mesh, "k:4", "float64")
        return mtf.reduce_sum(mtf.map(lambda k: mtf.reduce_sum(w) * k, numbers, "k"))

    y = mtf.map(member, w, "member")
    return [y, *mtf.gradients([mtf.reduce_sum(y * y)], [w])]


PROGRAMS = [ensemble, nested, noisy, recomputed, in_branches, in_a_loop]
ids = {"ids": lambda program: program.__name__}


def check(results, expected, program):
    # Normal numbers are drawn by functions of float32, whose last bit depends on the compiler.
    tolerance = 1e-6 if program is noisy else 1e-10
    for y, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(y.numpy(), want, 10 * tolerance, tolerance)


@pytest.mark.sampled(20, each="program layout")
@pytest.mark.parametrize("program", PROGRAMS, **ids)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_numbers_are_those_of_one_device(program, layout, seed):
    want = [y.numpy() for y in program(*tensors("", seed))]  # entry by entry in Python
    check(mtf.function(program)(*tensors(layout, seed)), want, program)


@pytest.mark.parametrize("program", PROGRAMS, **ids)
def test_separate_devices_and_modules_give_the_same(program, seed):
    want = [y.numpy() for y in program(*tensors("", seed))]
    separate = tensors("member:x;e:y", seed, devices="separate:4")
    check(mtf.function(program)(*separate), want, program)
    check(run_exported(program, tensors("member:x+y", seed)), want, program)


@pytest.mark.parametrize("layout", ["member:x+y", "member:x;e:y"])
@pytest.mark.parametrize("program", PROGRAMS, **ids)
def test_live_devices_give_the_same(program, layout, seed):
    want = [y.numpy() for y in program(*tensors("", seed))]
    live = mtf.function(program)(*tensors(layout, seed, devices="spmd:cpu:4"))
    check(live, want, program)


@pytest.mark.sampled(20, each="program devices")
@pytest.mark.parametrize("devices", [None, "separate:6", "spmd:cpu:6"])
@pytest.mark.parametrize("layout", ["member:x;e:y", "member:x;batch:y", "e:x;member:y"])
@pytest.mark.parametrize("program", PROGRAMS, **ids)
def test_devices_that_have_fewer_entries_run_their_last_one_again(
    program, layout, devices, seed
):
    want = [y.numpy() for y in program(*tensors("", seed))]
    args = tensors(layout, seed, devices=devices, axes="x:3;y:2")  # 3, 3, 2
    with poisoned_padding(seed):
        results = mtf.function(program)(*args)
    check(results, want, program)


@pytest.mark.sampled(20, each="program devices")
@pytest.mark.parametrize("devices", [None, "separate:{}", "spmd:cpu:{}"])
@pytest.mark.parametrize(
    "axes, layout",
    [
        ("x:5", "member:x"),  # 2, 2, 2, 2, 0
        ("x:3;y:2", "member:x+y"),  # 2, 1, 2, 1, 2, 0
        ("x:3;y:2", "member:y+x"),  # 2, 2, 0, 2, 2, 0
        ("x:7;y:1", "member:x;batch:y"),  # 2, 2, 2, 2, 0, 0, 0
    ],
)
@pytest.mark.parametrize("program", PROGRAMS, **ids)
def test_devices_without_an_entry_run_the_first_one(
    program, axes, layout, devices, seed
):
    want = [y.numpy() for y in program(*tensors("", seed))]
    if devices:
        devices = devices.format(mtf.Mesh(axes).size)
    args = tensors(layout, seed, devices=devices, axes=axes)
    with poisoned_padding(seed):
        results = mtf.function(program)(*args)
    check(results, want, program)


@pytest.mark.parametrize("devices", [None, "separate:4", "spmd:cpu:4"])
def test_devices_without_an_entry_read_ids_that_exist(devices, seed):
    mesh = mtf.Mesh("x:4", "member:x", devices=devices)

    @mtf.function(mesh=mesh, ids="member;batch", mask="member;batch", tables="v;e")
    def rows(ids, mask, tables):
        def member(entry):
            ids, mask = entry
            return mtf.where(mask, 1 // ids, 0), mtf.gather(tables, ids, "v")

        return mtf.map(member, (ids, mask), "member")

    rng = np.random.default_rng(seed)
    ids, mask = rng.integers(1, 5, (6, 3)), rng.integers(0, 2, (6, 3)) > 0
    tables = rng.normal(size=(5, 2))
    with poisoned_padding(seed):
        quotients, entries = rows(ids, mask, tables)
    np.testing.assert_array_equal(quotients.numpy(), np.where(mask, 1 // ids, 0))
    np.testing.assert_array_equal(entries.numpy(), tables[ids])
    kinds = rows.lower(ids, mask, tables).collectives
    assert kinds == ["all_reduce over x of [batch:3]"]


@pytest.mark.parametrize("devices", [None, "spmd:cpu:4"])
def test_uneven_entries_along_several_axes(devices, seed):
    mesh = mtf.Mesh("x:2;y:2", "member:x+y", devices=devices)
    x = np.random.default_rng(seed).normal(size=(7, 5))

    @mtf.function(mesh=mesh, x="member;d")
    def total(x):
        rows, sums = [], []
        for reverse in (False, True):
            _, term, row = mtf.scan_and_sum(
                lambda _, row: (None, mtf.square(row), mtf.exp(row)),
                None,
                x,
                "member",
                reverse=reverse,
            )
            rows.append(row)
            sums.append(term)
        return rows, sums

    rows, sums = total(x)
    for row, term in zip(rows, sums):
        np.testing.assert_allclose(row.numpy(), np.exp(x), rtol=1e-12)
        np.testing.assert_allclose(term.numpy(), np.square(x).sum(0), rtol=1e-12)
    assert not total.explain(x).notes


def test_uneven_entries_are_forecast(seed):
    even, uneven = (
        mtf.explain(mtf.function(recomputed), *tensors("member:x", seed, axes=axes))
        for axes in ("x:4", "x:3")
    )
    assert uneven.flops() == pytest.approx(even.flops() * 3 / 2, rel=0.05)


def test_members_need_nothing_of_each_other(seed):
    args = tensors("member:x+y", seed)
    step = mtf.function(ensemble).lower(*args)
    assert step.collectives == [
        "all_reduce over x+y of []",
        "all_reduce over x+y of [e:4]",  # the gradient of b, once, after the loop
    ]


def test_the_forecast_counts_what_a_device_runs(seed):
    divided, repeated = (
        mtf.explain(mtf.function(recomputed), *tensors(layout, seed), hardware="h100")
        for layout in ("member:x+y", "")
    )
    assert divided.flops() == pytest.approx(repeated.flops() / 4, rel=0.01)
    assert divided.repeated_flops() < 0.01 * repeated.repeated_flops()
    assert divided.time.seconds < repeated.time.seconds
    assert divided.memory.peak < repeated.memory.peak


@pytest.mark.parametrize("program", [ensemble, recomputed], **ids)
@pytest.mark.parametrize(
    "axes, layout",
    [
        ("x:2;y:2", "member:x"),
        ("x:2;y:2", "member:y;batch:x"),
        ("x:2;y:2", "member:x;e:y"),
        ("x:5;y:2", "member:x;e:y"),
    ],
)
def test_a_replica_receives_what_is_forecast(program, axes, layout, seed):
    args = tensors(layout, seed, axes=axes)
    module = mtf.export(mtf.function(program), *args).module
    forecast = collections.Counter()
    for collective in mtf.explain(mtf.function(program), *args).collectives:
        kind = AS_ONE.get(collective.kind, collective.kind)
        forecast[kind] += collective.total
    assert +forecast == pytest.approx(+received(module))


@pytest.mark.parametrize("devices", [None, "spmd:cpu:4"])
def test_an_index_out_of_range_is_an_error_whichever_device_has_it(devices, seed):
    mesh = mtf.Mesh("x:2;y:2", "member:x+y", devices=devices)

    @mtf.function(mesh=mesh, ids="member;batch", tables="member;v;e")
    def rows(ids, tables):
        return mtf.map(lambda a: mtf.gather(a[1], a[0], "v"), (ids, tables), "member")

    rng = np.random.default_rng(seed)
    ids, tables = rng.integers(0, 5, (8, 3)), rng.normal(size=(8, 5, 2))
    expected = np.take_along_axis(tables, ids[..., np.newaxis], 1)
    np.testing.assert_array_equal(rows(ids, tables).numpy(), expected)
    ids[rng.integers(8), 1] = 5
    with pytest.raises(mtf.IndexRangeError, match=r"5 is not in \[0, 5\)"):
        rows(ids, tables).numpy()


def test_the_search_divides_entries():
    def build(mesh):
        normal = mtf.layers.initializers.normal(0.1)
        w = mtf.Variable(mesh, "member:16;d:256;e:512", normal, "w")

        def loss_of(x, w):
            return mtf.reduce_mean(mtf.square(mtf.einsum([x, w], "batch;e")))

        @mtf.function(mesh=mesh, x="batch;d")
        def step(x):
            losses = mtf.map(lambda w: loss_of(x, w), w.tensor(), "member")
            (gradient,) = mtf.gradients([mtf.reduce_sum(losses)], [w])
            w.assign(w - 0.1 * gradient)
            return losses

        return step

    x = np.ones((64, 256), "float32")
    result = mtf.search(build, x, devices=8, hardware="h100")
    best = result.best[0]
    assert (best.axes, best.layout) == ("member:8", "member:member")
    assert best.seconds == pytest.approx(best.estimated, rel=0.02)


@pytest.mark.parametrize(
    "layout, program, note",
    [
        ("member:x", in_branches, "x does not.*mtf.cond or mtf.while_loop"),
        ("member:nine+x", ensemble, "^x does not.*would run 1 with and without it"),
        ("member:x+nine+two", ensemble, "^two does not.*would run 1 with and"),
        ("member:x;k:x", in_a_loop, "^x does not.*over k.*around it"),
    ],
)
def test_a_note_says_which_axes_do_not_divide(layout, program, note, seed):
    mesh = mtf.Mesh("x:2;two:2;three:3;nine:9", layout, devices="abstract")
    names = ("member;batch;d", "member;d;e", "e")
    pairs = zip(numbers(seed), names, strict=True)
    args = [mtf.asarray(mesh, array, dims) for array, dims in pairs]
    forecast = mtf.explain(mtf.function(program), *args)
    assert any(re.search(note, text) for text in forecast.notes), forecast.notes
    assert all("test_sharded_loops.py" in x for x in forecast.notes if "loop" in x)


def test_mistakes_are_errors_of_the_user_s_line():
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, "member:2;d:3")
    with pytest.raises(mtf.ShapeError, match="lack"):
        mtf.map(lambda x: x, x, "other")
    with pytest.raises(mtf.ShapeError, match='stacks along "member"'):
        mtf.function(lambda x: mtf.map(lambda row: x, x, "member"))(x)
    with pytest.raises(mtf.ArgumentError, match="fn"):
        mtf.map(3, x, "member")
