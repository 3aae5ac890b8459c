"""Loops of no iteration, carries in another order, while loops and branches: both modes
agree.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.fuzz.exporting import run_module

LAYOUTS = ["", "batch:x", "batch:x;d:y", "t:x", "t:y;batch:x", "d:x"]


def arrays(seed):
    """Returns x[batch, t, d], h[batch, d]."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=sizes) * 0.5).astype("float32")
        for sizes in ((4, 6, 8), (4, 8))
    ]


def tensors(layout, seed, **kwargs):
    mesh = mtf.Mesh("x:2;y:2", layout=layout, **kwargs)
    return [
        mtf.asarray(mesh, a, n) for a, n in zip(arrays(seed), ("batch;t;d", "batch;d"))
    ]


def compare(got, want, message=""):
    for i, (y, number) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(
            y.numpy(), number, 2e-4, 2e-4, err_msg=f"{message}: {i}"
        )


def no_iteration(x, h):
    """Nothing is walked along: states stay, sums are zeros, stacks are empty."""

    def body(state, _):
        h, n = state
        return (h * 2.0, n + 1), {"sum": h + 1.0}, (h, n)

    start = h, mtf.full(h.mesh, "", 7, "int32")
    (last, n), sums, (hs, ns) = mtf.scan_and_sum(body, start, length=0, dim="t")
    loss = (
        mtf.reduce_sum(last * last) + mtf.reduce_sum(sums["sum"]) + mtf.reduce_sum(hs)
    )
    return [last, n, sums["sum"], hs, ns, *mtf.gradients([loss], [h])]


def test_a_scan_of_no_iteration(seed):
    _, h = arrays(seed)
    want = [h, 7, np.zeros_like(h), np.zeros((0, 4, 8)), np.zeros(0), 2 * h]
    for layout in LAYOUTS:
        for run in (no_iteration, mtf.function(no_iteration)):
            got = run(*tensors(layout, seed))
            assert [y.shape.names for y in got[3:5]] == [("t", "batch", "d"), ("t",)]
            assert got[4].dtype == "int32"
            compare(got, want, layout)


def test_a_scan_of_no_iteration_in_an_exported_module(seed):
    _, h = arrays(seed)
    xs = tensors("batch:x", seed)
    got = run_module(no_iteration, xs[0].mesh, xs)
    compare(got, [h, 7, np.zeros_like(h), np.zeros((0, 4, 8)), np.zeros(0), 2 * h])


def test_rows_of_no_entry(seed):
    def run(x, h):
        none = mtf.slice(x, "t", 0, 0)
        h, seen = mtf.scan(lambda h, row: (h + row, h * row), h, none, "t")
        return [h, seen]

    _, h = arrays(seed)
    for call in (run, mtf.function(run)):
        compare(call(*tensors("batch:x", seed)), [h, np.zeros((0, 4, 8))])


def test_branches_may_have_noise_of_one_path(seed):
    """Only one branch runs, so both may draw from one path; then they draw the same
    numbers.
    """

    def run(x, h):
        out = []
        for k, predicate in enumerate(
            (mtf.reduce_sum(h) < 1e6, mtf.reduce_sum(h) > 1e6)
        ):
            with mtf.seed(3, k):
                y = mtf.cond(
                    predicate,
                    lambda: mtf.dropout(h, 0.5),
                    lambda: mtf.dropout(h, 0.5) * 3.0,
                )
                z = mtf.dropout(h, 0.5, name="after")
            out += [y, z, *mtf.gradients([mtf.reduce_sum(y)], [h])]
        return out

    want = [y.numpy() for y in run(*tensors("", seed))]
    _, h = arrays(seed)
    np.testing.assert_allclose(want[0], h * want[2], 1e-6)
    np.testing.assert_allclose(want[3], h * want[5], 1e-6)
    assert {*want[2].flatten()} == {0, 2} and {*want[5].flatten()} == {0, 6}
    for layout in LAYOUTS:
        for y, number in zip(
            mtf.function(run)(*tensors(layout, seed)), want, strict=True
        ):
            np.testing.assert_allclose(y.numpy(), number, 1e-6, err_msg=layout)


def test_an_op_of_a_branchs_path_after_it_is_refused(seed):
    def run(x, h):
        with mtf.seed(3):
            y = mtf.cond(
                mtf.reduce_sum(h) < 1e6, lambda: mtf.dropout(h, 0.5), lambda: h
            )
            return mtf.dropout(y, 0.5)

    for call in (run, mtf.function(run)):
        with pytest.raises(mtf.PlanError, match="two random ops are called 'dropout'"):
            call(*tensors("", seed))


@pytest.mark.parametrize("iterations", [0, 3])
def test_a_while_loop_has_no_gradient_in_either_mode(iterations, seed):
    def run(x, h, shielded=False):
        zero = mtf.zeros(h.mesh, "", "int32")
        y, _ = mtf.while_loop(
            lambda h, n: n < iterations, lambda h, n: (mtf.sin(h), n + 1), (h, zero)
        )
        y = mtf.stop_gradient(y) if shielded else y
        return mtf.gradients([mtf.reduce_sum(y * h)], [h])

    for call in (run, mtf.function(run)):
        with pytest.raises(
            mtf.PlanError, match="a while loop has no gradient"
        ) as caught:
            call(*tensors("batch:x", seed))
        assert "mtf.while_loop, " in str(caught.value) and "test_loop_cases.py:" in str(
            caught.value
        )
        assert "mtf.scan" in str(caught.value)
        (dh,) = call(*tensors("batch:x", seed), shielded=True)
        y = arrays(seed)[1]
        for _ in range(iterations):
            y = np.sin(y)
        np.testing.assert_allclose(dh.numpy(), y, 1e-5)


def test_a_carry_may_come_back_in_another_order(seed):
    def run(x, h):
        def body(state, row):
            turned = mtf.transpose(state["h"] + row, "d;batch")
            return {"h": mtf.sin(turned)}, turned

        last, seen = mtf.scan(body, {"h": h}, x, "t")
        low = mtf.while_loop(
            lambda h: mtf.reduce_max(h) > 0.1,
            lambda h: mtf.transpose(h * 0.5, "d;batch"),
            last["h"],
        )
        return [last["h"], seen, low]

    x, h = arrays(seed)
    state, rows = h, []
    for k in range(6):
        rows.append((state + x[:, k]).T)
        state = np.sin(state + x[:, k])
    low = state
    while low.max() > 0.1:
        low = low * np.float32(0.5)
    for call in (run, mtf.function(run)):
        for layout in LAYOUTS:
            got = call(*tensors(layout, seed))
            assert [y.shape.names for y in got] == [
                ("batch", "d"),
                ("t", "d", "batch"),
                ("batch", "d"),
            ]
            compare(got, [state, np.stack(rows), low], layout)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "run", [lambda fn: fn, mtf.function], ids=["eager", "function"]
)
def test_sums_of_half_floats_are_added_up_in_float32(run, dtype):
    def step(ones):
        _, (total, none), _ = mtf.scan_and_sum(
            lambda h, row: (h, (row, None), None), None, ones, "t"
        )
        assert none is None
        return [total, *mtf.gradients([total], [ones])]

    for layout in ("", "batch:x", "t:x"):
        ones = mtf.ones(mtf.Mesh("x:2;y:2", layout), "t:520;batch:2", dtype)
        total, dx = run(step)(ones)
        assert total.dtype == dx.dtype == dtype
        near = 520
        assert (
            total.numpy().tolist() == [near] * 2
            and dx.numpy().min() == dx.numpy().max() == 1
        )


@pytest.mark.parametrize(
    "run", [lambda fn: fn, mtf.function], ids=["eager", "function"]
)
@pytest.mark.parametrize("iterations", [0, 3])
def test_a_first_carry_that_no_iteration_reads_has_no_gradient(run, iterations):
    mesh = mtf.Mesh("")
    h = mtf.ones(mesh, "d:2")
    x = mtf.ones(mesh, "d:2")

    def step(h, x):
        y, _ = mtf.scan(lambda h, _: (x * 2.0, None), h, length=iterations)
        return mtf.gradients([mtf.reduce_sum(y)], [h, x])

    dh, dx = run(step)(h, x)
    if iterations:
        assert dh is None and dx.numpy().tolist() == [2.0, 2.0]
    else:
        assert dh.numpy().tolist() == [1.0, 1.0]
        assert dx is None or not dx.numpy().any()


@pytest.mark.parametrize("needed", [False, True])
def test_no_cotangent_is_summed_that_no_gradient_needs(needed):
    """The gradient of x, which all iterations read, is a sum over e, which x:2 shards."""
    mesh = mtf.Mesh("x:2", "e:x")
    x = mtf.zeros(mesh, "batch:4;d:3")
    w = mtf.zeros(mesh, "layers:5;d:3;e:4")

    @mtf.function(mesh=mesh)
    def step(x, w):
        def body(total, w):
            return total + mtf.reduce_sum(mtf.tanh(mtf.einsum([x, w], "batch;e"))), None

        loss, _ = mtf.scan(body, mtf.zeros(mesh, ""), w, "layers")
        return mtf.gradients([loss], [w, x] if needed else [w])

    sums = [c for c in step.lower(x, w).collectives if "[batch:4 d:3]" in c]
    assert len(sums) == needed
