"""Copies of modules and trainers: what their functions refer to is copied with them."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest

import meshtf as mtf

X = np.linspace(-1, 1, 32, dtype="float32").reshape(8, 4)


class Net(mtf.Module):
    """Two layers, and functions of the module in several forms."""

    def __init__(self, mesh):
        super().__init__()
        self.w = mtf.Variable(mesh, "d:4;h:6", "normal")
        self.tied = self.w
        self.layers = [mtf.layers.Dense(mesh, "h:6", "o:2")]

        def closure(x):
            return self.loss(x)

        names = {"mesh": mesh, "x": "batch;d"}
        self.of_method = mtf.function(self.loss, **names)
        self.of_closure = mtf.function(closure, **names)
        self.of_closures = mtf.function(lambda x: closure(x), **names)
        self.of_partial = mtf.function(functools.partial(self.loss), **names)

    def loss(self, x):
        h = mtf.einsum([x, self.w], "batch;h") + self.tied.value.mean()
        return mtf.reduce_mean(mtf.square(self.layers[0](h)))

    @mtf.function(x="batch;d")
    def decorated(self, x):
        return self.loss(x)

    def losses(self):
        """Returns the loss that each function computes."""
        forms = "of_method of_closure of_closures of_partial decorated".split()
        return [float(getattr(self, form)(X)) for form in forms]


class Trainer:
    """A model and its optimizer, as one writes them."""

    def __init__(self, mesh):
        self.model = Net(mesh)
        variables = self.model.trainable_variables
        self.optimizer = mtf.optimizers.Adam(variables, 0.01)

        @mtf.function(mesh=mesh, x="batch;d", step="")
        def step(x, step):
            loss = self.model.loss(x)
            grads = mtf.gradients([loss], self.model.trainable_variables)
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(grads, variables, step)
            return loss

        self.step = step

    def train(self, first, number):
        """Returns the losses of some steps."""
        return [float(self.step(X, np.int32(i))) for i in range(first, first + number)]


@pytest.mark.parametrize("axes", ["data:2;model:2", "stage:2;data:2"])
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_a_copy_is_independent(axes, devices):
    layout = "batch:data; h:model"
    mesh = mtf.Mesh(axes, layout, devices=devices, optional_axes="model")
    net = Net(mesh)
    duplicate = copy.deepcopy(net)
    assert duplicate.w.mesh is mesh
    assert duplicate.tied is duplicate.w
    assert [v.name for v in duplicate.variables] == [v.name for v in net.variables]
    before = net.losses()
    assert duplicate.losses() == before == [before[0]] * 5
    net.w.assign(net.w * 3.0)
    assert duplicate.losses() == before
    assert net.losses()[0] > before[0]
    changed = net.losses()
    duplicate.layers[0].kernel.assign(duplicate.layers[0].kernel * 0.0)
    assert duplicate.losses() == [0] * 5
    assert net.losses() == changed


@pytest.mark.parametrize("axes", ["data:2;model:2", "stage:2;data:2"])
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_the_copy_of_a_trainer_goes_on_as_the_trainer_does(axes, devices):
    layout = "batch:data; h:model"
    mesh = mtf.Mesh(axes, layout, devices=devices, optional_axes="model")
    trainer = Trainer(mesh)
    trainer.train(0, 2)
    duplicate = copy.deepcopy(trainer)
    best = copy.deepcopy(trainer.model.variables)
    values = [v.numpy() for v in best]
    losses = trainer.train(2, 3)
    assert duplicate.train(2, 3) == losses
    assert losses[-1] < losses[0]
    for variable, value in zip(best, values):
        np.testing.assert_array_equal(variable.numpy(), value)
    for variable, value in zip(trainer.model.variables, best):
        variable.assign(value)
    assert trainer.train(2, 1)[0] == losses[0]
