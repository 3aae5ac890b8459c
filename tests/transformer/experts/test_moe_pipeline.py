"""Losses of routers in a pipeline equal those of the model without it, for any number of stages
and microbatches.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

BATCH, LENGTH = 8, 8
CASES = [  # mesh, layout, microbatches, whether layers are computed again
    ("stage:2", "layers:stage", 8, False),
    ("stage:2;data:2", "layers:stage;batch:data;experts:data", 4, False),
    ("stage:4", "layers:stage", 4, True),
]


def make_model(balance, axes="", layout="", microbatches=None, recompute=False):
    mixture = functools.partial(
        MixtureOfExperts,
        experts=4,
        gating=gating.top_2,
        jitter=0.05,
        balance_weight=balance,
    )
    sizes = Architecture(
        vocab=16,
        d_model=16,
        d_ff=16,
        heads=2,
        d_kv=8,
        blocks=4,
        moe_every=1,
        dropout=0.1,
        mixture=mixture,
        scanned=True,
        recompute=recompute,
    )
    mesh = mtf.Mesh(axes, layout, seed=1, microbatches=microbatches)
    return LanguageModel(mesh, sizes)


def loss_and_gradients(model):
    """Returns the training loss, and the gradient of each variable by its path."""
    variables = model.trainable_variables

    @mtf.function(mesh=model.mesh, tokens="batch;length", targets="batch;length")
    def step(tokens, targets):
        with mtf.seed(5):
            loss = model.loss({"tokens": tokens, "targets": targets}, training=True)
        return [loss, *mtf.gradients([loss], variables)]

    sequences = (
        np.random.default_rng(0).integers(0, 16, (BATCH, LENGTH + 1)).astype("int32")
    )
    loss, *grads = (y.numpy() for y in step(sequences[:, :-1], sequences[:, 1:]))
    return loss, {v.path: dx for v, dx in zip(variables, grads, strict=True)}


@functools.cache
def unpipelined(balance):
    return loss_and_gradients(make_model(balance))


def test_routers_have_a_say():
    assert (
        unpipelined(0.5)[0] > unpipelined(0.0)[0] + 0.5
    )  # four mixtures, in balance or not


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("axes, layout, microbatches, recompute", CASES, ids=str)
def test_losses_of_routers_at_several_stages(axes, layout, microbatches, recompute):
    expected_loss, expected = unpipelined(0.5)
    model = make_model(0.5, axes, layout, microbatches, recompute)
    routers = [v for v in model.trainable_variables if "router" in v.path]
    assert routers
    assert all("layers:stage" in str(v.placement) for v in routers)
    loss, grads = loss_and_gradients(model)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert grads.keys() == expected.keys()
    for path, dx in grads.items():
        np.testing.assert_allclose(dx, expected[path], 2e-3, 1e-5, err_msg=path)
