"""Functions that equal ops share within the module of a program."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import meshtf as mtf
from meshtf.ops.random.random_ops import Random
from meshtf.runtime.spmd.module.shared_functions import SharedFunctions


def test_equal_ops_are_traced_once(monkeypatch):
    traced = []
    local = Random.local

    def counted(self, context, *seeds):
        traced.append(self.shape)
        return local(self, context, *seeds)

    monkeypatch.setattr(Random, "local", counted)
    mesh = mtf.Mesh("data:2", "batch:data", devices="spmd:cpu")

    @mtf.function(mesh=mesh)
    def draw():
        shapes = ("batch:4;d:3", "batch:4;d:3", "batch:4;d:3", "d:3;batch:4")
        return [
            mtf.random_normal(mesh, shape, seed=i) for i, shape in enumerate(shapes)
        ]

    draws = [y.numpy() for y in draw()]
    assert len(traced) == 2
    assert len({y.tobytes() for y in draws}) == 4


def test_operations_are_those_of_all_functions():
    shared = SharedFunctions()
    spec = tf.TensorSpec([], tf.float32)

    @tf.function(autograph=False)
    def outer(x):
        twice = shared.outline("twice", lambda x: [x + x], [spec])
        again = shared.outline("twice", lambda x: [x * x], [spec])
        square = shared.outline("square", lambda x: [x * x], [spec])
        return twice([x])[0], again([x])[0], square([x])[0]

    np.testing.assert_array_equal(outer(tf.constant(3.0)), [6.0, 6.0, 9.0])
    types = [op.type for op in shared.operations()]
    assert "AddV2" in types and "Mul" in types
