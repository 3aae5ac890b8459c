"""Start here: a two-layer network, the smallest program that shows what meshtf does.

It is written once, on named dimensions. Which device holds what is one string, the
layout, and every layout gives the same numbers as plain numpy.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

LAYOUTS = {
    "one device": ("", ""),
    "data parallel": ("data:4", "batch:data"),
    "tensor parallel": ("model:2", "hidden:model"),
    "both": ("data:2;model:2", "batch:data;hidden:model"),
}


def network(x, w, v):
    """Returns the sum of v · relu(w · x) over the batch."""
    hidden = mtf.relu(mtf.einsum([x, w], "batch;hidden"))
    return mtf.reduce_sum(mtf.einsum([hidden, v], "batch"))


def expected(x, w, v):
    """Returns loss and gradients of `network`, in numpy."""
    hidden = np.maximum(x @ w, 0)
    d_hidden = np.where(hidden > 0, v, 0)
    return (hidden @ v).sum(), x.T @ d_hidden, hidden.sum(0)


@pytest.mark.parametrize("axes, layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "function"])
def test_every_layout_gives_the_same_numbers(axes, layout, recorded, rng):
    arrays = [
        rng.normal(size=sizes).astype("float32") for sizes in ((8, 3), (3, 4), (4,))
    ]
    mesh = mtf.Mesh(axes, layout=layout)
    x, w, v = (
        mtf.asarray(mesh, array, shape)
        for array, shape in zip(
            arrays, ("batch:8;d:3", "d:3;hidden:4", "hidden:4"), strict=True
        )
    )

    def step(x, w, v):
        loss = network(x, w, v)
        return [loss, *mtf.gradients([loss], [w, v])]

    results = (mtf.function(step) if recorded else step)(x, w, v)
    for have, expected_value in zip(results, expected(*arrays), strict=True):
        np.testing.assert_allclose(have.numpy(), expected_value, rtol=1e-5, atol=1e-5)


def test_a_layout_that_cannot_be_is_refused():
    mesh = mtf.Mesh("data:2", layout="batch:data;hidden:data")
    with pytest.raises(mtf.LayoutError, match='want mesh axis "data"'):
        mtf.zeros(mesh, "batch:4;hidden:4")
