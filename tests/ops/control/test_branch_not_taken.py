"""What depends on the branch of a cond that is not taken has a gradient of zeros, in
both modes.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers
from tests.support.refusals import refuses


def variables(mesh, number=3):
    return [
        mtf.Variable(mesh, "d:4", initializers.ones, name=f"v{i}")
        for i in range(number)
    ]


def value(dx):
    return None if dx is None else dx.numpy()


def both(mesh, function, *arrays):
    """What a function returns, eager and recorded; they must agree about None."""
    args = [
        mtf.asarray(mesh, np.asarray(a, "float32"), "d" if np.ndim(a) else "")
        for a in arrays
    ]
    eager = [value(dx) for dx in function(*args)]
    recorded = [value(dx) for dx in mtf.function(function, mesh=mesh)(*args)]
    for a, b in zip(eager, recorded, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, 1e-6)
    return eager


@pytest.mark.parametrize("axes, layout", [("", ""), ("data:2;model:2", "d:data")])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradients(axes, layout, sign):
    mesh = mtf.Mesh(axes, layout)
    v, w, u = variables(mesh)

    def grads(x):
        y = mtf.cond(mtf.reduce_sum(x) > 0, lambda: x * v * v, lambda: x * w)
        return mtf.gradients([y], [v, w, u, x])

    dv, dw, du, dx = both(mesh, grads, np.full(4, sign))
    np.testing.assert_array_equal(dv, 2.0 if sign > 0 else 0.0)
    np.testing.assert_array_equal(dw, 0.0 if sign > 0 else -1.0)
    assert du is None
    np.testing.assert_array_equal(dx, 1.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_neither_branch_has_a_gradient_by(sign):
    mesh = mtf.Mesh("")
    v, w, u = variables(mesh)

    def grads(x):
        y = mtf.cond(
            mtf.reduce_sum(x) > 0,
            lambda: x * mtf.stop_gradient(v) * w,
            lambda: x * mtf.stop_gradient(u),
        )
        return mtf.gradients([y], [v, w, u])

    dv, dw, du = both(mesh, grads, np.full(4, sign))
    assert dv is None and du is None
    np.testing.assert_array_equal(dw, 1.0 if sign > 0 else 0.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_second_gradients(sign):
    mesh = mtf.Mesh("")
    v, w, _ = variables(mesh)

    def grads(x):
        y = mtf.cond(mtf.reduce_sum(x) > 0, lambda: x * v * v * v, lambda: x * w * w)
        dv, dw = mtf.gradients([y], [v, w])
        return [*mtf.gradients([dv], [v, w, x]), *mtf.gradients([dw], [v, w, x])]

    found = both(mesh, grads, np.full(4, sign))
    np.testing.assert_array_equal(found[0], 6.0 if sign > 0 else 0.0)
    assert found[1] is None and found[3] is None
    np.testing.assert_array_equal(found[4], 0.0 if sign > 0 else -2.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_branches_within_branches_loops_and_layers(sign):
    mesh = mtf.Mesh("data:2", "d:data")
    v, w, u = variables(mesh)

    class Layer(mtf.Module):
        def __init__(self):
            super().__init__("layer")
            self.a, self.b = (
                mtf.Variable(mesh, "d:4", initializers.ones, name=n) for n in "ab"
            )

        def __call__(self, x):
            return mtf.cond(
                mtf.reduce_sum(x) > 0, lambda: x * self.a, lambda: x * self.b
            )

    repeat = mtf.layers.Repeat(Layer, "layers:2")

    def grads(x):
        def branches(h):
            return mtf.cond(
                mtf.reduce_sum(h) > 0,
                lambda: h * v,
                lambda: mtf.cond(
                    mtf.reduce_sum(h) < -100, lambda: h * w, lambda: h * u
                ),
            )

        y = mtf.scan(lambda h, _: (branches(h), None), repeat(x), length=2)[0]
        return mtf.gradients([y], [v, w, u, *repeat.variables])

    found = both(mesh, grads, np.full(4, sign))
    np.testing.assert_array_equal(found[1], 0.0)
    np.testing.assert_array_equal(found[0], 2.0 if sign > 0 else 0.0)
    assert all(dx is not None for dx in found)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_optimizers_take_both_modes_alike(sign):
    """A gradient of zeros still decays, and moves by momentum; None would leave a
    variable alone.
    """
    after = []
    for recorded in (False, True):
        mesh = mtf.Mesh("")
        v, w, _ = variables(mesh)
        optimizer = optimizers.AdamW([v, w], 0.1, weight_decay=0.5)

        def step(x, number, v=v, w=w, optimizer=optimizer):
            y = mtf.cond(mtf.reduce_sum(x) > 0, lambda: x * v, lambda: x * w)
            optimizer.apply_gradients(
                mtf.gradients([mtf.reduce_sum(y)], [v, w]), [v, w], number
            )

        run = mtf.function(step, mesh=mesh) if recorded else step
        for i, s in enumerate((sign, -sign, sign)):
            run(
                mtf.asarray(mesh, np.full(4, s, "float32"), "d"),
                mtf.asarray(mesh, np.int32(i), ""),
            )
        after.append([v.numpy(), w.numpy()])
    np.testing.assert_allclose(after[0], after[1], 1e-6)


def test_branches_must_return_alike_in_both_modes():
    mesh = mtf.Mesh("")
    v, w, _ = variables(mesh)

    def run():
        x = v.tensor()
        return mtf.cond(mtf.reduce_sum(x) > 0, lambda: x, lambda: mtf.reduce_sum(w * x))

    for function in (run, mtf.function(run, mesh=mesh)):
        with refuses(mtf.ShapeError, "the two branches of a cond differ"):
            function()


def test_only_the_branch_that_is_taken_runs():
    mesh = mtf.Mesh("")
    v, w, _ = variables(mesh)
    x = v.tensor()

    def other():
        w.assign(x * 5.0)
        return w * 1.0

    mtf.cond(mtf.reduce_sum(x) > 0, lambda: x, other)
    np.testing.assert_array_equal(w.numpy(), 1.0)


def test_a_branch_that_asks_for_elements_is_left_alone_outside_of_functions():
    mesh = mtf.Mesh("")
    x = mtf.ones(mesh, "d:2")

    def then():
        return x * float(mtf.reduce_sum(x * 2.0).numpy())

    assert mtf.cond(mtf.reduce_sum(x) > 3.0, then, lambda: x).numpy().tolist() == [
        1.0,
        1.0,
    ]
    assert mtf.cond(mtf.reduce_sum(x) > 1.0, then, lambda: x).numpy().tolist() == [
        4.0,
        4.0,
    ]
    with pytest.raises(mtf.PlanError, match="has no value yet"):
        mtf.function(
            lambda: mtf.cond(mtf.reduce_sum(x) > 1.0, then, lambda: x), mesh=mesh
        )()
