"""Modules: names of variables and random ops follow the modules around them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import optimizers
from tests.support.refusals import refuses


def ones(mesh, shape, name):
    """An initializer."""
    return mtf.ones(mesh, shape)


class Layer(mtf.Module):
    """One weight, one that is not trained, and dropout."""

    def __init__(self, mesh, name=None):
        super().__init__(name)
        with self.scope():
            self.w = mtf.Variable(mesh, "d:4", ones, "w")
            self.count = mtf.Variable(mesh, "", ones, "count", trainable=False)

    def __call__(self, x):
        return mtf.dropout(x * self.w, 0.5)


class Stack(mtf.Module):
    """Two layers in a list, one in a dictionary."""

    def __init__(self, mesh):
        super().__init__()
        with self.scope():
            self.layers = [Layer(mesh, f"layer_{i}") for i in range(2)]
            self.named_layers = {"last": Layer(mesh, "last")}

    def __call__(self, x):
        return [layer(x) for layer in (*self.layers, self.named_layers["last"])]


@pytest.fixture
def mesh():
    return mtf.Mesh("data:2", "batch:data")


def test_variables_by_the_names_of_the_modules_around(mesh):
    stack = Stack(mesh)
    assert isinstance(stack, tf.Module)
    names = {"stack/layer_0", "stack/layer_1", "stack/last"}
    assert {v.name for v in stack.variables} == {
        f"{n}/{v}" for n in names for v in ("w", "count")
    }
    assert {v.name for v in stack.trainable_variables} == {f"{n}/w" for n in names}
    assert all(isinstance(v, mtf.Variable) for v in stack.variables)
    assert Layer(mesh).w.name == "layer/w"


def test_a_shared_module_counts_once(mesh):
    stack = Stack(mesh)
    stack.again = stack.layers[0]
    assert len(stack.variables) == 6


def test_random_ops_by_their_path(mesh):
    stack = Stack(mesh)
    x = mtf.ones(mesh, "batch:16;d:4")
    with mtf.seed(1):
        first, second, last = stack(x)
    assert (first.numpy() != second.numpy()).any() and (
        second.numpy() != last.numpy()
    ).any()
    with mtf.seed(1), mtf.scope("stack"), mtf.scope("layer_1"):
        np.testing.assert_array_equal(mtf.dropout(x, 0.5).numpy(), second.numpy())
    with (
        mtf.seed(1),
        pytest.raises(mtf.PlanError, match="'stack/layer_0/dropout' under one seed"),
    ):
        stack.layers[0](x)
        stack.layers[0](x)


def test_a_call_has_the_path_where_the_module_was_created(mesh):
    layer = Layer(mesh, "mine")
    x = mtf.ones(mesh, "batch:16;d:4")
    with mtf.seed(1):
        inside_scope = layer(x)
    with mtf.seed(1), mtf.scope("elsewhere"):
        np.testing.assert_array_equal(layer(x).numpy(), inside_scope.numpy())


def test_a_call_of_the_class_above(mesh):
    class Twice(Layer):
        def __call__(self, x):
            return super().__call__(x) * 2.0

    layer = Twice(mesh, "layer")
    x = mtf.ones(mesh, "batch:16;d:4")
    with mtf.seed(1):
        doubled = layer(x)
    with mtf.seed(1):
        np.testing.assert_array_equal(
            doubled.numpy(), 2 * Layer(mesh, "layer")(x).numpy()
        )


def test_modules_in_functions(mesh):
    stack = Stack(mesh)

    @mtf.function(mesh=mesh, x="batch;d")
    def f(x):
        with mtf.seed(1):
            return stack(x)

    x = np.ones((16, 4), "float32")
    with mtf.seed(1):
        expected = stack(mtf.asarray(mesh, x, "batch;d"))
    for have, w in zip(f(x), expected, strict=True):
        np.testing.assert_array_equal(have.numpy(), w.numpy())


def test_a_model_with_two_variables_of_one_name_is_not_trained_silently(mesh):
    layers = [
        Layer(mesh),
        Layer(mesh),
    ]  # both "layer/w": slots and checkpoints go by name
    with pytest.raises(mtf.MeshtfError, match="layer/w"):
        optimizers.Adam([layer.w for layer in layers], 0.1)


def holders_of(module):
    """Returns the module, and TensorFlow modules that have it, or its variables, as
    attributes.
    """
    outer = [tf.Module() for _ in range(5)]
    outer[0].model = module
    outer[1].models = [module]
    outer[2].models = {"a": {"b": (module,)}}
    outer[3].variable = module.w
    outer[4].weights = [module.w]
    return [module, *outer]


@pytest.mark.parametrize("i", range(6))
def test_tensorflows_checkpoints_refuse_what_they_would_not_save(mesh, tmp_path, i):
    for checkpoint in (
        tf.train.Checkpoint(holders_of(Layer(mesh))[i], n=tf.Variable(1)),
        tf.train.Checkpoint(n=tf.Variable(1), model=holders_of(Layer(mesh))[i]),
    ):
        for save in (checkpoint.save, checkpoint.write):
            with refuses(
                mtf.CheckpointError,
                "layer",
                r"from .*test_module\.py",
                "mtf.checkpoints.save",
            ):
                save(tmp_path / "ckpt")
    assert not list(tmp_path.iterdir())


def test_tensorflows_checkpoints_refuse_what_they_would_not_restore(mesh, tmp_path):
    path = tf.train.Checkpoint(model=tf.Module(), n=tf.Variable(1)).write(
        tmp_path / "ckpt"
    )
    for module in holders_of(Layer(mesh)):
        with refuses(mtf.CheckpointError, "layer", "mtf.checkpoints.restore"):
            tf.train.Checkpoint(model=module, n=tf.Variable(1)).restore(
                path
            ).assert_consumed()


def test_tensorflows_checkpoints_refuse_slots_and_variables(mesh, tmp_path):
    layer = Layer(mesh)
    with refuses(mtf.CheckpointError, "'layer/w'", "mtf.checkpoints.save"):
        tf.train.Checkpoint(w=layer.w).write(tmp_path / "ckpt")
    with refuses(mtf.CheckpointError, "'adam'", "mtf.checkpoints.save"):
        tf.train.Checkpoint(optimizers.Adam([layer.w])).write(tmp_path / "ckpt")


@pytest.mark.parametrize("i", range(6))
def test_tensorflows_saved_models_refuse_what_they_would_not_save(mesh, tmp_path, i):
    with refuses(
        mtf.PlanError, "layer", r"from .*test_module\.py", "mtf.export_saved_model"
    ):
        tf.saved_model.save(holders_of(Layer(mesh))[i], tmp_path / "model")


def test_modules_without_variables_of_meshtf_are_saved_by_tensorflow(mesh, tmp_path):
    module = mtf.Module("counts")
    module.n = tf.Variable(3)
    path = tf.train.Checkpoint(module).write(tmp_path / "ckpt")
    module.n.assign(4)
    tf.train.Checkpoint(module).restore(path).expect_partial()
    assert module.n.numpy() == 3


def test_a_clone_has_a_name_of_its_own(mesh):
    stack = Stack(mesh)
    teacher = stack.clone(name="teacher")
    assert {v.name.split("/")[0] for v in teacher.variables} == {"teacher"}
    assert teacher.layers[1].path == ("teacher", "layer_1")
    assert stack.clone().path == stack.path == ("stack",)
    both = (*stack.variables, *teacher.variables)
    assert len({v.name for v in both}) == len(both)
    stack.layers[0].w.assign(np.zeros(4))
    np.testing.assert_equal(teacher.layers[0].w.numpy(), np.ones(4))
    with refuses(mtf.ArgumentError, "name"):
        stack.clone(name=3)


def test_a_shallow_copy_has_the_same_variables(mesh):
    stack = Stack(mesh)
    assert copy.copy(stack).layers[0] is stack.layers[0]


def test_a_module_without_a_value_is_not_copied(mesh):
    class Net(mtf.Module):
        def __init__(self):
            super().__init__()
            self.first = mtf.layers.Dense(mesh, "d:4", "o:4")
            self.second = copy.deepcopy(self.first)

    with refuses(mtf.PlanError, "has no name before", "after the constructor"):
        Net()
    layer = Layer(mesh)
    with refuses(mtf.PlanError, "inside a mtf.function"):
        mtf.function(lambda: copy.deepcopy(layer).w * 1.0, mesh=mesh)()
