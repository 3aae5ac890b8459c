"""Loops and branches: the numbers of Python's own, on one device, in every layout and
runtime.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.testing.conformance.exported_suite import run_exported

LAYOUTS = [
    "",
    "batch:x",
    "batch:x;d:y",
    "batch:y;e:x",
    "d:x",
    "e:x;layers:y",
    "batch:x;layers:y",
]


def numbers(seed):
    """Returns x[batch, d], w[layers, d, e], b[e]."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(4, 8)).astype("float32"),
        (rng.normal(size=(6, 8, 8)) * 0.3).astype("float32"),
        rng.normal(size=8).astype("float32"),
    )


def stack_of_layers(x, w, b, reverse=False, again=False):
    """A deep network: loss, last state, what is stacked, and gradients."""

    def layer(h, w):
        y = mtf.tanh(mtf.einsum([h, w], "batch;e") + b)
        return mtf.rename(y, "e", "d"), mtf.reduce_sum(y, "e")

    h, sums = mtf.scan(
        mtf.recompute(layer) if again else layer, x, w, "layers", reverse=reverse
    )
    loss = mtf.reduce_sum(h * h) + mtf.reduce_sum(mtf.sin(sums))
    return [loss, h, sums, *mtf.gradients([loss], [x, w, b])]


def recurrent(x, w, b):
    """A pair as state, rows of two kinds, a matrix that every turn uses, and a state
    left alone.
    """

    def cell(state, row):
        (h, count), (first, number) = state, row
        h = (
            mtf.sigmoid(mtf.rename(mtf.einsum([h, first], "batch;e") + b, "e", "d"))
            + h * number
        )
        return (h, count + 1), {"h": h, "number": number}

    start = (x, mtf.zeros(x.mesh, "", "int32"))
    weights = mtf.rename(w, "layers", "time")
    (h, count), out = mtf.scan(
        cell, start, (weights, mtf.range(x.mesh, "time:6", "float32")), "time"
    )
    loss = mtf.reduce_mean(out["h"] * out["h"]) + mtf.reduce_sum(out["number"])
    return [loss, h, count, out["h"], *mtf.gradients([loss], [x, w, b])]


def shared_weight(x, w, b):
    """One weight in all turns, nothing stacked, no rows; and a scan within a scan."""
    (first, *_) = mtf.unstack(w, "layers")

    def outer(h, row):
        def inner(h, _):
            return mtf.rename(
                mtf.tanh(mtf.einsum([h, first], "batch;e") * row), "e", "d"
            ), None

        h, _ = mtf.scan(inner, h, length=2)
        return h + mtf.rename(b, "e", "d"), h

    h, seen = mtf.scan(outer, x, mtf.range(x.mesh, "time:3", "float32"), "time")
    loss = mtf.reduce_sum(h) + mtf.reduce_sum(seen * seen)
    return [loss, h, *mtf.gradients([loss], [x, w, b])]


def twice(x, w, b):
    """Gradients of gradients."""

    def layer(h, w):
        return mtf.rename(mtf.tanh(mtf.einsum([h, w], "batch;e") + b), "e", "d"), None

    h, _ = mtf.scan(layer, x, w, "layers")
    (dx,) = mtf.gradients([mtf.reduce_sum(h * h)], [x])
    return [dx, *mtf.gradients([mtf.reduce_sum(dx * dx)], [x, w, b])]


def branches(x, w, b):
    """Both ways of a cond, with tensors that one, the other or both use."""
    (first, *_) = mtf.unstack(w, "layers")

    def product():
        return mtf.rename(mtf.einsum([x, first], "batch;e"), "e", "d"), mtf.reduce_sum(
            x
        )

    def plain():
        return mtf.sin(x) + mtf.rename(b, "e", "d"), mtf.reduce_max(x)

    out = []
    for predicate in (mtf.reduce_sum(b) < 1e6, mtf.reduce_sum(b) > 1e6):
        y, s = mtf.cond(predicate, product, plain)
        loss = mtf.reduce_sum(y * y) * s + mtf.reduce_sum(w * w) + mtf.reduce_sum(b * b)
        out += [loss, y, *mtf.gradients([loss], [x, w, b])]
    return out


def until(x, w, b):
    """A while loop whose end depends on the numbers, with a branch in its body."""

    def halve(x, n):
        return mtf.cond(mtf.reduce_sum(x) > 0, lambda: x * 0.5, lambda: x * 0.25), n + 1

    x, n = mtf.while_loop(
        lambda x, n: mtf.reduce_max(mtf.abs(x)) > 0.1,
        halve,
        (x, mtf.zeros(x.mesh, "", "int32")),
    )
    return [x, n, mtf.reduce_sum(x) + mtf.reduce_sum(b)]


def noisy(x, w, b):
    """Random numbers, others in each turn."""

    def layer(h, w):
        h = mtf.dropout(mtf.einsum([h, w], "batch;e") + b, 0.4)
        return mtf.rename(h, "e", "d"), h

    with mtf.seed(3):
        h, hs = mtf.scan(layer, x, w, "layers")
    loss = mtf.reduce_sum(h * h)
    return [loss, hs, *mtf.gradients([loss], [x, w, b])]


def downwards(x, w, b):
    return stack_of_layers(x, w, b, reverse=True)


def again(x, w, b):
    return stack_of_layers(x, w, b, again=True)


PROGRAMS = [
    stack_of_layers,
    downwards,
    again,
    recurrent,
    shared_weight,
    twice,
    branches,
    until,
    noisy,
]


def tensors(layout, seed, **kwargs):
    mesh = mtf.Mesh("x:2;y:2", layout=layout, **kwargs)
    return [
        mtf.asarray(mesh, array, names)
        for array, names in zip(numbers(seed), ("batch;d", "layers;d;e", "e"))
    ]


@pytest.mark.sampled(20, each="program layout")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_loop_computes_what_python_would(program, layout, seed):
    want = [
        y.numpy() for y in program(*tensors("", seed))
    ]  # eager: op by op, in Python's loops
    got = mtf.function(program)(*tensors(layout, seed))
    for i, (y, expected) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(y.numpy(), expected, 2e-4, 2e-5, err_msg=str(i))


@pytest.mark.sampled(5, each="program how")
@pytest.mark.parametrize(
    "program", [stack_of_layers, until, branches], ids=lambda p: p.__name__
)
@pytest.mark.parametrize("how", ["eager", "separate", "jit"])
def test_a_loop_runs_everywhere(program, how, seed):
    want = [y.numpy() for y in program(*tensors("", seed))]
    args = tensors(
        "batch:x;d:y", seed, **({"devices": "separate:4"} if how == "separate" else {})
    )
    got = (program if how == "eager" else mtf.function(program, jit=how == "jit"))(
        *args
    )
    for y, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(y.numpy(), expected, 2e-4, 2e-5)


@pytest.mark.parametrize(
    "program", [recurrent, until, branches, again], ids=lambda p: p.__name__
)
def test_a_loop_is_exported(program, seed):
    want = [y.numpy() for y in program(*tensors("", seed))]
    args = tensors("batch:x;d:y", seed)
    for y, expected in zip(run_exported(program, args), want, strict=True):
        np.testing.assert_allclose(y.numpy(), expected, 2e-4, 2e-5)


def test_what_no_turn_changes_is_done_once():
    mesh = mtf.Mesh("x:2", layout="batch:x", variable_layout="d:x")
    w = mtf.Variable(
        mesh, "d:8;e:8", initializer=mtf.layers.initializers.zeros, name="w"
    )

    @mtf.function(mesh=mesh, x="batch;d")
    def recur(x):
        def cell(h, _):
            return mtf.rename(
                mtf.tanh(mtf.einsum([h, w * 2.0], "batch;e")), "e", "d"
            ), None

        h, _ = mtf.scan(cell, x, length=5)
        return mtf.gradients([mtf.reduce_sum(h)], [w])[0]

    x = np.ones((64, 8), "float32")
    collectives = recur.lower(x).collectives
    assert [m for m in collectives if m.startswith("all_gather")] == [
        "all_gather over x of [d:8 e:8]"
    ] * 2
    assert [m for m in collectives if not m.startswith("all_gather")] == [
        "reduce_scatter over x of [d:8 e:8]"
    ] * 5
    assert recur(x).numpy().shape == (8, 8)


def totals(x, w, b):
    """Sums over all turns, next to a state and a stack."""

    def turn(h, row):
        y = mtf.rename(mtf.tanh(mtf.einsum([h, row], "batch;e")), "e", "d")
        return (
            y,
            {"all": mtf.reduce_sum(y), "rows": mtf.reduce_sum(y * y, "batch")},
            None,
        )

    h, sums, _ = mtf.scan_and_sum(turn, x, w, "layers")
    loss = mtf.reduce_sum(h) + sums["all"] * mtf.reduce_sum(sums["rows"])
    return [loss, sums["rows"], *mtf.gradients([loss + mtf.reduce_sum(b)], [x, w, b])]


def test_sums_are_reduced_once(seed):
    want = [y.numpy() for y in totals(*tensors("", seed))]
    for layout in LAYOUTS:
        got = mtf.function(totals)(*tensors(layout, seed))
        for y, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(y.numpy(), expected, 2e-4, 2e-5, err_msg=layout)
    collectives = (
        mtf.function(lambda *args: totals(*args)[1:2])
        .lower(*tensors("batch:x", seed))
        .collectives
    )
    assert collectives == ["all_reduce over x of [d:8]"]


def test_explain_counts_all_turns():
    report = mtf.explain(stack_of_layers, *tensors("batch:x;d:y", 0))
    layers = [op for op in report.ops if op.title == "einsum"]
    assert {op.times for op in layers} == {6}
    assert report.bytes_moved("all_gather") == 6 * 4 * 8
    assert report.flops() == sum(op.flops * op.times for op in report.ops)
    assert " x 6" in str(report)
    (note,) = [
        n for n in mtf.explain(until, *tensors("", 0)).notes if "iterations" in n
    ]
    assert "mtf.while_loop, " in note


def refused(fn, *said):
    """Expects that fn is refused, recorded and eagerly, and that the error says all of
    it.
    """
    x, w, b = tensors("batch:x", 0)
    for run in (fn, mtf.function(fn)):
        with pytest.raises(mtf.MeshtfError) as caught:
            run(x, w, b)
        assert all(text in str(caught.value) for text in (*said, "test_scan.py:")), (
            caught.value
        )


def test_bad_loops_are_refused():
    def widens(h, w):
        return mtf.einsum([h, w], "batch;e"), None

    refused(
        lambda x, w, b: mtf.scan(widens, x, w, "layers"),
        "[batch:4 d:8]",
        "[batch:4 e:8]",
        "before",
        "after",
    )
    refused(
        lambda x, w, b: mtf.scan(
            lambda h, _: (mtf.cast(h, "bfloat16"), None), x, length=2
        ),
        "float32 is not bfloat16",
        'mtf.cast(x, "float32")',
    )
    refused(
        lambda x, w, b: mtf.scan(lambda h, _: h, x, length=2),
        "two values",
        "(carry, None)",
    )
    refused(
        lambda x, w, b: mtf.scan(lambda h, _: ((h, h), None), x, length=2), "('*', '*')"
    )


def test_loops_without_a_length_or_with_two_are_refused():
    refused(
        lambda x, w, b: mtf.scan(lambda h, _: (h, None), x),
        "number of iterations",
        "length=",
    )
    refused(
        lambda x, w, b: mtf.scan(lambda h, r: (h, None), x, w, "layer"),
        '"layer"',
        '"layers"',
    )
    refused(
        lambda x, w, b: mtf.scan(lambda h, r: (h, None), x, w, "layers", length=3),
        "[3, 6]",
    )
    refused(
        lambda x, w, b: mtf.scan(lambda h, r: (h, None), (x, 1.0), w, "layers"), "float"
    )
    refused(
        lambda x, w, b: mtf.while_loop(lambda x: x > 1, lambda x: x, x),
        "one boolean",
    )
    refused(
        lambda x, w, b: mtf.while_loop(mtf.reduce_sum, lambda x: x, x),
        "float32",
        "x > 0",
    )
    refused(lambda x, w, b: mtf.cond(b, lambda: x, lambda: x), "mtf.reduce_any")


def test_what_a_program_alone_refuses():
    x, w, b = tensors("batch:x", 0)
    total = mtf.Variable(
        x.mesh, "", initializer=mtf.layers.initializers.zeros, name="total"
    )

    def program(fn):
        with pytest.raises(mtf.MeshtfError) as caught:
            mtf.function(fn)(x, w, b)
        assert "test_scan.py:" in str(caught.value)
        return str(caught.value)

    def writes(h, _):
        total.assign(mtf.reduce_sum(h))
        return h, None

    assert "effect" in program(lambda x, w, b: mtf.scan(writes, x, length=2)[0])
    assert "the two branches" in program(
        lambda x, w, b: mtf.cond(mtf.reduce_sum(x) > 0, lambda: x, lambda: b)
    )
    turned = "a while loop has no gradient"
    assert turned in program(
        lambda x, w, b: mtf.gradients(
            [mtf.while_loop(lambda x: mtf.reduce_sum(x) > 0, lambda x: x - 1, x)], [x]
        )[0]
    )
    assert "stacks along" in program(
        lambda x, w, b: mtf.scan(lambda h, _: (h, h), x, length=2, dim="d")[1]
    )


def test_a_loop_must_know_its_mesh():
    @mtf.function(x="b")
    def program(x):
        return mtf.scan(lambda h, _: (h, None), x, length=2)[0]

    with pytest.raises(mtf.PlanError, match="mtf.function\\(mesh=mesh"):
        program(np.ones(4, "float32"))
