"""Without communication, collectives have results of the same shapes, of local values."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from meshtf.runtime.spmd.module import stablehlo_collectives as collectives

GROUPS = ((0, 1), (2, 3))
X = np.arange(24, dtype=np.float32).reshape(4, 6)
# Name -> (a collective, what stands in for its result).
CASES = {
    "all_reduce": (lambda x: collectives.all_reduce(x, GROUPS, "sum"), X),
    "permute": (lambda x: collectives.permute(x, ((0, 1), (1, 0))), X),
    "reduce_scatter": (
        lambda x: collectives.reduce_scatter(x, GROUPS, "sum", 1),
        X[:, :3],
    ),
    "all_gather": (
        lambda x: collectives.all_gather(x, GROUPS, 0),
        np.concatenate([X, X]),
    ),
    "all_to_all": (
        lambda x: collectives.all_to_all(x, GROUPS, 1, 0),
        np.concatenate([X[:, :3], X[:, :3]]),
    ),
    "stack": (lambda x: collectives.stack(x, GROUPS), np.stack([X, X])),
}


@pytest.mark.parametrize("name", CASES)
def test_results_have_the_shapes_of_the_collectives(name):
    collective, expected = CASES[name]

    @tf.function(jit_compile=True)
    def run(x):
        with collectives.without_communication():
            return collective(x)

    np.testing.assert_array_equal(run(tf.constant(X)).numpy(), expected)

    @tf.function(jit_compile=True)
    def communicating(x):
        return collective(x)

    graph = communicating.get_concrete_function(tf.constant(X))
    assert graph.output_shapes.as_list() == list(expected.shape)


def test_scalars_and_truth_values():
    @tf.function(jit_compile=True)
    def run(x, flag):
        with collectives.without_communication():
            return (
                collectives.all_reduce(x, GROUPS, "max"),
                collectives.all_gather(flag, GROUPS, 0),
            )

    scalar, flags = run(tf.constant(3.0), tf.constant([True, False]))
    assert float(scalar) == 3.0
    assert flags.numpy().tolist() == [True, False, True, False]
