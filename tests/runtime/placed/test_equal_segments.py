"""Segments: those that are the same program are traced and compiled once,
others apart.
"""

from __future__ import annotations

import numpy as np

import meshtf as mtf


def test_equal_ops_after_tensors_of_different_shapes_are_compiled_separately():
    """One waits for a cotangent in the loop's body, the other for one of the inner
    recomputation.
    """
    mesh = mtf.Mesh("data:2", "e:data")
    w = mtf.Variable(
        mesh, "e:4;t:2", lambda mesh, shape, name: mtf.ones(mesh, shape), "w"
    )
    values = np.random.default_rng(0).normal(size=[4, 4]).astype("float32")
    x = mtf.asarray(mesh, values, "b:4;e:4")

    def body(h, x):
        with mtf.seed(7):
            inner = mtf.recompute(lambda h: h + mtf.dropout(x, 0.5, name="inner"))(w)
            outer = mtf.dropout(w, 0.5, name="outer")
        return h, x + mtf.reduce_mean(inner, "t") + mtf.reduce_mean(outer, "t")

    def step(x):
        _, y = mtf.scan(mtf.recompute(body), None, x, "b")
        return mtf.gradients([mtf.reduce_mean(mtf.sin(y))], [x, w])

    compiled = mtf.function(step, mesh=mesh, jit=True)(x)
    plain = mtf.function(step, mesh=mesh)(x)
    for got, expected in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
