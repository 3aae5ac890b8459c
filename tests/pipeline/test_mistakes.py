"""What layers and losses of pipelines must not return: refused by name, eager and
recorded.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

X = np.ones((8, 4), "float32")


def doubled(x):
    return x * 2


LOSSES = [lambda y: 3.0, lambda y: None, lambda y: (mtf.reduce_mean(y),), lambda y: y]
LAYERS = [
    [lambda x: None, doubled],
    [doubled, lambda x: 3.0],
    [lambda x: {"x": x, "more": None}, lambda x: x["x"]],
    [doubled, lambda x: {"x": x, "more": None}],
    [lambda x: (x, 2), lambda pair: pair[0] * pair[1]],
]


def in_both_modes(fn, axes):
    mesh = mtf.Mesh(axes)
    for program in (fn, mtf.function(fn, mesh=mesh)):
        yield lambda program=program: program(mtf.asarray(mesh, X, "batch;d"))


@pytest.mark.parametrize("axes", ["", "stage:2"])
@pytest.mark.parametrize("loss_of", LOSSES)
def test_a_loss_is_a_scalar_tensor(loss_of, axes):
    pipe = mtf.pipeline.GPipe([doubled, mtf.sin], 2, 2)
    for run in in_both_modes(lambda x: pipe.loss(loss_of, x), axes):
        with pytest.raises(mtf.errors.MeshtfError, match="the loss of a pipeline"):
            run()


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("loss_of", LOSSES)
def test_so_is_one_of_microbatches(loss_of, microbatches):
    v = mtf.Variable(mtf.Mesh(""), "d:4", mtf.layers.initializers.ones, name="v")
    with pytest.raises(mtf.errors.MeshtfError, match="the loss"):
        mtf.optimizers.accumulate_gradients(
            lambda x: loss_of(x * v),
            [v],
            mtf.asarray(v.mesh, X, "batch;d"),
            "batch",
            microbatches,
        )


@pytest.mark.parametrize("axes", ["", "stage:2"])
@pytest.mark.parametrize("layers", LAYERS)
def test_layers_return_tensors(layers, axes):
    pipe = mtf.pipeline.GPipe(layers, 2, 2)
    for run in in_both_modes(pipe.__call__, axes):
        with pytest.raises(
            mtf.errors.MeshtfError, match="what layer .* of a pipeline returns"
        ):
            run()


def test_there_is_something_to_pass_on():
    pipe = mtf.pipeline.GPipe([doubled, doubled], 2, 2)
    for nothing in ({}, []):
        with pytest.raises(
            mtf.errors.MeshtfError, match="x= takes|x takes|takes a tensor"
        ):
            pipe(nothing)


@pytest.mark.parametrize("cost", [None, "x"])
def test_costs_are_numbers(cost):
    with pytest.raises(mtf.errors.MeshtfError, match="cost"):
        mtf.pipeline.GPipe([doubled, doubled], 2, 2, cost=lambda layer: cost)


class Wave(mtf.Module):
    """x + sin(w x)."""

    def __init__(self, mesh):
        super().__init__("wave")
        with self.scope():
            self.w = mtf.Variable(mesh, "d:4", "ones", "w")

    def __call__(self, x):
        return x + mtf.sin(x * self.w)


def test_what_layers_keep_for_gradients_may_have_two_dimensions_that_want_an_axis():
    """Stacks of a Repeat in a pipeline: [layers batch d], both along data."""
    numbers = np.linspace(-1, 1, 32, dtype="float32").reshape(8, 4)
    losses = []
    for layout in ("batch:data;layers:data", ""):
        mesh = mtf.Mesh("stage:2;data:2", layout)
        repeat = mtf.layers.Repeat(lambda mesh=mesh: Wave(mesh), "layers:2")
        pipe = mtf.pipeline.GPipe([repeat, mtf.tanh], 2, 2)
        step = mtf.function(
            lambda x, pipe=pipe: pipe.loss(lambda y: mtf.reduce_mean(y * y), x),
            mesh=mesh,
        )
        losses.append(float(step(mtf.asarray(mesh, numbers, "batch:8;d:4"))))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
