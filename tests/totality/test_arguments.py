"""What arguments may be besides, and what a refusal says: the argument, what came, the
line.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.support.refusals import line_of, ones, refuses

HERE = r"test_arguments\.py:\d+"


@pytest.fixture
def mesh():
    return mtf.Mesh("data:2", "batch:data")


@pytest.fixture
def x(mesh):
    return mtf.asarray(mesh, np.arange(24, dtype="float32").reshape(4, 6), "batch;d")


@pytest.mark.parametrize(
    "axes", [[("all", 8)], (("all", 8),), {"all": 8}, [("all", np.int64(8))], "all:8"]
)
def test_a_mesh_takes_pairs_and_dicts(axes):
    assert mtf.Mesh(axes).axes == {"all": 8}


@pytest.mark.parametrize(
    "axes, words",
    [
        (None, 'argument "axes" takes names and sizes, not None'),
        (8, "not the int 8"),
        ([1, 2], r"not the list \[1, 2\]"),
        (["all"], r"not the list"),
        (np.ones(2), r"not a ndarray of float64 \[2\]"),
    ],
)
def test_a_mesh_of_something_else(axes, words):
    with refuses(
        mtf.ArgumentError, words, r"from +mtf\.Mesh, ", HERE, '"data:4;model:2"'
    ):
        mtf.Mesh(axes)


@pytest.mark.parametrize(
    "axes", [[("all", 0)], [("all", "x")], {"all": 2.5}, [("a b", 2)]]
)
def test_a_mesh_of_sizes_that_are_none(axes):
    with pytest.raises(mtf.ParseError):
        mtf.Mesh(axes)


def test_a_dimension_stands_for_its_name(mesh, x):
    d = mtf.Dimension("d", 6)
    batch = mtf.Dimension("batch", 4)
    np.testing.assert_allclose(mtf.reduce_sum(x, d).numpy(), x.numpy().sum(1))
    np.testing.assert_allclose(mtf.reduce_max(x, [d, batch]).numpy(), x.numpy().max())
    np.testing.assert_allclose(mtf.softmax(x, d).numpy(), mtf.softmax(x, "d").numpy())
    np.testing.assert_allclose(mtf.cumsum(x, d).numpy(), x.numpy().cumsum(1))
    np.testing.assert_allclose(mtf.slice(x, d, 1, 2).numpy(), x.numpy()[:, 1:3])
    assert mtf.argmax(x, d).numpy().tolist() == [5] * 4
    assert [y.shape for y in mtf.unstack(x, batch)] == [mtf.Shape("d:6")] * 4
    with refuses(mtf.ShapeError, r"no dimension d:9 in \[batch:4 d:6\]", HERE):
        mtf.softmax(x, mtf.Dimension("d", 9))


@pytest.mark.parametrize(
    "name, low, high",
    [
        ("zeros", 0, 0),
        ("ones", 1, 1),
        ("uniform", -1, 1),
        ("normal", -9, 9),
        ("truncated", -3, 3),
    ],
)
def test_initializers_by_name(mesh, name, low, high):
    variable = mtf.Variable(mesh, "a:4", name, "w")
    plain_variable = mtf.Variable(
        mesh,
        "a:4",
        mtf.layers.initializers.zeros
        if name == "zeros"
        else mtf.layers.initializers.ones
        if name == "ones"
        else getattr(mtf.layers.initializers, name)(),
        "w",
    )
    assert (variable.numpy() >= low).all() and (variable.numpy() <= high).all()
    np.testing.assert_array_equal(variable.numpy(), plain_variable.numpy())
    dense = mtf.layers.Dense(mesh, "a:4", "b:2", kernel_initializer=name)
    assert (dense.kernel.numpy() >= low).all()


def test_an_initializer_that_there_is_not(mesh):
    with refuses(
        mtf.ArgumentError,
        '"initializer" takes one of',
        "'zeros'",
        "not the str 'zeroes'",
        HERE,
        "Did you mean zeros",
    ):
        mtf.Variable(mesh, "a:4", "zeroes", "w")


def test_an_axis_by_number_is_refused(x):
    with refuses(
        mtf.ArgumentError,
        'argument "dim" takes the name of a dimension, not the int -1',
        r"from +mtf\.softmax, ",
        HERE,
        r"have names, not indices: the shape is \[batch:4 d:6\]",
    ) as error:
        mtf.softmax(x, -1)
    assert "mtf.softmax(x, -1)" in line_of(str(error.value), __file__)
    assert isinstance(error.value, TypeError)


def test_inside_of_a_function_as_well(mesh):
    @mtf.function(mesh=mesh, x="batch;d")
    def f(x):
        return mtf.softmax(x, 1)

    with refuses(
        mtf.ArgumentError, '"dim"', "not the int 1", r"mtf\.softmax", HERE
    ) as error:
        f(np.ones((4, 6), "float32"))
    assert "return mtf.softmax(x, 1)" in line_of(str(error.value), __file__)


def test_a_list_of_variables_is_no_checkpoint(mesh, tmp_path):
    v = mtf.Variable(mesh, "d:4", ones, "v")
    with refuses(
        mtf.ArgumentError,
        '"variables" takes variables by name, not the list',
        HERE,
        r"\{v.name: v for v in model.variables\}",
    ):
        mtf.checkpoints.save(str(tmp_path), 1, [v])
    assert not list(tmp_path.iterdir())
    assert mtf.checkpoints.save(tmp_path, np.int64(1), {"v": v}).endswith(
        "step_00000001"
    )


@pytest.mark.parametrize(
    "low, high, dtype, words",
    [
        (-3, 100, "uint8", "-3 is no value of the type uint8"),
        (0, 300, "uint8", "299"),
        (0, 200, "int8", "199"),
        (0.5, 7, "int32", "0.5"),
    ],
)
def test_ranges_that_a_type_does_not_hold(mesh, low, high, dtype, words):
    with refuses(mtf.DTypeError, words):
        mtf.random_uniform(mesh, "a:4", low, high, dtype, seed=1)


def test_the_whole_range_of_a_type(mesh):
    y = mtf.random_uniform(mesh, "a:4096", 0, 256, "uint8", seed=1).numpy()
    assert y.min() == 0 and y.max() == 255


@pytest.mark.parametrize(
    "value, dtype", [(300, "uint8"), (1.5, "int32"), (1j, "float32")]
)
def test_numbers_that_a_type_does_not_hold(mesh, value, dtype):
    with refuses(mtf.DTypeError, "is no value of the type " + dtype):
        mtf.full(mesh, "a:4", value, dtype)


def test_numbers_of_numpy_are_numbers(mesh, x):
    np.testing.assert_allclose(
        mtf.clip(x, np.float32(1), np.int64(3)).numpy(), np.clip(x.numpy(), 1, 3)
    )
    assert mtf.full(mesh, "a:2", np.float64(1.5)).numpy().tolist() == [1.5, 1.5]
    assert mtf.roll(x, "d", np.int32(1)).shape == x.shape
    assert mtf.cumsum(x, "d", reverse=np.bool_(True)).numpy()[0, 0] == 15


def test_an_op_of_a_users_own_says_which_attribute_is_wrong(mesh, x):
    class Scaled(mtf.graph.Op):
        by: float

        def output_specs(self, x):
            return (x,)

        def local(self, context, x):
            return (x * self.by,)

    assert mtf.graph.apply(Scaled(2), x).numpy()[0, 1] == 2
    with refuses(mtf.ArgumentError, '"by" takes a number, not the str', HERE):
        Scaled("two")


def test_a_step_is_one_number_on_the_mesh_of_the_variables(mesh):
    v = mtf.Variable(mesh, "d:4;e:2", ones, "v")
    optimizer = mtf.optimizers.AdamW([v])
    with refuses(mtf.ShapeError, "as a scalar", r"\[d:4\]"):
        optimizer.apply_gradients(
            [mtf.ones(mesh, v.shape)], [v], mtf.zeros(mesh, "d:4", "int32")
        )
    other = mtf.zeros(mtf.Mesh("model:1"), "", "int32")
    with pytest.raises(mtf.MeshError, match="two meshes"):
        optimizer.apply_gradients([mtf.ones(mesh, v.shape)], [v], other)
