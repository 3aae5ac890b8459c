"""One model under five layouts: equal losses, different shards and collectives.

Usage:

    python -m examples.mlp_layouts
"""

from __future__ import annotations

from collections import Counter

import numpy as np

import meshtf as mtf

LAYOUTS = {
    "data": "batch:data",
    "tensor": "d_ff:model",
    "both": "batch:data; d_ff:model",
}


def train(mesh: mtf.Mesh, title: str) -> None:
    """Trains for three steps; prints the losses, the shape of a shard of `w1`, and the
    number of collectives of each kind in a step.

    Args:
      mesh: the mesh, with its layout.
      title: the title of the printed line.
    """
    normal = mtf.layers.initializers.normal(0.2)
    w1 = mtf.Variable(mesh, "d_model:16; d_ff:64", normal, name="w1")
    w2 = mtf.Variable(mesh, "d_ff:64; d_model:16", normal, name="w2")

    @mtf.function(x="batch; d_model")
    def step(x: mtf.Tensor) -> mtf.Tensor:
        """Updates both weights by gradient descent, and returns the loss, a scalar."""
        h = mtf.relu(mtf.einsum([x, w1], "batch; d_ff"))
        y = mtf.einsum([h, w2], "batch; d_model")
        loss = mtf.reduce_mean(mtf.square(y - x))
        for w, dw in zip((w1, w2), mtf.gradients([loss], [w1, w2])):
            w.assign(w - 0.1 * dw)
        return loss

    x = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
    losses = [float(step(x)) for _ in range(3)]
    shard, *_ = w1.slots()  # the stored shards of all positions, which have one shape
    sizes = [f"{name}:{size}" for name, size in zip(w1.shape.names, shard.shape)]
    # A collective is described by a line such as "all_reduce over data of [...]".
    descriptions = step.lower(x).collectives
    collectives = Counter(description.split()[0] for description in descriptions)
    print(
        f"{title:<13} losses {' '.join(f'{loss:.3f}' for loss in losses)}   "
        f"shard of w1 [{' '.join(sizes)}]   {dict(collectives)}"
    )


if __name__ == "__main__":
    mtf.configure_process()
    train(mtf.Mesh(""), title="one device")
    for title, layout in LAYOUTS.items():
        train(mtf.Mesh("data:4; model:2", layout), title)
    fully_sharded = mtf.Mesh(
        "data:4; model:2", layout="batch:data", variable_layout="d_model:data"
    )
    train(fully_sharded, title="fully sharded")
