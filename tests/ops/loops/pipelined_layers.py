"""Layers of pipelined scans for tests, and a step that scans one of them.

results = run(dense, "stage:2; data:2", "layers:stage; batch:data", microbatches=4)
results = run(dense)                       # the same, not pipelined
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import meshtf as mtf

BATCH = 24
WIDTH = 3


@dataclasses.dataclass
class Outside:
    """What layers use from outside of the scan.

    Attributes:
      shared: a variable [d].
      mask: [batch], computed from x.
      context: [batch, d], an argument; it has a gradient.
      flags: bool [batch].
      table: a constant [d].
    """

    shared: mtf.Variable
    mask: mtf.Tensor
    context: mtf.Tensor
    flags: mtf.Tensor
    table: mtf.Tensor


# A layer: (carry, (weights [d, e], cache [batch, d]), outside) -> carry, terms, outputs.
Layer = Callable[[Any, Any, Outside], tuple[Any, Any, Any]]


def linear(h: mtf.Tensor, w: mtf.Tensor) -> mtf.Tensor:
    """Returns h[..., d] * w[d, e] with the dimension e called d."""
    shape = [*h.shape.without("d"), w.shape.dim("e")]
    return mtf.rename(mtf.einsum([h, w], mtf.Shape(shape)), "e", "d")


def dense(h, inputs, outside):
    """Weights only."""
    w, _ = inputs
    return h + mtf.tanh(linear(h, w)), None, None


def outputs(h, inputs, outside):
    """Outputs of every kind: with the batch, sums, means, and without it."""
    w, _ = inputs
    h = h + mtf.tanh(linear(h, w) + outside.shared)
    sums = [mtf.reduce_sum(h, "batch"), mtf.einsum([h, h], "d")]
    means = {"mean": mtf.reduce_mean(mtf.square(h)), "row": mtf.reduce_mean(h, "batch")}
    constants = (mtf.reduce_sum(mtf.square(w)), None, outside.table * 2.0)
    counts = mtf.reduce_sum(mtf.cast(mtf.greater(h, 0.0), "int32"))
    positive = mtf.greater(h, 0.1)
    return h, None, [h * 2.0, sums, means, constants, counts, positive]


def flags_of_weights(h, inputs, outside):
    """Outputs of integers and bools that do not depend on the batch."""
    w, _ = inputs
    positive = mtf.greater(mtf.reduce_sum(w), 0.0)
    return dense(h, inputs, outside)[0], None, (positive, mtf.cast(positive, "int32"))


def terms(h, inputs, outside):
    """Terms of sums with the batch and without it."""
    w, _ = inputs
    h = h + mtf.tanh(linear(h, w))
    without = (mtf.reduce_mean(mtf.square(h)), mtf.reduce_sum(h, "batch"))
    count = mtf.reduce_sum(mtf.cast(mtf.greater(h, 0.0), "int32"))
    penalty = mtf.reduce_sum(mtf.square(w))
    return h, {"h": h * 0.5, "loss": without, "n": count, "w": penalty}, h


def captures(h, inputs, outside):
    """Tensors from outside with the batch and without it, and xs with it."""
    w, cache = inputs
    y = mtf.tanh(linear(h, w) + outside.shared) * outside.mask + outside.context * 0.3
    h = mtf.where(outside.flags, h + y, h * 0.9) + cache * outside.table
    return h, None, cache * h


def nested(carry, inputs, outside):
    """A carry in several parts: floats, integers and bools."""
    w, _ = inputs
    if isinstance(carry, mtf.Tensor):
        raise TypeError("begin with begin_nested")
    h, (count, was_positive, nothing) = carry["h"], carry["rest"]
    y = mtf.tanh(linear(h, w))
    is_positive = mtf.greater(mtf.reduce_sum(y, "d"), 0.0)
    h = mtf.where(was_positive, h + y, h - 0.5 * y)
    count = count + mtf.cast(is_positive, "int32")
    return {"h": h, "rest": (count, is_positive, nothing)}, None, count


def begin_nested(x):
    """Returns the first carry of `nested`."""
    sums = mtf.reduce_sum(x, "d")
    zeros = mtf.cast(sums * 0.0, "int32")
    return {"h": x, "rest": (zeros, mtf.greater(sums, 0.0), None)}


def dropped(h, inputs, outside):
    """Dropout, and noise without the batch."""
    w, _ = inputs
    h = h + mtf.dropout(mtf.tanh(linear(h, w)), 0.4)
    noise = mtf.random_uniform(h.mesh, h.shape.only(["d"]), dtype=h.dtype)
    return h + noise * 0.1, None, mtf.dropout(h, 0.5, name="second")


@mtf.custom_gradient
def _clipped(x):
    return mtf.sin(x), lambda dy: [mtf.tanh(dy * 3.0) * mtf.cos(x)]


def own_gradient(h, inputs, outside):
    """A function with a gradient of its own."""
    w, _ = inputs
    return h + _clipped(linear(h, w) + outside.shared), None, None


def loops(h, inputs, outside):
    """A loop within the layer, which uses what is outside of all loops."""
    w, _ = inputs

    def step(carry, _):
        return mtf.sin(carry + outside.context) + linear(carry, w), None

    h, _ = mtf.scan(step, h, None, "steps", length=2)
    chosen = mtf.where(
        mtf.greater(mtf.reduce_sum(w), 0.0),
        h * 1.5 + outside.shared,
        h * outside.mask,
    )
    return mtf.tanh(chosen), None, None


def half(h, inputs, outside):
    """Another data type within the layer."""
    w, _ = inputs
    y = linear(mtf.cast(h, "bfloat16"), mtf.cast(w, "bfloat16"))
    low = mtf.reduce_mean(mtf.square(y), "batch")
    return h + mtf.cast(mtf.tanh(y), h.dtype), None, mtf.cast(low, h.dtype)


LAYERS: dict[str, Layer] = {
    layer.__name__: layer
    for layer in (
        dense,
        outputs,
        flags_of_weights,
        terms,
        captures,
        nested,
        dropped,
        own_gradient,
        loops,
    )
}


def arrays(num_layers: int, dtype: str = "float64") -> list[np.ndarray]:
    """Returns x [batch, d], context [batch, d], and caches [layers, batch, d]."""
    rng = np.random.default_rng(3)
    sizes = [(BATCH, WIDTH), (BATCH, WIDTH), (num_layers, BATCH, WIDTH)]
    return [rng.normal(size=size).astype(dtype) for size in sizes]


class Scanned:
    """Variables on a mesh, and a scan of a layer over them.

    Args:
      layer: the layer.
      num_layers: how often it is repeated.
      reverse: see `mtf.scan`.
      recomputed: whether it is wrapped in `mtf.recompute`.
      dtype: of the variables and of x.
      mesh: the arguments of `mtf.Mesh`.
    """

    def __init__(
        self,
        layer: Layer,
        num_layers: int = 8,
        reverse: bool = False,
        recomputed: bool = False,
        dtype: str = "float64",
        **mesh: Any,
    ) -> None:
        self.layer = layer
        self.num_layers = num_layers
        self.reverse = reverse
        self.recomputed = recomputed
        self.dtype = dtype
        self.mesh = mtf.Mesh(mesh.pop("axes", ""), **mesh)
        rng = np.random.default_rng(0)
        kernels = rng.normal(size=(num_layers, WIDTH, WIDTH)) * 0.5
        self.w = self._variable(f"layers:{num_layers}; d:3; e:3", kernels, "w")
        self.shared = self._variable("d:3", rng.normal(size=WIDTH) * 0.3, "b")

    def _variable(self, shape: str, value: np.ndarray, name: str) -> mtf.Variable:
        """Returns a variable with a value."""
        zeros = mtf.layers.initializers.zeros
        variable = mtf.Variable(self.mesh, shape, zeros, dtype=self.dtype, name=name)
        variable.assign(value.astype(self.dtype))
        return variable

    def scan(self, x: mtf.Tensor, context: mtf.Tensor, caches: mtf.Tensor) -> Any:
        """Returns the results of `mtf.scan_and_sum` of the layer."""
        sums = mtf.reduce_sum(context, "d")
        table = mtf.asarray(self.mesh, np.array([0.5, 1.0, -1.0], self.dtype), "d")
        outside = Outside(
            self.shared, mtf.sin(sums), context, mtf.less(sums, 0.2), table
        )

        def body(carry: Any, inputs: Any) -> Any:
            return self.layer(carry, inputs, outside)

        carry = begin_nested(x) if self.layer is nested else x
        return mtf.scan_and_sum(
            mtf.recompute(body) if self.recomputed else body,
            carry,
            (self.w, caches),
            "layers",
            reverse=self.reverse,
        )

    def step(self, x: mtf.Tensor, context: mtf.Tensor, caches: mtf.Tensor) -> Any:
        """Returns a loss, its gradients, and the results of the scan."""
        with mtf.seed(7):
            results = self.scan(x, context, caches)
        tensors = [y for y in mtf.names.nested.flatten(results) if y is not None]
        loss = loss_of(tensors, self.dtype)
        targets = [self.w, self.shared, x, context, caches]
        grads = mtf.gradients([loss], targets)
        return [loss, [g for g in grads if g is not None], tensors]

    def function(self) -> Any:
        """Returns `step` as a `mtf.function`."""
        return mtf.function(
            self.step,
            mesh=self.mesh,
            x="batch; d",
            context="batch; d",
            caches="layers; batch; d",
        )


def loss_of(tensors: list[mtf.Tensor], dtype: str) -> mtf.Tensor:
    """Returns a loss of which each element of all tensors has another part."""
    loss: Any = 0.0
    for i, x in enumerate(tensors):
        if x.dtype != dtype:
            continue
        weights = mtf.zeros(x.mesh, "", dtype)
        for k, dim in enumerate(x.shape, 1):
            places = mtf.range(x.mesh, dim, dtype)
            weights = mtf.outer(weights, mtf.sin(places * 0.7 * (k + i)), mtf.add)
        loss = loss + mtf.reduce_sum(mtf.square(x + weights)) * 0.01
    return loss


def run(layer: Layer, num_layers: int = 8, **settings: Any) -> list[np.ndarray]:
    """Returns all results of the step of a scan: see `Scanned`."""
    scanned = Scanned(layer, num_layers, **settings)
    step = scanned.function()
    results = step(*arrays(num_layers, scanned.dtype))
    return [y.numpy() for y in mtf.names.nested.flatten(results)]
