"""Dense layers with experts, products of dense layers and feed-forward layers, against
numpy.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.layer_agreement import agree
from tests.support.refusals import refuses

LAYOUTS = ["batch:x", "d:x;f:y", "f:x;batch:y"]
NUMPY = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}
GATED = {
    "glu": "sigmoid",
    "bilinear": "linear",
    "reglu": "relu",
    "geglu": "gelu",
    "swiglu": "silu",
}


def random_array(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def with_last_variables(make):
    """Returns `make` of a mesh, and a dict that holds the variables of the last
    module.
    """
    results = {}

    def build(mesh):
        module, call = make(mesh)
        results.update({v.name: v.numpy() for v in module.variables})
        return module, call

    return build, results


@pytest.mark.parametrize(
    "shared", [True, False], ids=["input of each expert", "one input"]
)
def test_experts_have_kernels_of_their_own(rng, shared):
    def make(mesh):
        dense = layers.Dense(mesh, "d:8", "f:4", expert_dims="experts:2")
        dense.bias.assign(np.arange(8, dtype="float32").reshape(2, 4))
        return dense, dense

    make, variables = with_last_variables(make)
    x = random_array(rng, *((4, 2, 8) if shared else (4, 8)))
    y, _ = agree(
        make,
        {"x": (x, "batch;experts;d" if shared else "batch;d")},
        [*LAYOUTS, "experts:x", "experts:y;d:x"],
    )
    expected = np.einsum(
        "bed,edf->bef" if shared else "bd,edf->bef", x, variables["dense/kernel"]
    )
    np.testing.assert_allclose(
        y, expected + np.arange(8).reshape(2, 4), rtol=1e-5, atol=1e-5
    )


def test_experts_do_not_count_in_the_fan():
    dense = layers.Dense(mtf.Mesh(""), "d:64", "f:64", expert_dims="experts:16")
    assert dense.kernel.numpy().std() == pytest.approx(1 / 8, rel=0.02)


@pytest.mark.parametrize(
    "activations",
    [["tanh"], ["silu", "linear"], ["relu", mtf.sin, "gelu"]],
    ids=lambda a: str(len(a)),
)
def test_a_product_has_a_kernel_for_each_activation(rng, activations):
    make, variables = with_last_variables(
        lambda mesh: (
            product := layers.DenseProduct(mesh, "d:8", "f:4", activations, name="wi"),
            product,
        )
    )
    x = random_array(rng, 4, 8)
    y, grads = agree(make, {"x": (x, "batch;d")}, LAYOUTS)
    names = (
        ["wi"]
        if len(activations) == 1
        else [f"wi_{i}" for i in range(len(activations))]
    )
    assert variables.keys() == {
        f"{name}/{kind}" for name in names for kind in ("kernel", "bias")
    }
    functions = [NUMPY | {"tanh": np.tanh, mtf.sin: np.sin}][0]
    expected = np.prod(
        [
            functions[a](x @ variables[f"{n}/kernel"])
            for a, n in zip(activations, names)
        ],
        axis=0,
    )
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert len(grads) == 2 * len(names) + 1


@pytest.mark.parametrize("activation", ["relu", "gelu", *GATED])
def test_feed_forward(rng, activation):
    make, variables = with_last_variables(
        lambda mesh: (
            layer := layers.FeedForward(mesh, "d:8", "f:4", activation),
            layer,
        )
    )
    x = random_array(rng, 2, 4, 8)
    y, _ = agree(
        make,
        {"x": (x, "batch;length;d")},
        ["batch:x;f:y", "d:y;length:x"] if activation == "swiglu" else ["f:x"],
    )
    w = {name.split("/")[1]: value for name, value in variables.items()}
    h = (
        NUMPY[GATED[activation]](x @ w["wi_0"]) * (x @ w["wi_1"])
        if activation in GATED
        else NUMPY[activation](x @ w["wi"])
    )
    np.testing.assert_allclose(y, h @ w["wo"], rtol=1e-4, atol=1e-5)


def test_feed_forward_drops_hidden_numbers_alike_under_every_layout(rng):
    def make(mesh):
        layer = layers.FeedForward(
            mesh, "d:8", "f:32", dropout_rate=0.5, dropout_broadcast="length"
        )
        return layer, lambda x: layer(x, training=True)

    x = random_array(rng, 2, 4, 8)
    dropped, _ = agree(make, {"x": (x, "batch;length;d")}, ["f:x;batch:y", "length:x"])
    mesh = mtf.Mesh("")
    layer = layers.FeedForward(mesh, "d:8", "f:32")
    full_output = layer(mtf.asarray(mesh, x, "batch;length;d")).numpy()
    assert np.abs(dropped - full_output).max() > 0.1


def test_unknown_activations_are_refused():
    mesh = mtf.Mesh("")
    with refuses(
        mtf.ParseError, "there is no activation 'gleu'", "Did you mean", "glu", "swiglu"
    ):
        layers.FeedForward(mesh, "d:8", "f:4", "gleu")
    with refuses(
        mtf.ParseError, "there is no activation 'swiglu'", "a function of a tensor"
    ):
        layers.DenseProduct(mesh, "d:8", "f:4", ["swiglu"])  # it is two factors
    with refuses(mtf.ShapeError, "one factor at least"):
        layers.DenseProduct(mesh, "d:8", "f:4", [])
