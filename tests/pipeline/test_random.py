"""Random numbers of a pipeline: those of its layers without it, by all of its ways to
be called.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


def first(x):
    return mtf.dropout(x, 0.5, name="first")


def second(x):
    return mtf.dropout(x, 0.25, name="second") * 2.0


@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("axes", ["", "stage:2", "stage:2;data:2"])
def test_layers_that_are_functions_draw_what_they_would_without_a_pipeline(
    axes, recorded, seed
):
    mesh = mtf.Mesh(axes, "batch:data", optional_axes="data")
    pipe = mtf.pipeline.GPipe([first, second], 2, 4)
    x = mtf.asarray(mesh, np.ones((8, 6), "float32"), "batch;d")
    ways = {
        "plain": lambda x: mtf.reduce_mean(mtf.square(second(first(x)))),
        "called": lambda x: mtf.reduce_mean(mtf.square(pipe(x))),
        "loss": lambda x: pipe.loss(lambda y: mtf.reduce_mean(mtf.square(y)), x),
    }
    grads = []
    for way in ways.values():

        def gradient(x, way=way):
            with mtf.seed(seed), mtf.scope("model"):
                loss = way(x)
            return mtf.gradients([loss], [x])[0]

        run = mtf.function(gradient, mesh=mesh) if recorded else gradient
        grads.append(run(x).numpy())
    assert 0.0 < (grads[0] == 0).mean() < 1.0
    for dx in grads[1:]:
        np.testing.assert_allclose(dx, grads[0], 1e-6)
