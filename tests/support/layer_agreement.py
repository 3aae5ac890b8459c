"""What tests of layers share: numbers and gradients of one device, under layouts that
cut names.

Example:

    def model(mesh):
      dense = layers.Dense(mesh, "d:8", "e:4")
      return dense, lambda x: dense(x)

    y = agree(model, {"x": (array, "batch;d")}, ["batch:x", "d:x;e:y"])
"""

from __future__ import annotations

import numpy as np

import meshtf as mtf

AXES = "x:2;y:2"


def run(make, inputs, axes="", layout=""):
    """Returns the result of a recorded model, and the gradients of its mean square.

    Args:
      make: a function of a mesh; returns a module, or None, and a function of tensors.
      inputs: arrays and their names, in the order of that function's arguments.
      axes: of the mesh.
      layout: of the mesh.

    Returns:
      The result as an array, and gradients by the names of variables and of floating
      inputs.
    """
    mesh = mtf.Mesh(axes, layout)
    module, call = make(mesh)
    variables = module.trainable_variables if module else ()

    @mtf.function(mesh=mesh)
    def step(*tensors):
        with mtf.seed(0):
            y = call(*tensors)
        floats = {name: x for name, x in zip(inputs, tensors) if x.dtype == "float32"}
        targets = [*variables, *floats.values()]
        # Weighted by place, so that a result in a wrong place has another gradient.
        loss = mtf.reduce_mean(mtf.square(y + place(y)))
        return y, dict(
            zip([*(v.name for v in variables), *floats], mtf.gradients([loss], targets))
        )

    y, grads = step(*(mtf.asarray(mesh, x, dims) for x, dims in inputs.values()))
    return y.numpy(), {name: g.numpy() for name, g in grads.items() if g is not None}


def place(y):
    """Returns numbers that differ along every dimension of y."""
    total = mtf.zeros(y.mesh, "")
    for i, dim in enumerate(y.shape, 1):
        total = mtf.outer(
            total, mtf.sin(mtf.range(y.mesh, dim, "float32") * 0.7 * i), mtf.add
        )
    return total


def agree(make, inputs, layouts, axes=AXES, tolerance=1e-5):
    """Requires the numbers of one device under every layout, and returns its result and
    gradients.
    """
    want, want_grads = run(make, inputs)
    assert want_grads and all(np.abs(g).max() > 0 for g in want_grads.values()), (
        want_grads
    )
    for layout in layouts:
        have, grads = run(make, inputs, axes, layout)
        np.testing.assert_allclose(
            have, want, rtol=tolerance, atol=tolerance, err_msg=layout
        )
        assert grads.keys() == want_grads.keys()
        for name, grad in want_grads.items():
            np.testing.assert_allclose(
                grads[name],
                grad,
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"{layout}: gradient of {name}",
            )
    return want, want_grads
