"""Functions that run op by op: values are there, and results are the same."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

X = np.arange(8, dtype="float32").reshape(4, 2)


@pytest.mark.parametrize("layout", ["", "b:x", "d:x"])
def test_results_values_and_gradients(layout):
    mesh = mtf.Mesh("x:2", layout)
    v = mtf.Variable(mesh, "d:2", "ones", "v")
    seen = []

    @mtf.function(mesh=mesh, x="b;d")
    def step(x):
        y = (x * v).sum("d")
        seen.append(y)
        v.assign_add(mtf.gradients([y.sum()], [v])[0])
        return {"y": y}

    with mtf.run_functions_eagerly():
        eager = step(X)
    assert (step.traces, v.numpy().tolist()) == (0, [13.0, 17.0])
    np.testing.assert_array_equal(seen[0].numpy(), X.sum(1))
    np.testing.assert_array_equal(eager["y"].numpy(), X.sum(1))

    v.assign(np.ones(2, "float32"))
    traced = step(X)
    assert (step.traces, v.numpy().tolist()) == (1, [13.0, 17.0])
    np.testing.assert_array_equal(traced["y"].numpy(), eager["y"].numpy())
    with pytest.raises(mtf.PlanError, match="no value yet"):
        seen[1].numpy()


def test_functions_within_functions_and_random_numbers():
    mesh = mtf.Mesh("x:2", "b:x")

    @mtf.function
    def inner(x):
        return mtf.dropout(x, 0.5)

    @mtf.function(mesh=mesh, x="b;d")
    def outer(x):
        with mtf.seed(1):
            return inner(x) + 1.0

    with mtf.run_functions_eagerly():
        eager = outer(X).numpy()
    np.testing.assert_array_equal(outer(X).numpy(), eager)
