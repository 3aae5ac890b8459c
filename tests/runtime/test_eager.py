"""Ops outside of functions, and inside those of TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.support.refusals import line_of, refuses


@pytest.fixture(params=[None, "spmd:cpu"], scope="module")
def mesh(request):
    return mtf.Mesh("data:2", "batch:data", devices=request.param)


def test_nothing_of_meshtf_runs_inside_a_tf_function(mesh):
    variable = mtf.Variable(mesh, "d:4", "ones", name="v")
    x = mtf.ones(mesh, "batch:4")
    double = mtf.function(lambda y: y * 2.0, mesh=mesh, y="batch")

    def assign(t):
        variable.assign_add(1.0)
        return t

    uses = {
        "the mtf.function": lambda t: double(np.ones(4, "float32")),
        "a named op": lambda t: (variable * 2.0).numpy(),
        "the value of a tensor": lambda t: x.numpy() + t,
        "runs inside": assign,
    }
    for words, use in uses.items():
        for autograph in (True, False):
            traced = tf.function(use, autograph=autograph)
            with refuses(mtf.PlanError, words, "tf.function", "@mtf.function") as error:
                traced(tf.ones(4))
            line = line_of(str(error.value), __file__)
            assert "lambda" in line or "assign_add" in line or "traced" in line
    np.testing.assert_equal(variable.numpy(), np.ones(4))
    np.testing.assert_equal(double(np.ones(4, "float32")).numpy(), np.full(4, 2.0))
