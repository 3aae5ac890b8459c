"""Gradients by the library's own rules: what is connected, what adds up, what stays
legal.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np
import pytest

import meshtf as mtf

# A layout has rules for more than one small function uses.
pytestmark = pytest.mark.filterwarnings("ignore::meshtf.errors.LayoutWarning")


@pytest.fixture(
    params=[("", ""), ("data:2;model:2", "batch:data;d:model")],
    ids=["one device", "four positions"],
)
def mesh(request):
    return mtf.Mesh(*request.param)


def vector(mesh, *values):
    return mtf.asarray(mesh, np.array(values, "float32"), "d")


def test_cotangents_of_all_uses_add_up(mesh):
    x = vector(mesh, 1, 2)
    (dx,) = mtf.gradients([x * x + x, 3.0 * x], [x])
    assert dx.numpy().tolist() == [2 + 1 + 3, 4 + 1 + 3]


def test_unconnected_is_none(mesh):
    x = vector(mesh, 1, 2)
    other = vector(mesh, 3, 4)
    dx, none, stopped = mtf.gradients(
        [x * mtf.stop_gradient(other)], [x, vector(mesh, 5, 6), other]
    )
    assert dx.numpy().tolist() == [3, 4] and none is None and stopped is None


@pytest.mark.parametrize(
    "run", [lambda fn: fn, mtf.function], ids=["eager", "function"]
)
def test_no_gradient_goes_through_integers(mesh, run):
    def step(x):
        limit = mtf.cast(mtf.reduce_sum(x), "int32")
        total, _ = mtf.while_loop(
            lambda y, k: k < limit,
            lambda y, k: (y * 2.0, k + 1),
            (mtf.ones(mesh, "d:2"), limit * 0),
        )
        return [total, *mtf.gradients([total * x], [x])]

    total, dx = run(step)(vector(mesh, 1, 2))
    assert total.numpy().tolist() == dx.numpy().tolist() == [8, 8]


def test_of_itself_and_of_something_in_between(mesh):
    x = vector(mesh, 1, 2)
    y = mtf.exp(x)
    dy, dx = mtf.gradients([y * y], [y, x])
    np.testing.assert_allclose(dy.numpy(), 2 * np.exp([1, 2]), rtol=1e-6)
    np.testing.assert_allclose(dx.numpy(), 2 * np.exp([2, 4]), rtol=1e-6)
    assert mtf.gradients([x], [x])[0].numpy().tolist() == [1, 1]


def test_given_cotangents(mesh):
    x = vector(mesh, 1, 2)
    (dx,) = mtf.gradients([x * 2.0, x * 3.0], [x], grad_ys=[vector(mesh, 10, 20), None])
    assert dx.numpy().tolist() == [23, 43]


def test_of_variables_by_all_their_reads(mesh):
    v = mtf.Variable(mesh, "d:2", lambda mesh, s, name: mtf.ones(mesh, s), "v")

    def f():
        y = mtf.reduce_sum(v * 2.0 + v * v)
        return mtf.gradients([y], [v])[0]

    assert f().numpy().tolist() == [4, 4]
    assert mtf.function(f, mesh=mesh)().numpy().tolist() == [4, 4]


def test_of_broadcast_inputs_are_sums(mesh):
    x = mtf.ones(mesh, "batch:4;d:2")
    b = vector(mesh, 1, 2)
    (db,) = mtf.gradients([x * b], [b])
    assert db.shape == b.shape and db.numpy().tolist() == [4, 4]


def test_second_order(mesh):
    x = vector(mesh, 2, 3)
    (first_gradient,) = mtf.gradients([x * x * x], [x])
    assert mtf.gradients([first_gradient], [x])[0].numpy().tolist() == [12, 18]


def test_an_op_without_a_gradient(mesh):
    class Double(mtf.graph.Op):
        def output_specs(self, x):
            return (x,)

        def local(self, context, x):
            return (x * 2,)

    x = vector(mesh, 1, 2)
    y = mtf.graph.apply(Double(), x)
    with pytest.raises(
        mtf.PlanError,
        match=r"(?s)double has no gradient.*test_gradients\.py:\d+.*"
        r"\[d:2\].*mtf\.stop_gradient",
    ):
        mtf.gradients([y], [x])


def test_gradients_of_sharded_variables_are_sharded_as_they_are():
    mesh = mtf.Mesh("data:2", "batch:data", variable_layout="d:data")
    w = mtf.Variable(
        mesh, "d:4;e:3", lambda mesh, shape, name: mtf.ones(mesh, shape), "w"
    )
    x = mtf.asarray(mesh, np.ones((4, 4), "float32"), "batch;d")

    def gradient(x):
        return mtf.gradients(
            [mtf.reduce_sum(mtf.square(mtf.einsum([x, w], "batch;e")))], [w]
        )[0]

    for dw in (gradient(x), mtf.function(gradient)(x)):
        assert dw.sharded_value.placement == w.placement != mesh.replicated
        np.testing.assert_array_equal(dw.numpy(), np.full((4, 3), 32))


def test_cotangents_lie_where_their_primals_lie():
    mesh = mtf.Mesh("data:2;model:2", "batch:data;d:model")
    x = mtf.asarray(mesh, np.ones((4, 2), "float32"), "batch;d")
    w = vector(mesh, 1, 2)
    dx, dw = mtf.gradients([mtf.reduce_sum(mtf.einsum([x, w], "batch"))], [x, w])
    assert dx.sharded_value.placement == x.sharded_value.placement
    assert mtf.function(lambda x, w: mtf.gradients([x * w], [w])[0])(
        x, w
    ).sharded_value.placement == (w.sharded_value.placement)
    np.testing.assert_array_equal(dw.numpy(), [4, 4])


@pytest.mark.parametrize("layout", ["", "d:x", "e:x"])
@pytest.mark.parametrize(
    "name",
    ["relu", "gelu", "softmax", "log_softmax", "layer_norm", "math.cumprod", "clip"],
)
def test_cotangents_in_another_order_of_dimensions(name, layout, rng):
    mesh = mtf.Mesh("x:2", layout)
    x, dy = (
        mtf.asarray(mesh, rng.normal(size=(4, 4)).astype("float32"), "d;e")
        for _ in range(2)
    )
    extra_args = {"relu": (), "gelu": (), "clip": (-0.5, 0.5)}.get(name, ("d",))

    def gradient(dy):
        y = attrgetter(name)(mtf)(x, *extra_args)
        return mtf.gradients([y], [x], [dy])[0]

    for function in (gradient, mtf.function(gradient, mesh=mesh)):
        expected = function(dy)
        dx = function(mtf.transpose(dy, "e;d"))
        assert dx.shape == x.shape
        np.testing.assert_allclose(dx.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_cotangent_of_other_dimensions_is_refused(mesh):
    x = mtf.ones(mesh, "batch:4;d:2")
    with pytest.raises(
        mtf.ShapeError, match="a cotangent has the dimensions of its tensor"
    ):
        mtf.gradients([x * 2.0], [x], [mtf.ones(mesh, "batch:4")])
