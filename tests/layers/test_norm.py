"""Group norm and instance norm against Keras, under layouts that shard what they sum
over.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.layer_agreement import agree
from tests.support.refusals import refuses


@pytest.mark.parametrize("groups", [1, 2, 8], ids=lambda n: f"{n} groups")
def test_group_norm(rng, groups):
    scale, bias = rng.normal(size=(2, 8)).astype("float32")

    def make(mesh):
        norm = layers.GroupNorm(mesh, "c:8", groups, over="h;w")
        norm.scale.assign(scale)
        norm.bias.assign(bias)
        return norm, norm

    x = (rng.normal(size=(2, 4, 4, 8)) * 3 + 1).astype("float32")
    y, _ = agree(
        make, {"x": (x, "b;h;w;c")}, ["b:x;h:y", "h:x;w:y", "c:x;w:y"], tolerance=3e-5
    )
    peer = keras.layers.GroupNormalization(groups, epsilon=1e-6)
    peer.build(x.shape)
    peer.set_weights([scale, bias])
    np.testing.assert_allclose(y, peer(x).numpy(), rtol=1e-4, atol=1e-4)


def test_groups_divide_the_channels():
    with refuses(mtf.ShapeError, "c:8 cannot be split into 3 equal groups"):
        layers.GroupNorm(mtf.Mesh(""), "c:8", 3)
