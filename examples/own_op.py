"""A user-defined op is one class. It says how its output is sharded if a dimension of its
inputs is, and what one device computes.

    python -m examples.own_op

Its test is one line, `meshtf.testing.check_op(Distance).require()`: it runs the samples
under every layout of small meshes, forward and backward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import meshtf as mtf


class Distance(mtf.graph.Op):
    """Squared distances of points to centres: x[batch, d], c[centre, d] -> [batch, centre]."""

    dim: str  # the dimension that is summed over: d
    # Small inputs on which `check_op` runs the op; `attributes` are the op's arguments.
    conformance_samples = (
        mtf.graph.Sample(attributes=("d",), inputs=("batch:8; d:4", "centre:4; d:4")),
        mtf.graph.Sample(attributes=("d",), inputs=("batch:3; d:5", "centre:2; d:5")),
    )

    def output_specs(self, *xs: mtf.graph.Spec) -> tuple[mtf.graph.Spec, ...]:
        """Returns the shape and the dtype of each output, here of one."""
        x, c = xs
        if not x.shape.names[-1] == c.shape.names[-1] == self.dim:
            raise mtf.ShapeError(
                f"{self.dim!r} must be the last dimension of both inputs."
            )
        shape = x.shape.without(self.dim) + c.shape.without(self.dim)
        return (mtf.graph.Spec(shape, x.dtype),)

    def role(self, factor: str) -> mtf.graph.Role:
        """Returns what sharding a dimension (a factor of the op) does to the output: if d is
        sharded, devices compute partial sums; if another one is, the output is sharded.
        """
        return mtf.graph.Role.SUM if factor == self.dim else mtf.graph.Role.MAP

    def padding_value(self, input_index: int, factor: str) -> float | None:
        """Returns the value of elements beyond the end of a dimension that the mesh does not
        divide; None: any. Where d is 0 in both inputs, it adds nothing to the sum.
        """
        return 0.0 if factor == self.dim else None

    def local(self, context: Any, *xs: Any) -> tuple[Any, ...]:
        """Returns one device's shard of the output, given its shards of the inputs."""
        x, c = xs
        return (tf.reduce_sum((x[:, None, :] - c[None, :, :]) ** 2, axis=-1),)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        """Returns the gradients of both inputs: d/dx |x - c|^2 = 2 (x - c), and
        d/dc |x - c|^2 = 2 (c - x).
        """
        x, c = xs
        batch, centre = y.shape.names
        dx = x * mtf.reduce_sum(dy, centre) - mtf.einsum([dy, c], x.shape)
        dc = c * mtf.reduce_sum(dy, batch) - mtf.einsum([dy, x], c.shape)
        return [2.0 * dx, 2.0 * dc]


if __name__ == "__main__":
    mtf.configure_process()
    points = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    for layout in ("", "batch:data", "centre:data", "d:data", "batch:data; d:model"):
        mesh = mtf.Mesh("data:2; model:2", layout)
        x = mtf.asarray(mesh, points, "batch; d")
        c = mtf.asarray(mesh, points[:2], "centre; d")
        y = mtf.graph.apply(Distance("d"), x, c)
        (dc,) = mtf.gradients([y], [c])
        print(
            f"{layout or 'nothing sharded':<20} {y.numpy().sum():.3f}  "
            f"{np.abs(dc.numpy()).sum():.3f}  "
            f"{y.sharded_value.placement}"
        )
