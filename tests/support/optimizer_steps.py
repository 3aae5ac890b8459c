"""What tests of optimizers share: variables, layouts, and some steps of training.

Example:

    before, after, gradients = train(lambda variables: LAMB(variables), LAYOUTS["data"],
    rng)
"""

from __future__ import annotations

import numpy as np

import meshtf as mtf
from meshtf.layers import initializers

SHAPES = {"w": "a:8;b:6", "heads": "h:2;a:8;b:6", "bias": "a:8", "s": ""}
LAYOUTS = {
    "one position": {"axes": ""},
    "data": {"axes": "data:4", "layout": "batch:data"},
    "rows": {"axes": "data:2;model:2", "layout": "batch:data;a:model"},
    "columns": {"axes": "data:2;model:3", "layout": "batch:data;b:model"},
    "rows and columns": {"axes": "data:2;model:2", "layout": "a:data;b:model"},
    "others": {"axes": "data:2;model:2", "layout": "batch:data;h:model"},
    "FSDP rows": {
        "axes": "data:4",
        "layout": "batch:data",
        "variable_layout": "a:data",
    },
    "FSDP columns": {
        "axes": "data:2;model:2",
        "layout": "batch:data;a:model",
        "variable_layout": "b:data",
    },
    "ZeRO-1 rows": {
        "axes": "data:4",
        "layout": "batch:data",
        "optimizer_layout": "a:data",
    },
    "ZeRO-1 columns": {
        "axes": "data:2;model:2",
        "layout": "batch:data;a:model",
        "optimizer_layout": "b:data",
        "devices": "logical:4",
    },
    "ZeRO-1 beside FSDP": {
        "axes": "data:2;model:2",
        "layout": "batch:data",
        "variable_layout": "a:data",
        "optimizer_layout": "a:model;b:data",
    },
}


def train(make, mesh, rng, steps=4):
    """Returns variables before and after some steps, and the gradients of each step.

    The gradient of a variable is the sum of the rows of an array over the batch.

    Args:
      make: a function of variables; returns their optimizer.
      mesh: the settings of the mesh.
      rng: draws the gradients.
      steps: how many.
    """
    mesh = mtf.Mesh(**mesh)
    variables = [
        mtf.Variable(mesh, shape, initializers.normal(0.1), name)
        for name, shape in SHAPES.items()
    ]
    optimizer = make(variables)

    @mtf.function(
        mesh=mesh,
        w="batch;a;b",
        heads="batch;h;a;b",
        bias="batch;a",
        s="batch",
        step="",
    )
    def train_step(w, heads, bias, s, step):
        loss = sum(
            mtf.reduce_sum(v * mtf.reduce_sum(rows, "batch"))
            for v, rows in zip(variables, (w, heads, bias, s))
        )
        optimizer.apply_gradients(mtf.gradients([loss], variables), variables, step)
        return loss

    before = [v.numpy() for v in variables]
    rows = [
        [rng.normal(size=(4, *v.shape.sizes)).astype("float32") for v in variables]
        for _ in range(steps)
    ]
    for step, arrays in enumerate(rows):
        train_step(*arrays, np.int32(step))
    return (
        before,
        [v.numpy() for v in variables],
        [[x.sum(0) for x in xs] for xs in rows],
    )
