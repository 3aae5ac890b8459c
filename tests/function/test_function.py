"""mtf.function: when it is traced, its arguments and results, and that a call gives the
same as the code.
"""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

# A layout has rules for more than one small function uses.
pytestmark = pytest.mark.filterwarnings("ignore::meshtf.errors.LayoutWarning")


def zeros(mesh, shape, name):
    """An initializer."""
    return mtf.zeros(mesh, shape)


@pytest.fixture(
    params=[("", ""), ("data:2;model:2", "batch:data;d:model")],
    ids=["one device", "four positions"],
)
def mesh(request):
    return mtf.Mesh(*request.param)


def array(*sizes):
    return np.arange(np.prod(sizes), dtype="float32").reshape(sizes)


# When it is traced


def test_equal_shapes_are_traced_once(mesh):
    bodies = []

    @mtf.function(mesh=mesh, x="batch;d")
    def f(x):
        bodies.append(1)
        return x * 2.0

    for k in range(3):
        np.testing.assert_array_equal(f(array(4, 2) + k).numpy(), 2 * (array(4, 2) + k))
    assert (f.traces, len(bodies)) == (1, 1)
    f(array(6, 2))
    f(tf.constant(array(4, 2)))
    assert f.traces == 2
    f(array(4, 2).astype("float64"))
    assert f.traces == 3


def test_python_values_are_part_of_the_program(mesh):
    @mtf.function(mesh=mesh, x="batch;d")
    def f(x, k, flag=True, name="a"):
        return x * k if flag else x

    x = array(2, 2)
    np.testing.assert_array_equal(f(x, 2).numpy(), 2 * x)
    np.testing.assert_array_equal(f(x, 3).numpy(), 3 * x)
    np.testing.assert_array_equal(f(x, 3, flag=True).numpy(), 3 * x)
    assert f.traces == 2
    np.testing.assert_array_equal(f(x, k=3, flag=False).numpy(), x)
    f(x, 3.0)  # equal in Python, another type
    f(x, 3, name="b")
    assert f.traces == 5


def test_python_objects_that_cannot_be_hashed():
    @dataclasses.dataclass
    class Config:
        scale: float

    mesh = mtf.Mesh("")
    f = mtf.function(lambda x, config: x * config.scale)
    x = mtf.ones(mesh, "")
    for scale in range(1, 5):
        assert float(f(x, Config(scale))) == scale
        gc.collect()  # another object may now stand where this one stood


def test_tensors_of_other_names_placement_or_mesh_have_another_trace():
    f = mtf.function(lambda x: x + 1.0)
    mesh = mtf.Mesh("data:2", "batch:data")
    for tensor in (
        mtf.ones(mesh, "batch:4"),
        mtf.zeros(mesh, "batch:4") * 3.0,
        mtf.ones(mesh, "length:4"),
        mtf.ones(mtf.Mesh("data:2", "batch:data"), "batch:4"),
    ):
        np.testing.assert_array_equal(f(tensor).numpy(), tensor.numpy() + 1)
    assert f.traces == 3


def test_a_loop_through_a_function_settles():
    mesh = mtf.Mesh("data:2;model:2", "batch:data;d:model")
    f = mtf.function(lambda x: mtf.tanh(x) + mtf.reduce_mean(x, "d"))
    x = mtf.asarray(mesh, array(4, 4), "batch;d")
    for _ in range(5):
        x = f(x)
    assert f.traces <= 2


def test_other_values_of_a_tensor_are_no_other_program(mesh):
    f = mtf.function(
        lambda x, step: mtf.cast(step, "float32") * x, mesh=mesh, x="", step=""
    )
    assert [float(f(2.0, np.int32(k))) for k in range(4)] == [0, 2, 4, 6]
    assert f.traces == 1


# What may go in and out


def test_nested_structures(mesh):
    @mtf.function
    def f(pair, options, *extra, **named):
        (x, y), deep = pair, options["deep"]
        return {
            "sum": x + y,
            "list": [deep[0] * options["k"], options["k"], None],
            "more": tuple(m * 2.0 for m in extra),
            "named": named["z"],
        }

    a = mtf.ones(mesh, "batch:2")
    b = mtf.ones(mesh, "batch:2") * 3.0
    out = f((a, b), {"deep": [a], "k": 5}, a, b, z=b)
    assert out["sum"].numpy().tolist() == [4, 4]
    assert out["list"][0].numpy().tolist() == [5, 5] and out["list"][1:] == [5, None]
    assert [m.numpy().tolist() for m in out["more"]] == [[2, 2], [6, 6]]
    assert out["named"].numpy().tolist() == [3, 3]
    f((b, a), {"deep": [b], "k": 5}, a, b, z=a)
    assert f.traces == 1
    f([b, a], {"deep": [b], "k": 5}, a, z=a)
    assert f.traces == 2


def test_an_argument_may_be_returned_and_returned_twice(mesh):
    x = mtf.ones(mesh, "batch:2;d:2")
    y, z = mtf.function(lambda x: (x, x))(x)
    assert (
        y.shape == z.shape == x.shape
        and y.numpy().tolist() == z.numpy().tolist() == [[1, 1]] * 2
    )


def test_a_named_argument_may_be_a_tensor_or_a_number_or_none(mesh):
    @mtf.function(mesh=mesh, x="batch", mask="batch")
    def f(x, mask=None):
        return x if mask is None else x * mask

    assert f(np.ones(2, "float32"), np.zeros(2, "float32")).numpy().tolist() == [0, 0]
    assert f(mtf.ones(mesh, "batch:2"), mtf.ones(mesh, "batch:2")).numpy().tolist() == [
        1,
        1,
    ]
    assert f(np.ones(2, "float32")).numpy().tolist() == [1, 1]
    assert f(np.ones(2, "float32"), None).numpy().tolist() == [1, 1]


def test_a_later_argument_may_tell_the_mesh(mesh):
    add = mtf.function(lambda x, bias: x + bias, x="batch;d")
    bias = mtf.asarray(mesh, array(2), "d")
    assert add(array(4, 2), bias).numpy().tolist() == [[0, 2], [2, 4], [4, 6], [6, 8]]
    assert add(array(3, 2), bias).numpy().tolist() == [[0, 2], [2, 4], [4, 6]]
    if mesh.size > 1:
        strict_mesh = mtf.Mesh(mesh.axes, mesh.layout, strict=True)
        with pytest.raises(mtf.LayoutError, match="argument 'x'"):
            add(array(3, 2), mtf.asarray(strict_mesh, array(2), "d"))


def test_functions_without_arguments_or_without_tensors(mesh):
    assert mtf.function(lambda: (3, None), mesh=mesh)() == (3, None)
    assert mtf.function(lambda: mtf.ones(mesh, "batch:2"))().numpy().tolist() == [1, 1]
    assert mtf.function(lambda x: None)(mtf.ones(mesh, "batch:2")) is None


def test_eager_tensors_from_around_are_captured(mesh):
    w = mtf.asarray(mesh, array(2, 2), "batch;d") + 1.0
    f = mtf.function(lambda x: mtf.reduce_sum(x * w))
    x = mtf.ones(mesh, "batch:2;d:2")
    assert [float(f(x)), float(f(x * 2.0))] == [10, 20]
    assert f.traces == 1
    partial = mtf.einsum([w, w], "batch")  # may be a partial sum
    assert float(mtf.function(lambda: mtf.reduce_sum(partial))()) == 30


def test_unfinished_sums_may_be_arguments():
    mesh = mtf.Mesh("model:2", "d:model")
    x = mtf.asarray(mesh, array(2, 4), "batch;d")
    partial = mtf.reduce_sum(x, "d")
    assert mtf.function(lambda p: mtf.exp(p * 0.0) + p)(partial).numpy().tolist() == [
        7,
        23,
    ]


# A call gives the same as the code


def test_variables_are_read_and_written_in_order(mesh):
    v = mtf.Variable(mesh, "d:2", zeros, "v")

    @mtf.function
    def f(x):
        before = v + 0.0
        v.assign(v + x)
        middle = v * 1.0
        v.assign(v * 2.0)
        return before, middle

    x = mtf.ones(mesh, "d:2")
    assert [y.numpy().tolist() for y in f(x)] == [[0, 0], [1, 1]]
    assert [y.numpy().tolist() for y in f(x)] == [[2, 2], [3, 3]]
    assert v.numpy().tolist() == [6, 6]


def test_a_returned_variable_is_its_value_at_the_end_of_each_call(mesh):
    v = mtf.Variable(mesh, "", zeros, "v")

    @mtf.function(mesh=mesh)
    def count():
        v.assign(v + 1.0)
        return v

    assert [float(count()) for _ in range(3)] == [1, 2, 3]


def test_an_update_of_one_variable_by_another_and_back(mesh):
    a, b = (mtf.Variable(mesh, "d:2", zeros, name) for name in "ab")
    b.assign(np.ones(2))

    @mtf.function(mesh=mesh)
    def swap():
        old = a.tensor()
        a.assign(b.tensor())
        b.assign(old)

    swap()
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([1, 1], [0, 0])
    swap()
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([0, 0], [1, 1])


def test_functions_within_functions_become_one_program(mesh):
    inner = mtf.function(lambda x, k: mtf.square(x) * k)

    @mtf.function
    def outer(x):
        y = inner(x, 3.0)
        return y, mtf.gradients([y], [x])[0]

    y, dx = outer(mtf.ones(mesh, "d:2") * 2.0)
    assert (y.numpy().tolist(), dx.numpy().tolist()) == ([12, 12], [12, 12])
    assert (outer.traces, inner.traces) == (1, 0)


def test_methods(mesh):
    class Scaled:
        def __init__(self, scale):
            self.scale = scale

        @mtf.function(x="batch")
        def __call__(self, x):
            return x * self.scale

        @mtf.function(mesh=mesh, x="batch")
        def named(self, x, k=1.0):
            """Its own words."""
            return x * self.scale + k

    two = Scaled(mtf.full(mesh, "", 2.0))
    three = Scaled(mtf.full(mesh, "", 3.0))
    x = np.ones(2, "float32")
    assert two.named(x).numpy().tolist() == [3, 3]
    assert three.named(x, k=2.0).numpy().tolist() == [5, 5]
    assert three(x).numpy().tolist() == [3, 3]
    two.named(x)
    assert Scaled.named.traces == 2
    assert Scaled.named.__doc__ == "Its own words." and Scaled.named.__name__ == "named"


def test_a_seed_in_force_outside_does_not_leak_in(mesh):
    @mtf.function(mesh=mesh, step="")
    def f(step):
        with mtf.seed(1, step):
            return mtf.random_uniform(mesh, "d:4")

    first = f(np.int32(0))
    again = f(np.int32(0))
    other = f(np.int32(1))
    np.testing.assert_array_equal(first.numpy(), again.numpy())
    assert (first.numpy() != other.numpy()).any() and f.traces == 1
    with mtf.seed(1), pytest.raises(mtf.PlanError, match="needs a seed"):
        mtf.function(lambda: mtf.random_uniform(mesh, "d:4"), mesh=mesh)()


def test_an_error_while_tracing_leaves_nothing_behind(mesh):
    @mtf.function(mesh=mesh, x="batch")
    def f(x, fail):
        if fail:
            raise RuntimeError("mine")
        return x + 1.0

    with pytest.raises(RuntimeError, match="mine"):
        f(np.ones(2, "float32"), True)
    assert mtf.ones(mesh, "batch:2").numpy().tolist() == [1, 1]  # eager again
    assert f(np.ones(2, "float32"), False).numpy().tolist() == [2, 2]
    assert f.traces == 1


def test_eager_and_recorded_agree_and_lower_does_not_run(mesh):
    v = mtf.Variable(mesh, "", zeros, "v")

    def step(x):
        v.assign(v + 1.0)
        return mtf.softmax(mtf.einsum([x, x], "d"), "d")

    x = mtf.asarray(mesh, array(2, 2), "batch;d")
    f = mtf.function(step)
    f.lower(x)
    assert v.numpy() == 0
    np.testing.assert_allclose(f(x).numpy(), step(x).numpy(), rtol=1e-6)
    assert v.numpy() == 2
