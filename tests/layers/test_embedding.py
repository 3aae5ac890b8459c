"""Embeddings with a table for each expert, learned positions, and sinusoids."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.layer_agreement import agree
from tests.support.refusals import refuses


@pytest.mark.parametrize(
    "shared", [True, False], ids=["ids of each expert", "one input"]
)
def test_tables_of_experts(rng, shared):
    tables = []

    def make(mesh):
        embed = layers.Embedding(mesh, "vocab:6", "d:4", expert_dims="ensemble:2")
        tables.append(embed.table.numpy())
        return embed, lambda ids: embed.attend(embed(ids))

    ids = rng.integers(0, 6, (2, 4) if shared else (4,)).astype("int32")
    y, _ = agree(
        make,
        {"ids": (ids, "ensemble;batch" if shared else "batch")},
        ["ensemble:x", "vocab:x;batch:y", "d:y;ensemble:x"],
    )
    for i in range(2):
        expected = tables[0][i][ids[i] if shared else ids] @ tables[0][i].T
        np.testing.assert_allclose(
            y[i] if shared else y[:, i], expected, rtol=1e-5, atol=1e-5
        )


def test_learned_positions(rng):
    def make(mesh):
        position_embedding = layers.Embedding(mesh, "position:8", "d:4")
        return (
            position_embedding,
            lambda x: x + position_embedding(mtf.range(x.mesh, x.shape.dim("length"))),
        )

    x = rng.normal(size=(2, 4, 4)).astype("float32")
    y, grads = agree(
        make, {"x": (x, "batch;length;d")}, ["length:x", "position:x;d:y", "batch:x"]
    )
    table = layers.Embedding(mtf.Mesh(""), "position:8", "d:4").table.numpy()
    np.testing.assert_allclose(y, x + table[:4], rtol=1e-5, atol=1e-5)
    assert not grads["embedding/table"][4:].any()


@pytest.mark.parametrize("layout", ["", "length:x", "d:x;batch:y"])
def test_sinusoids(layout):
    mesh = mtf.Mesh("x:2;y:2", layout)
    positions = np.array([[0, 1, 2, 3], [7, 0, 500, 1]], "int32")
    results = layers.sinusoids(
        mtf.asarray(mesh, positions, "batch;length"), "d:8", 2.0, 200.0
    )
    waves = 2.0 * 100.0 ** (np.arange(4) / 3)
    angles = positions[..., None] / waves
    np.testing.assert_allclose(
        results.numpy(), np.concatenate([np.sin(angles), np.cos(angles)], -1), atol=1e-4
    )


def test_sinusoids_come_in_pairs():
    for size in (2, 5):
        with refuses(mtf.ShapeError, f"d:{size} must be even"):
            layers.sinusoids(mtf.range(mtf.Mesh(""), "length:4"), [("d", size)])
