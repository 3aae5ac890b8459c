"""What errors say about programs and random numbers: the user's line and the
way out.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.support.refusals import line_of, ones, refuses

HERE = r"test_errors_of_programs\.py:\d+"


@pytest.fixture
def mesh():
    return mtf.Mesh("data:2;model:2", "batch:data;heads:model;d_ff:model")


# Recording


def test_python_cannot_ask_a_recorded_tensor(mesh):
    @mtf.function(mesh=mesh, x="")
    def branch(x):
        return x if mtf.greater(x, 0.0) else -x

    with refuses(
        mtf.PlanError,
        "boolean value of a recorded tensor",
        r"bool \[\]",
        r"mtf\.greater",
        HERE,
        r"mtf\.where",
    ) as error:
        branch(1.0)
    assert "mtf.greater(x, 0.0)" in line_of(str(error.value), __file__)
    with refuses(
        mtf.PlanError, "no value yet", r"float32 \[\]", "made by", "Return it from"
    ):
        mtf.function(lambda x: float(x * 2.0), mesh=mesh, x="")(1.0)
    with pytest.raises(TypeError, match=r"mtf\.unstack"):
        mtf.function(list, mesh=mesh)(mtf.ones(mesh, "d:2"))


def test_an_array_argument_without_names(mesh):
    f = mtf.function(lambda tokens: tokens, mesh=mesh)
    for value in (np.zeros((4, 2)), tf.zeros([4, 2]), {"a": [np.zeros((4, 2))]}):
        with refuses(
            mtf.PlanError,
            "'tokens'",
            "without named dimensions",
            r"\[4, 2\]",
            '@mtf.function.tokens="batch',
        ):
            f(value)


def test_names_that_do_not_fit_the_array(mesh):
    with refuses(
        mtf.ShapeError,
        "names do not fit",
        "'batch', 'd'",
        r"\[7, 2, 3\]",
        "argument 'x'",
    ):
        mtf.function(lambda x: x, mesh=mesh, x="batch;d")(np.zeros((7, 2, 3)))
    with refuses(mtf.PlanError, "'y'", "no such argument"):
        mtf.function(lambda x: x, y="batch")


def test_no_mesh():
    with refuses(mtf.MeshError, "determines the mesh", r"@mtf\.function\(mesh=mesh"):
        mtf.function(lambda: mtf.ones(None, "d:4"))()
    with refuses(mtf.MeshError, "no mesh", HERE, "Pass the mesh"):
        mtf.ones(None, "d:4")


def test_a_variable_made_within_a_function(mesh):
    @mtf.function(mesh=mesh)
    def f():
        return mtf.Variable(mesh, "d:4", ones, "w").tensor()

    with refuses(mtf.PlanError, "'w' is made inside a mtf.function", HERE, "__init__"):
        f()


@pytest.mark.parametrize(
    "shape, dtype, gave",
    [
        ("d:5", "float32", r"float32 \[d:5\]"),
        ("e:4", "float32", r"float32 \[e:4\]"),
        ("d:4", "int32", r"int32 \[d:4\]"),
    ],
)
def test_an_initializer_of_another_shape(mesh, shape, dtype, gave):
    with refuses(
        mtf.ShapeError, "initializer of variable 'w'", gave, r"float32 \[d:4\]"
    ):
        mtf.Variable(
            mesh, "d:4", lambda mesh, s, name: mtf.ones(mesh, shape, dtype), "w"
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda m, array: mtf.relu(array),
        lambda m, array: mtf.ones(m, "d:4") + array,
        lambda m, array: array + mtf.ones(m, "d:4"),
        lambda m, array: mtf.einsum([array, mtf.ones(m, "d:4")], "d"),
    ],
)
def test_ops_take_no_arrays(mesh, make):
    with refuses(
        mtf.ArgumentError,
        "a tensor or variable of meshtf, not a ndarray",
        HERE,
        r'mtf\.asarray\(mesh, array, "batch;d_model"\)',
    ):
        make(mesh, np.ones(4, "float32"))


def test_a_recorded_tensor_is_of_no_use_outside():
    mesh = mtf.Mesh("data:2")
    leaked = []
    mtf.function(lambda x: leaked.append(mtf.exp(x)), mesh=mesh)(mtf.ones(mesh, "d:4"))
    with refuses(mtf.PlanError, "recorded", r"float32 \[d:4\]", r"mtf\.exp", HERE):
        mtf.relu(leaked[0])
    with refuses(mtf.PlanError, "recorded", r"float32 \[d:4\]", r"mtf\.exp", HERE):
        mtf.function(lambda x: x + leaked[0], mesh=mesh)(mtf.ones(mesh, "d:4"))
    with refuses(mtf.PlanError, "recorded tensor", r"mtf\.exp", HERE):
        mtf.function(lambda x: x, mesh=mesh)(leaked[0])


def test_gradients_of_integers(mesh):
    x = mtf.ones(mesh, "d:4", "int32")
    with refuses(mtf.PlanError, "only floating tensors", r"int32 \[d:4\]", HERE):
        mtf.gradients([x], [x])


# Random numbers


def test_two_random_ops_of_one_path_under_one_seed(mesh):
    x = mtf.ones(mesh, "d:4")
    with mtf.seed(1), mtf.scope("encoder"):
        mtf.dropout(x, 0.5)
        with refuses(
            mtf.PlanError, "'encoder/dropout' under one seed", "name=", r"mtf\.seed\("
        ):
            mtf.dropout(x, 0.5)
        mtf.dropout(x, 0.5, name="second")
    with mtf.seed(1), mtf.scope("encoder"):
        mtf.dropout(x, 0.5)


def test_random_ops_need_a_seed(mesh):
    with refuses(
        mtf.PlanError, "'dropout' needs a seed", r"mtf\.seed\(run_seed, step\)", "seed="
    ):
        mtf.dropout(mtf.ones(mesh, "d:4"), 0.5)


def test_errors_about_seeds_name_the_line(mesh):
    with refuses(mtf.PlanError, "needs a seed", HERE):
        mtf.random_normal(mesh, "d:4")
    with mtf.seed(1):
        mtf.random_normal(mesh, "d:4")
        with refuses(mtf.PlanError, "under one seed", HERE):
            mtf.random_normal(mesh, "d:4")
