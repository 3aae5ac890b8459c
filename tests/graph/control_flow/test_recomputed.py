"""What a loop stores for its backward pass, and that gradients are those of Python's loop."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.graph.control_flow.loop import Loop

X = np.random.default_rng(0).normal(size=(4, 6))
W = np.random.default_rng(1).normal(size=(3, 6, 6)) * 0.4


def product(x, w):
    """Returns x [b, d] * w [d, e], with e called d."""
    return mtf.rename(mtf.einsum([x, w], "b;e"), "e", "d")


def gelu(x, w):
    y = product(x, w)
    return x + product(mtf.gelu(y), w)


def chain(x, w):
    """Two elementwise ops, of which only the last output is read by a product."""
    y = mtf.exp(mtf.tanh(product(x, w)) * 0.1)
    return product(y, w)


def wide(x, w):
    """A result that is wider than what it is computed from."""
    y = product(mtf.cast(x, "float32"), mtf.cast(w, "float32"))
    return x + mtf.sin(mtf.cast(y, "float64"))


def dropped(x, w):
    weights = mtf.softmax(product(x, w), "d")
    return x + product(mtf.dropout(weights, 0.3), w)


def chosen(x, w):
    y = product(x, w)
    return mtf.where(mtf.greater(y, 0.0), mtf.maximum(y, x), mtf.sqrt(mtf.abs(y)))


LAYERS = {fn.__name__: fn for fn in (gelu, chain, wide, dropped, chosen)}
# The ops whose outputs the forward loop stacks for its gradient.
STORED = {
    "gelu": ["rename"],
    "chain": ["tanh"],  # of which exp(0.1 * tanh), too, is computed
    "wide": ["cast", "rename"],  # both in float32
    "dropped": ["dropoutmask", "softmax"],
    "chosen": ["rename"],
}


def step_of(layer, as_scan, **mesh):
    """Returns a function of x and w: the loss and its gradients, by a scan or Python's loop."""
    mesh = mtf.Mesh(mesh.pop("axes", ""), **mesh)

    def apply_layer(h, w):
        return LAYERS[layer](h, w), None

    @mtf.function(mesh=mesh, x="b;d", w="layers;d;e")
    def step(x, w):
        with mtf.seed(3):
            if as_scan:
                h, _ = mtf.scan(apply_layer, x, w, "layers")
            else:
                h = x
                for entry in mtf.unstack(w, "layers"):
                    h, _ = apply_layer(h, entry)
        loss = mtf.reduce_sum(mtf.sin(h))
        return [loss, *mtf.gradients([loss], [x, w])]

    return step


@pytest.mark.parametrize("layer", LAYERS)
def test_what_is_stored(layer):
    recorded = step_of(layer, as_scan=True).record_call((X, W), {}).recorded
    (loop,) = [
        node.op
        for node in recorded.nodes
        if isinstance(node.op, Loop) and not node.op.reverse
    ]
    stacked = loop.body.results[loop.num_carries :]
    names = [
        x.node.op.display_name for x in stacked if x not in set(loop.body.arguments)
    ]
    assert sorted(names) == STORED[layer]


MESHES = {
    "one device": {},
    "data": {"axes": "data:2", "layout": "b:data"},
    "width, live": {
        "axes": "model:2",
        "layout": "d:model",
        "devices": "spmd:cpu:2",
    },
}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "dropped"])
def test_gradients(layer, mesh):
    expected = step_of(layer, as_scan=False)(X, W)
    results = step_of(layer, as_scan=True, **MESHES[mesh])(X, W)
    for y, value in zip(results, expected, strict=True):
        # One of the layers computes in float32.
        np.testing.assert_allclose(y.numpy(), value.numpy(), rtol=1e-5, atol=1e-6)


def test_what_is_stacked_anyway_is_not_computed_again():
    """A result of the loop that its gradient reads is stacked once."""
    mesh = mtf.Mesh("")

    @mtf.function(mesh=mesh, x="b;d", w="layers;d;e")
    def step(x, w):
        def apply_layer(h, w):
            y = mtf.gelu(product(h, w))
            return h + product(y, w), y

        h, ys = mtf.scan(apply_layer, x, w, "layers")
        return mtf.gradients([mtf.reduce_sum(mtf.sin(h))], [w]), ys

    recorded = step.record_call((X, W), {}).recorded
    backward = [n.op for n in recorded.nodes if isinstance(n.op, Loop)][-1]
    names = [node.op.display_name for node in backward.body.nodes]
    assert backward.reverse
    assert "gelu" not in names


def test_long_chains_are_planned_at_once():
    """Each of these ops reads the one before twice: 2**60 ways to the first."""
    mesh = mtf.Mesh("")

    @mtf.function(mesh=mesh, x="b;d", w="layers;d;e")
    def step(x, w):
        def apply_layer(h, w):
            y = product(h, w)
            for _ in range(60):
                y = mtf.sin(y) * 0.5 + y * 0.5
            return product(y, w), None

        h, _ = mtf.scan(apply_layer, x, w, "layers")
        return mtf.gradients([mtf.reduce_sum(h)], [w])

    (gradient,) = step(X, W)
    assert np.isfinite(gradient.numpy()).all()
